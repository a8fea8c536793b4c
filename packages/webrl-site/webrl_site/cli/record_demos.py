"""`webrl record-demos`: scripted experts, or with `--by-hand` a person, play training tasks in the real browser."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path

from webrl.cli.options import add_config_arguments, resolve_config
from webrl.errors import UsageError
from webrl_site.cli import by_hand


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_config_arguments(parser, prefer_newest=False, sections=("tasks", "rollout"))
    parser.add_argument("--per-type", type=int, metavar="N", help="demonstrations per task type (default: 8)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder (default: RUN/demos; RUN/demos_by_hand with --by-hand)"
    )
    parser.add_argument(
        "--by-hand",
        action="store_true",
        help="record your own clicks in a visible browser (tasks.suite=web, miniwob or arena)",
    )
    parser.add_argument(
        "--keep-all",
        action="store_true",
        help="with --by-hand: also keep what fails the suite's check or does not replay",
    )


def main(args: argparse.Namespace) -> int:
    """Record (an interrupted recording is continued), print a table; gives the exit code."""
    from webrl.evaluate import is_success
    from webrl.runs.store import read_records
    from webrl.types import Status, Trajectory
    from webrl_site.record import expert_tasks, record

    config = resolve_config(args, prefer_newest=False)
    if args.by_hand:
        return by_hand.main(args, config)
    per_type = 8 if args.per_type is None else args.per_type
    if per_type < 1:
        raise UsageError(f"--per-type {per_type} is not a number of 1 or more")
    if args.keep_all:
        raise UsageError("--keep-all needs --by-hand; everything that experts play is kept")
    if args.out and args.out.is_file():
        raise UsageError(f"--out {str(args.out)!r} is a file; name a folder")
    tasks = expert_tasks(config, per_type)
    out = (args.out or config.run_dir / "demos") / "trajectories.jsonl"
    print(f"record {len(tasks)} episodes of {len({task.site for task in tasks})} task types to {out}", flush=True)
    if args.dry_run:
        return 0
    from webrl.runs.lock import hold_output

    with hold_output(out.parent):
        asyncio.run(record(tasks, config, out))
    played, solved, cut = Counter[str](), Counter[str](), Counter[str]()
    for trajectory in read_records(out, Trajectory):
        site, success = trajectory.task.site, is_success(trajectory)
        played[site] += 1
        solved[site] += success
        cut[site] += trajectory.status is Status.STEP_LIMIT and not success
    for site in sorted(played):
        limit = f", {cut[site]} cut off by rollout.max_steps={config.rollout.max_steps}" if cut[site] else ""
        print(f"  {site:<36} {solved[site]}/{played[site]} solved{limit}")
    print(f"{solved.total()}/{played.total()} solved; failed ones are kept, but not imitated")
    return 0
