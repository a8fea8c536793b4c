"""`webrl record-demos`: scripted experts play pages of the training task types in the real browser."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from pathlib import Path

from webrl.cli.options import add_config_arguments, describe_sections, resolve_config
from webrl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_config_arguments(parser, prefer_newest=False)
    parser.add_argument("--per-type", type=int, default=8, metavar="N", help="demonstrations a task type (default: 8)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder (default: RUN/demos)")
    parser.epilog = describe_sections(("tasks", "rollout"))


def main(args: argparse.Namespace) -> int:
    """Record (an interrupted recording is continued), print a table; gives the exit code."""
    from webrl.demos.record import arena_demonstrations, demonstration_tasks, record
    from webrl.evaluate import is_success
    from webrl.runs.store import read_records
    from webrl.types import Trajectory

    config = resolve_config(args, prefer_newest=False)
    if args.per_type < 1:
        raise UsageError(f"--per-type {args.per_type} is not a number from 1 up")
    if config.tasks.suite not in ("miniwob", "arena"):
        raise UsageError(f"tasks.suite={config.tasks.suite} has no scripted experts; use tasks.suite=miniwob or arena")
    if config.tasks.suite == "arena":
        tasks = arena_demonstrations(config, args.per_type)
    else:
        tasks = demonstration_tasks(config.tasks.train_sites, args.per_type, config.seed)
    out = (args.out or config.run_dir / "demos") / "trajectories.jsonl"
    print(f"record {len(tasks)} episodes of {len({task.site for task in tasks})} task types to {out}", flush=True)
    if args.dry_run:
        return 0
    from webrl.runs.lock import hold_output

    with hold_output(out.parent):
        asyncio.run(record(tasks, config, out, seed=config.seed))
    played: Counter[str] = Counter()
    solved: Counter[str] = Counter()
    for trajectory in read_records(out, Trajectory):
        played[trajectory.task.site] += 1
        solved[trajectory.task.site] += is_success(trajectory)
    for site in sorted(played):
        print(f"  {site:<36} {solved[site]}/{played[site]} solved")
    print(f"{solved.total()}/{played.total()} solved; failed ones are kept, but not imitated")
    return 0
