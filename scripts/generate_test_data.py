#!/usr/bin/env python3
"""WebArena-Lite task files for generated instructions: `python scripts/generate_test_data.py`.

Reads instructions (`task`, `web`) or our tasks and writes them in WebArena's format. Without --input: tasks.jsonl of
the newest run's newest phase that has one, or data/samples/instructions.jsonl.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from webrl.cli.command import Parser, end_clearly
from webrl.cli.options import count

SAMPLE = Path("data/samples/instructions.jsonl")


def build_parser() -> argparse.ArgumentParser:
    """Options with their defaults."""
    parser = Parser(description="Write WebArena-Lite task files for generated instructions.")
    add = parser.add_argument
    add("--input", type=Path, metavar="FILE", help="JSONL of instructions or tasks (default: the newest run's tasks,\n"
        "or data/samples/instructions.jsonl)")  # fmt: skip
    add("--output_path", type=Path, metavar="PATH", help="JSON file (default: webarena_tasks.json beside the input,\n"
        "or in runs/samples for the samples); a folder with --split")  # fmt: skip
    add("--first_id", type=count, default=0, metavar="N", help="task_id of the first task (default: 0)")
    add("--split", action="store_true", help="one <task_id>.json a task, as VAB's runner reads them (default: off)")
    add("--runs_dir", type=Path, default=Path("runs"), metavar="DIR", help="where runs are kept (default: runs)")
    add("--dry-run", action="store_true", help="say what would be done, do nothing (default: off)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, convert, say where the output went; gives the exit code (2: usage, 1: anything else)."""
    args = build_parser().parse_args(argv)
    return end_clearly("generate_test_data", lambda: _write(args))


def _write(args: argparse.Namespace) -> int:
    from webrl_webarena.task_files import is_exportable, read_instructions, write_task_file

    source = args.input or _newest_tasks(args.runs_dir) or SAMPLE
    folder = Path("runs/samples") if source == SAMPLE else source.parent
    out = args.output_path or folder / ("webarena_tasks" if args.split else "webarena_tasks.json")
    tasks = read_instructions(source)
    skipped = sum(not is_exportable(task) for task in tasks)
    print(f"{source}: {len(tasks)} tasks, {skipped} of them not on WebArena's sites (left out)")
    if not args.dry_run:
        number = write_task_file(out, tasks, first_id=args.first_id, split=args.split)
        print(f"{number} tasks in {out}")
    return 0


def _newest_tasks(runs_dir: Path) -> Path | None:
    from webrl.runs.folder import newest_run

    run = newest_run(runs_dir)
    paths = [run.phase(number).tasks for number in range(run.last_phase(), -1, -1)] if run else []
    return next((path for path in paths if path.is_file()), None)


if __name__ == "__main__":
    sys.exit(main())
