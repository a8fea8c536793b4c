"""`webrl`: one command, a subcommand per stage, and `webrl run` for all of them.

Parses first and imports the stages after, so that `--help` is instant. A subcommand that needs more than a config
lives in its own module, named in `EXTRA` or by another package's entry point, with `add_arguments(parser)` and
`main(args) -> int`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import logging
import os
import sys
from collections.abc import Sequence

import webrl
from webrl.cli.command import GROUPS, RESUMES, Command, Parser, end_clearly
from webrl.cli.options import add_config_arguments, parse_around_options, resolve_config
from webrl.config import plugins
from webrl.config.redaction import redact_argument, require_secrets
from webrl.errors import UsageError

logger = logging.getLogger(__name__)


STAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gen-tasks": ("write new instructions from each site's last failures", ("generate", "models")),
    "filter-tasks": (
        "drop duplicates, infeasible tasks, and what the critic finds too easy or too hard",
        ("filter", "generate", "tasks", "models"),
    ),
    "rollout": ("attempt the tasks in a real browser", ("rollout", "tasks", "models")),
    "label": ("judge the episodes with the outcome reward model", ("label", "models")),
    "replay": ("add earlier successes that still teach the actor something (its perplexity)", ("replay", "models")),
    "train": ("train critic, then actor", ("critic", "actor", "training", "models")),
    "accept": ("keep the old actor if the new one is worse on the same pages", ("accept", "rollout", "label")),
    "eval": ("measure success on held-out tasks, by the environment's reward", ("evaluate", "rollout", "tasks")),
    "run": ("run all stages of all phases; resumes where it stopped", ()),
}
"""Stages by name, and `run` for all of them: what `--help` says of each, and the sections of the config that it shows;
in the order in which a phase runs them."""

EXTRA: dict[str, Command] = {
    "status": Command("show progress, resource use and time left of a run", "webrl.cli.status", "look", False),
    "doctor": Command("check this machine's setup, with a fix for what is missing", "webrl.cli.doctor", "look", False),
    "constraints": Command(
        "print the versions that this release was tested with, for pip -c", "webrl.cli.constraints", "look", False
    ),
    "sft": Command(
        "train the supervised start on demonstrations",
        "webrl.cli.sft",
        "make",
        after_ctrl_c="the same command resumes from the last training state that sft.save_every wrote, or starts again",
    ),
    "train-orm": Command(
        "train a judge (outcome reward model) on labelled episodes",
        "webrl.cli.train_orm",
        "make",
        after_ctrl_c="the same command resumes from the last training state that orm.save_every wrote, or starts again",
    ),
}
"""Subcommands of the core with their own module; other packages add theirs (`plugins.COMMANDS`)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def work() -> int:
        args = parse(arguments)  # help is shown before anything else is imported
        from tqdm.contrib.logging import logging_redirect_tqdm

        from webrl.runs.machine import use_cpu_settings

        style = "%(asctime)s %(name)s: %(message)s" if args.verbose else "%(message)s"
        logging.basicConfig(level=logging.WARNING, format=style, datefmt="%X", force=True)
        for name in plugins.PACKAGES:
            logging.getLogger(name).setLevel(logging.DEBUG if args.verbose else logging.INFO)
        logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
        logging.captureWarnings(True)
        if args.command != "push":  # the libraries' own bars (model shards, weights) only add noise to ours
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        command = None if args.command in STAGES else find_command(args.command)
        if (command is None or command.uses_torch) and not getattr(args, "dry_run", False):
            use_cpu_settings()
        try:
            with logging_redirect_tqdm():  # lines do not tear progress bars apart
                return _run_stages(args) if command is None else importlib.import_module(command.module).main(args)
        except KeyboardInterrupt as stop:
            advice = RESUMES if command is None else command.after_ctrl_c
            if stop.args or not advice:
                raise
            raise KeyboardInterrupt(advice) from None

    return end_clearly("webrl", work)


def command_names() -> list[str]:
    """The names of all commands, in the order in which help lists them."""
    return [*STAGES, *EXTRA, *(name for name in plugins.names(plugins.COMMANDS) if name not in STAGES | EXTRA)]


def find_command(name: str) -> Command:
    """A command with its own module.

    Raises:
        ExtraMissing: a companion of webrl has it, and is not installed.
        UsageError: no package has it, two have it, or it cannot be imported.
    """
    if name in EXTRA:
        return EXTRA[name]
    command = plugins.load(plugins.COMMANDS, name)
    if not isinstance(command, Command):
        raise UsageError(f"webrl {name}: {command!r:.100} is not a webrl.cli.command.Command")
    return command


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, with its name as `command`; ends the program for `--help` and what is not known."""
    name = next(iter(arguments), "-")
    if name.startswith("-"):
        parser = _overview()
        parser.parse_args(arguments)
        parser.error("which command? `webrl --help` lists them")
    if name not in command_names():
        if plugins.companion_of(plugins.COMMANDS, name):
            plugins.find(plugins.COMMANDS, name)  # raises with what installs it
        near = difflib.get_close_matches(name, command_names(), n=1, cutoff=0.5)
        hint = f"did you mean `webrl {near[0]}`? " if near else ""
        _overview().error(f"no command {name!r:.200}; {hint}`webrl --help` lists them")
    args = parse_around_options(command_parser(name), arguments[1:])
    args.command = name
    return args


def _overview() -> Parser:
    """The parser without a command, whose help lists them."""
    rows = sorted(summaries().items(), key=lambda row: row[0] != "run")  # which most people want, first
    lines = []
    for group in GROUPS:
        if shown := [f"  {name:<13} {text}" for name, (of, text) in rows if of == group]:
            lines += [f"{group}:", *shown, ""]
    parser = Parser(
        prog="webrl",
        usage="webrl [-h] [--version] COMMAND ...",
        description="WebRL: self-evolving online curriculum reinforcement learning for web agents.",
        epilog="\n".join([*lines, "`webrl COMMAND --help` lists the command's options with their defaults."]),
    )
    parser.add_argument("--version", action="version", version=f"webrl {webrl.__version__}")
    return parser


def command_parser(name: str) -> Parser:
    """The parser of a command, whose own module is imported for it."""
    found = None if name in STAGES else find_command(name)
    text, sections = STAGES[name] if found is None else (found.help, ())
    parser = Parser(prog=f"webrl {name}", description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("-v", "--verbose", action="store_true", help="log every detail")
    if found is not None:
        importlib.import_module(found.module).add_arguments(parser)
        return parser
    add_config_arguments(parser, prefer_newest=name != "run", phased=name != "run", sections=sections)
    if name == "eval":
        parser.add_argument(
            "--against",
            metavar="OTHER",
            help="compare page by page with another model (evaluated on the same pages, as\n"
            "run NAME-against-OTHER), or with what a run or phase folder has evaluated",
        )
    return parser


def summaries() -> dict[str, tuple[str, str]]:
    """By command: its group, and what it does, in a line; of one that cannot be used, why."""
    found = {name: ("run", text) for name, (text, _) in STAGES.items()}
    for name in command_names()[len(STAGES) :]:
        try:
            command = find_command(name)
            found[name] = command.group, command.help
        except UsageError as error:
            found[name] = GROUPS[-1], f"cannot be used: {error}"
    return found


def _run_stages(args: argparse.Namespace) -> int:
    stage, against = None if args.command == "run" else str(args.command), getattr(args, "against", None)
    config = resolve_config(args, prefer_newest=stage is not None)
    from webrl.cli.run import run_all, run_stage, show_plan

    if args.dry_run:
        return show_plan(config, stage, getattr(args, "phase", None), against)
    require_secrets(config, STAGES[args.command][1])
    sys.argv[1:] = map(redact_argument, sys.argv[1:])  # which trackers copy
    return run_stage(config, stage, args.phase, against) if stage else run_all(config)
