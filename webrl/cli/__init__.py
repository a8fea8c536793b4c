"""`webrl`: one command, a subcommand per stage, and `webrl run` for all of them.

Parses first and imports the stages after, so that `--help` is instant. A subcommand that needs more than a config
lives in a module of its own, named in `EXTRA`, with `add_arguments(parser)` and `main(args) -> int`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import webrl
from webrl.cli.end import end_clearly
from webrl.cli.options import add_config_arguments, parse_around_options, resolve_config
from webrl.cli.parser import Parser
from webrl.config.redaction import hide_arguments, require_secrets

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Command:
    """A subcommand that runs one stage (`stage`), or all of them (None)."""

    help: str
    sections: tuple[str, ...]
    stage: str | None


STAGES: dict[str, Command] = {
    "gen-tasks": Command("write new instructions from each site's last failures", ("generate", "models"), "gen-tasks"),
    "filter-tasks": Command(
        "drop duplicates, infeasible tasks, and those too easy or too hard for the critic",
        ("filter", "generate", "tasks", "models"),
        "filter-tasks",
    ),
    "rollout": Command("attempt the tasks in a real browser", ("rollout", "tasks", "models"), "rollout"),
    "label": Command("judge the trajectories with the outcome reward model", ("label", "models"), "label"),
    "replay": Command("add earlier successes inside the perplexity band", ("replay", "models"), "replay"),
    "train": Command("train critic, then actor", ("critic", "actor", "training", "models"), "train"),
    "accept": Command(
        "keep the old actor if the new one is worse on the same pages", ("accept", "rollout", "label"), "accept"
    ),
    "eval": Command("success on held-out tasks, by the environment's reward", ("evaluate", "rollout", "tasks"), "eval"),
    "run": Command("run all stages of all phases; resumes where it stopped", (), None),
}
"""Subcommands that take a config, in the order in which a phase runs them."""

EXTRA: dict[str, tuple[str, str]] = {
    "status": ("show progress, resource use and time left of a run", "webrl.cli.status"),
    "report": ("write runs as one HTML page: charts, curriculum, judge, time, settings", "webrl.cli.report"),
    "view": ("browse a run's trajectories, and label them by hand", "webrl.cli.view"),
    "doctor": ("check this machine's setup, with a fix for what is missing", "webrl.cli.doctor"),
    "constraints": ("print the versions that this release was tested with, for pip -c", "webrl.cli.constraints"),
    "study": ("compare methods and ablations: seeds, equal budgets, tables, figures", "webrl.cli.study"),
    "serve-env": ("serve the browser environment to other programs, over OpenEnv", "webrl.cli.serve_env"),
    "serve-model": ("serve a checkpoint to other programs, over the OpenAI API", "webrl.cli.serve_model"),
    "arena": ("start and stop webrl's own practice sites", "webrl.cli.arena"),
    "push": ("upload a run's model to the Hugging Face Hub, with card and report", "webrl.cli.push"),
    "init-site": ("write a config and first instructions for your own site, and try it", "webrl.cli.init_site"),
    "record-demos": ("record demonstrations, by scripted experts or by hand", "webrl.cli.record_demos"),
    "sft": ("train the supervised start on demonstrations", "webrl.cli.sft"),
    "train-orm": ("train the outcome reward model on labelled trajectories", "webrl.cli.train_orm"),
    "orm-prompt": ("copy the released outcome model's system text from its code", "webrl.cli.orm_prompt"),
    "grpo": ("train on the environment's own reward with TRL's GRPO", "webrl.cli.grpo"),
}
"""Subcommands with a module of their own."""
GROUPS: dict[str, tuple[str, ...]] = {
    "run": ("run", *(name for name, command in STAGES.items() if command.stage)),
    "look": ("status", "report", "view", "doctor", "constraints", "study"),
    "serve": ("serve-env", "serve-model", "arena", "push"),
    "make": ("init-site", "record-demos", "sft", "train-orm", "orm-prompt", "grpo"),
}
"""How `webrl --help` groups the commands."""
_WITHOUT_TORCH = ("arena", "constraints", "doctor", "report", "status", "view")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work() -> int:
        from webrl.training.cpu_variables import use_cpu_settings

        args = _parse(arguments)
        _set_up_logging(args.verbose, with_bars=args.command == "push")
        if args.command in _WITHOUT_TORCH:
            return _run_extra(args)
        if not getattr(args, "dry_run", False):
            use_cpu_settings()
        return _run_extra(args) if args.command in EXTRA else _run_stages(args)

    return end_clearly("webrl", work)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = build_parser(arguments)
    first = next(iter(arguments), "-")
    if not first.startswith("-") and first not in STAGES | EXTRA:
        near = difflib.get_close_matches(first, [*STAGES, *EXTRA], n=1, cutoff=0.5)
        hint = f"did you mean `webrl {near[0]}`? " if near else ""
        parser.error(f"no command {first!r:.200}; {hint}`webrl --help` lists them")
    args = parse_around_options(parser, arguments)
    if args.command is None:
        parser.error("which command? `webrl --help` lists them")
    return args


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; a subcommand's own module is imported only if `arguments` select it."""
    parser = Parser(
        prog="webrl",
        usage="webrl [-h] [--version] COMMAND ...",
        description="WebRL: self-evolving online curriculum reinforcement learning for web agents.",
        epilog=_command_list(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"webrl {webrl.__version__}")
    subparsers = parser.add_subparsers(dest="command", prog="webrl", metavar="COMMAND", help=argparse.SUPPRESS)
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for name, command in STAGES.items():
        sub = _add_parser(subparsers, name, command.help)
        if name == wanted:
            is_stage = command.stage is not None
            add_config_arguments(sub, prefer_newest=is_stage, phased=is_stage, sections=command.sections)
            if name == "eval":
                sub.add_argument(
                    "--against",
                    metavar="OTHER",
                    help="compare page by page with another model (evaluated on the same pages, as\n"
                    "run NAME-against-OTHER), or with what a run or phase folder has evaluated",
                )
    for name, (text, module) in EXTRA.items():
        sub = _add_parser(subparsers, name, text)
        if name == wanted:
            importlib.import_module(module).add_arguments(sub)
    return parser


def summaries() -> dict[str, str]:
    """What each command does, in a line."""
    return {name: command.help for name, command in STAGES.items()} | {name: text for name, (text, _) in EXTRA.items()}


def _command_list() -> str:
    about, lines = summaries(), []
    for group, names in GROUPS.items():
        lines += [f"{group}:", *(f"  {name:<13} {about[name]}" for name in names), ""]
    return "\n".join([*lines, "`webrl COMMAND --help` lists the command's options with their defaults."])


def _add_parser(subparsers: Any, name: str, text: str) -> argparse.ArgumentParser:
    sub: argparse.ArgumentParser = subparsers.add_parser(
        name,
        description=text[0].upper() + text[1:] + ".",
        formatter_class=argparse.RawTextHelpFormatter,
    )
    sub.add_argument("-v", "--verbose", action="store_true", help="log every detail")
    return sub


def _run_extra(args: argparse.Namespace) -> int:
    code: int = importlib.import_module(EXTRA[args.command][1]).main(args)
    return code


def _run_stages(args: argparse.Namespace) -> int:
    command = STAGES[args.command]
    config = resolve_config(args, prefer_newest=command.stage is not None)
    from webrl.cli.run import run_all, run_stage, show_plan

    if args.dry_run:
        return show_plan(config, command.stage, getattr(args, "phase", None))
    require_secrets(config, command.sections)
    hide_arguments()
    if command.stage:
        return run_stage(config, command.stage, args.phase, getattr(args, "against", None))
    return run_all(config)


class _AboveBars(logging.Handler):
    """Log lines on standard error that do not tear progress bars apart."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except OSError:
            self.handleError(record)


def _set_up_logging(verbose: bool, with_bars: bool) -> None:
    handler = _AboveBars()
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s", "%X"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("webrl").setLevel(logging.DEBUG if verbose else logging.INFO)
    logging.captureWarnings(True)
    if not with_bars:  # The libraries' own (model shards, weights) are noise beside ours.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
