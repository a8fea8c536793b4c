#!/usr/bin/env python3
"""New instructions from failures: `python scripts/gen_task.py` (paper §3.1).

Without --failures this is `webrl gen-tasks` on the newest run folder; where there is no run yet, the sample failures
in data/samples and the tiny generator in data/tiny.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from webrl.cli.command import Parser, end_clearly
from webrl.cli.options import count, resolve_config
from webrl.config.plugins import HOOKS, PACKAGES, find
from webrl.errors import UsageError

SAMPLE_FAILURES = Path("data/samples/failures.jsonl")
DESCRIPTION = "Write new instructions from failed ones, group by group of the same site, and filter them."
_FAILURES = """JSONL with `task` and `web` a line (and `page`, `seed`, `actions`, where known), or a run or phase
folder (default: a stage of the newest run, as `webrl gen-tasks`; without a run, data/samples/failures.jsonl)"""
DEFAULT_OUTPUT = Path("runs/samples/generated.jsonl")
_OUTPUT = f"instructions, JSONL with `task` and `web` (default: beside a file of failures, else {DEFAULT_OUTPUT})"
_SETTING = "config file or override, such as generate.engine.max_batch=4; repeatable (default: the run's, or demo)"
_OVERRIDES = {
    "num_tasks": ("generate.num_tasks", int, "instructions to write"),
    "seed_num": ("generate.num_seeds", int, "failed instructions in one prompt"),
    "temperature": ("generate.temperature", float, "sampling temperature"),
    "generator": ("models.generator", str, "model folder or hub name"),
    "rules": ("filter.rules", str, "YAML with further feasibility rules"),
}


def build_parser() -> argparse.ArgumentParser:
    """What was to be edited in the released script, as options, and those of every webrl command."""
    parser = Parser(description=DESCRIPTION)
    add = parser.add_argument
    add("--failures", type=Path, metavar="PATH", help=_FAILURES)
    add("--output_path", type=Path, metavar="FILE", help=_OUTPUT)
    for name, (key, kind, text) in _OVERRIDES.items():
        add(f"--{name}", type=kind, metavar="X", help=f"{text} (default: {key} of the config)")
    add("--base_url", metavar="URL", help="OpenAI-compatible endpoint to ask (default: generate.engine of the config)")
    add("--model", metavar="NAME", help="model name at that endpoint (default: what it serves)")
    add("--setting", action="append", default=[], dest="settings", metavar="CONFIG|key=value", help=_SETTING)
    add("--run", type=Path, metavar="DIR", help="run folder to work on (default: the newest)")
    add("--phase", type=count, metavar="N", help="phase of the run (default: the first that needs this stage)")
    add("--seed", type=int, metavar="N", help="seed of the draw (default: the config's, 0)")
    add("--dry-run", action="store_true", help="say what would be done, do nothing (default: off)")
    add("-v", "--verbose", action="store_true", help="log every detail (default: off)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, generate, say where the output went; gives the exit code (2: usage, 1: anything else)."""
    args = build_parser().parse_args(argv)
    return end_clearly("gen_task", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    from webrl.runs.folder import newest_run
    from webrl.runs.machine import use_cpu_settings

    _apply_options(args)
    config = resolve_config(args, prefer_newest=args.failures is None)
    in_run = args.failures is None and (args.run is not None or newest_run(config.runs_dir) is not None)
    source = args.failures or SAMPLE_FAILURES
    is_file = args.failures is not None and not args.failures.is_dir()
    out = args.output_path or (source.with_name("generated.jsonl") if is_file else DEFAULT_OUTPUT)
    if in_run and args.output_path:
        raise UsageError("--output_path goes with --failures; a run writes generated.jsonl into its phase folder")
    if args.phase is not None and not in_run:
        raise UsageError(f"--phase {args.phase} is of a run: name it with --run, or leave --phase out")
    if args.failures and not args.failures.exists():
        raise UsageError(f"--failures {str(args.failures)!r} does not exist")
    if out.is_dir():
        raise UsageError(f"--output_path {str(out)!r} is a folder; name a file in it")
    if out.resolve() == source.resolve():
        raise UsageError(f"{str(out)!r} is the file of failures itself: give another --output_path")
    where = f"gen-tasks of {config.run_dir}" if in_run else f"failures {source} -> {out}"
    print(f"{where}; generator {config.models.generator}, {config.generate.num_tasks} instructions", flush=True)
    if args.dry_run:
        return 0
    if not source.exists() and not in_run:
        raise UsageError(f"no run folder in {config.runs_dir}, and no {source} here: give --failures or --run")
    use_cpu_settings()
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.DEBUG if args.verbose else logging.INFO)
    if in_run:
        from webrl.cli.run import run_stage

        return run_stage(config, "gen-tasks", args.phase)
    find(HOOKS, "gen-task")  # one clear line where webrl-webarena is not installed
    from webrl_webarena.task_files import generate_from_file

    counts, filtered = asyncio.run(generate_from_file(config, source, out))
    print(json.dumps(counts, indent=2, ensure_ascii=False))
    for stage in filtered.stages:
        print(f"{stage['name']:<12} {stage['num_in']:>6} -> {stage['num_kept']:<6} {stage['note']}")
    print(f"dropped      {filtered.counts}\n{len(filtered.kept)} instructions in {out}")
    return 0


def _apply_options(args: argparse.Namespace) -> None:
    """Options as overrides of the config."""
    for name, (key, _, _) in _OVERRIDES.items():
        value = getattr(args, name)
        if value is not None:
            args.settings.append(f"{key}={json.dumps(value)}")
    if args.base_url:
        args.settings += ["generate.engine.kind=openai", f"generate.engine.urls={json.dumps([args.base_url])}"]
    if args.model:
        args.settings.append(f"generate.engine.model_name={json.dumps(args.model)}")


if __name__ == "__main__":
    sys.exit(main())
