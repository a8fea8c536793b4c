"""`webrl push`: a run's model to the Hugging Face Hub, with card, configuration and report."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument("repo_id", metavar="OWNER/NAME", help="repository on the Hub; created if missing")
    parser.add_argument("--phase", type=int, metavar="N", help="phase of the model (default: a finished run's last)")
    parser.add_argument("--base", metavar="OWNER/NAME", help="base model on the Hub, if the run began with a folder")
    parser.add_argument("--license", default="unknown", metavar="ID", help="as the Hub spells it, such as apache-2.0")
    parser.add_argument("--private", action="store_true", help="make the repository private")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--to", type=Path, metavar="FOLDER", help="write what would be uploaded there, and send nothing")
    where.add_argument("--dry-run", action="store_true", help="list what would be uploaded, and send nothing")


def main(args: argparse.Namespace) -> int:
    """Make the folder, upload it, print its address; returns the exit code."""
    from webrl.errors import UsageError
    from webrl_report.hub import check_repo_id, chosen_phase, upload, write_folder

    check_repo_id(args.repo_id)
    phase = chosen_phase(args.run, args.phase)
    if args.to and args.to.exists():
        raise UsageError(f"--to {str(args.to)!r} already exists; name a new folder")
    beside = args.to and args.to.absolute().parent
    if beside:
        beside.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="webrl-push-", dir=beside) as folder:
        made = Path(folder, "model")
        made.mkdir()
        write_folder(phase, made, args.repo_id, args.license, base=args.base, link=args.to is None)
        if args.to:
            shutil.move(made, args.to)
            print(args.to)
        elif args.dry_run:
            for path in sorted(made.iterdir()):
                print(f"{path.stat().st_size:>14,}  {path.name}")
            print(f"webrl: a dry run, nothing was sent to {args.repo_id}", file=sys.stderr)
        else:
            print(upload(made, args.repo_id, f"webrl: phase {phase.phase} of {args.run.name}", private=args.private))
    return 0
