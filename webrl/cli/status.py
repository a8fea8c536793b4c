"""`webrl status`: reports what a run is doing, in a few lines of plain text."""

from __future__ import annotations

import argparse
from pathlib import Path

from webrl.config.redaction import redact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="run folder, which is only read (default: the newest in runs/)"
    )


def main(args: argparse.Namespace) -> int:
    """Print the lines; gives the exit code."""
    from webrl.reports.status import status
    from webrl.runs.folder import require_newest

    for name, text in status(args.run or require_newest("status")):
        print(f"{name:<10}{redact(text)}")
    return 0
