#!/usr/bin/env python3
"""Rollouts to training data: `python scripts/process_data.py --stage 1 2 --add_reward` (options as published).

Stage 1 turns a trace folder into training records; stage 2 adds history filtered by perplexity and writes
`<output>_filter` beside it. Without paths: the newest run, or the sample traces in data/samples.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.cli.command import Parser, end_clearly
from webrl.cli.options import names_run, resolve_config
from webrl.config.plugins import HOOKS, PACKAGES, find
from webrl.errors import UsageError

if TYPE_CHECKING:
    from webrl.config import RunConfig
    from webrl_webarena.process import ProcessPlan

DESCRIPTION = """Turn rollouts into training records.
  stage 1: a trace folder (VAB-WebArena-Lite's RESULT folder, its traces folder, one of our phase folders,
           or a trajectories.jsonl) -> --output_path
  stage 2: adds earlier experience filtered by perplexity -> --output_path with _filter before the suffix"""

_ROLLOUT = "rollouts (default: the newest run's newest phase, or data/samples)"
_EXPERIENCE = """earlier outputs, oldest first, separated by spaces or commas
(default: the earlier phases of the same run)"""
_ACTOR = """actor whose tokenizer and perplexity are used; none: no model, stored ids and
log-probs only (default: the phase's starting actor, or models.actor)"""
_OUTPUT = """JSONL of training records (default: train.jsonl of the phase, or
runs/samples/train.jsonl; beside --rollout_path if that is given)"""
_SETTING = """config file or override, such as replay.strategy=all; repeatable (default: the config of the
run that rollouts or actor come from; for others the published settings within the actor's limits)"""


def build_parser() -> argparse.ArgumentParser:
    """The published options, and those of every webrl command."""
    parser = Parser(description=DESCRIPTION)
    add = parser.add_argument
    add("--stage", nargs="+", default=["1", "2"], metavar="N", help="1, 2 or both (default: 1 2)")
    add("--add_reward", action="store_true", help="judge every trajectory with the ORM (default: recorded rewards)")
    add("--rollout_path", type=_path, metavar="DIR", help=_ROLLOUT)
    add("--experience_paths", nargs="+", metavar="PATH", help=_EXPERIENCE)
    add("--orm_path", metavar="DIR", help="outcome reward model (default: models.orm of the config)")
    add("--actor_path", metavar="DIR", help=_ACTOR)
    add("--output_path", type=_path, metavar="FILE", help=_OUTPUT)
    add("--setting", action="append", default=[], dest="settings", metavar="CONFIG|key=value", help=_SETTING)
    add("--run", type=Path, metavar="DIR", help="run folder to work on (default: the newest)")
    add("--seed", type=int, metavar="N", help="seed of the replay draw (default: the config's, 0)")
    add("--dry-run", action="store_true", help="say what would be done, do nothing (default: off)")
    add("-v", "--verbose", action="store_true", help="log every detail (default: off)")
    return parser


def split_paths(values: Sequence[str]) -> list[Path]:
    """Paths from `a b`, `a,b`, `"a", "b"` and mixtures, as the published command line writes them."""
    parts = [part.strip().strip("\"'").strip() for value in values for part in value.split(",")]
    return [Path(part).expanduser() for part in parts if part]


def parse_stages(values: Sequence[str]) -> tuple[int, ...]:
    """Stages from `1 2`, `1,2`, `"1" "2"`.

    Raises:
        UsageError: anything but 1 and 2.
    """
    names = [str(path) for path in split_paths(values)]
    if not names or not set(names) <= {"1", "2"}:
        raise UsageError(f"--stage {' '.join(values)}: expected 1, 2 or both")
    return tuple(sorted({int(name) for name in names}))


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, process, say where the output went; gives the exit code (2: usage, 1: anything else)."""
    args = build_parser().parse_args(argv)
    return end_clearly("process_data", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    find(HOOKS, "process-data")  # one clear line where webrl-webarena is not installed
    from webrl_webarena.process import process

    config, plan = _choose(args)
    if not args.dry_run and (plan.actor or plan.orm):
        from webrl.runs.machine import use_cpu_settings

        use_cpu_settings()
    print("\n".join(plan.describe(config)), flush=True)
    if args.dry_run:
        return 0
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(logging.DEBUG if args.verbose else logging.INFO)
    summary = process(plan, config)
    print("\n".join(_report(summary)))
    if summary["problems"]:
        print(f"                  listed with file and line in {plan.problem_list}")
    return 0


def _choose(args: argparse.Namespace) -> tuple[RunConfig, ProcessPlan]:
    """Config and plan: the config that is named, or that of the run the rollouts or the actor come from."""
    from webrl_webarena.process import run_of, settings_for

    if names_run(args) or args.rollout_path is None:
        config = resolve_config(args, prefer_newest=True)
        return config, _plan(config, args)
    home = run_of(args.rollout_path) or run_of(args.actor_path)
    if home is None:
        overrides = [*args.settings, *([] if args.seed is None else [f"seed={args.seed}"])]
        plan = _plan(settings_for(args.rollout_path, args.actor_path, args.orm_path, overrides), args)
        home = run_of(plan.actor)  # the newest run's, where none was given
        if home is None:
            return settings_for(plan.rollout, plan.actor, plan.orm, overrides), plan
    args.run = home
    config = resolve_config(args, prefer_newest=False)
    return config, _plan(config, args)


def _plan(config: RunConfig, args: argparse.Namespace) -> ProcessPlan:
    from webrl_webarena.process import make_plan

    return make_plan(
        config,
        stages=parse_stages(args.stage),
        add_reward=args.add_reward,
        rollout=args.rollout_path,
        experience=split_paths(args.experience_paths) if args.experience_paths is not None else None,
        orm=args.orm_path,
        actor=args.actor_path,
        output=args.output_path,
    )


def _report(summary: dict[str, Any]) -> list[str]:
    rows = [
        ("judge", "labels"), ("trajectories", "trajectories"), ("current steps", "num_current"),
        ("history steps", "history"), ("scored steps", "scored"), ("problems", "problems"),
    ]  # fmt: skip
    lines = []
    for title, name in rows:
        if value := summary.get(name):
            text = ", ".join(f"{n} {k}" for k, n in value.items()) if isinstance(value, dict) else str(value)
            lines.append(f"{title:<17} {text}")
    return lines


def _path(text: str) -> Path:
    return Path(text.strip().strip("\"'")).expanduser()


if __name__ == "__main__":
    sys.exit(main())
