"""The config on the command line: which file, which overrides, which run folder; and its options in `--help`."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.config import RunConfig, describe_options, load_config
from webrl.config.resources import find_config, is_file
from webrl.errors import UsageError
from webrl.runs.folder import RunFolder, load_run_config, newest_run

COMMON = frozenset({
    "name", "seed", "num_phases", "tasks.suite", "tasks.source", "tasks.num_seed_tasks", "tasks.num_eval_tasks",
    "models.actor", "models.orm", "models.generator", "models.prompt_format", "models.max_prompt_tokens",
    "engine.kind", "engine.urls", "training.precision", "training.lora_rank", "training.max_tokens",
    "generate.num_tasks", "filter.max_tasks", "rollout.num_workers", "rollout.envs_per_worker", "rollout.max_steps",
    "rollout.num_generations", "rollout.image_size", "label.judge", "replay.demos", "actor.objective", "actor.lr",
    "actor.batch_size", "actor.epochs", "actor.imitation", "sft.lr", "sft.epochs", "sft.batch_size",
    "evaluate.temperature",
})  # fmt: skip
"""Options that `--help` lists without a section."""


def add_config_arguments(
    parser: argparse.ArgumentParser, *, prefer_newest: bool, phased: bool = False, sections: Sequence[str] = ()
) -> None:
    """Add the arguments that every subcommand with a config takes.

    Args:
        prefer_newest: as in `resolve_config`.
        sections: of the config, which the help shows; none: all.
    """
    add_section_help(parser, sections)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG | key=value",
        help="a YAML file or the name of a shipped config, and overrides such as actor.lr=1e-5;\n"
        f"without a CONFIG: {'the config of the newest run folder, or ' if prefer_newest else ''}the shipped demo",
    )
    parser.add_argument("--run", type=Path, metavar="DIR", help="run folder (default: runs_dir/name of the config)")
    if phased:
        parser.add_argument("--phase", type=count, metavar="N", help="phase (default: the first that needs this stage)")
    parser.add_argument("--seed", type=count, metavar="N", help="the same as seed=N")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, run nothing")


def parse_around_options(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Call `parser.parse_args`, but with settings on both sides of an option, and after the paths of `--data`."""
    args, rest = parser.parse_known_args(arguments)
    if rest and not hasattr(args, "settings"):
        parser.error(f"unrecognized arguments: {' '.join(rest)}; `{parser.prog} --help` lists the known ones")
    if rest:
        args.settings += rest
    if words := getattr(args, "data", None):
        settings = [word for word in words if "=" in word and not Path(word).exists()]
        args.settings += settings
        args.data = [Path(word) for word in words if word not in settings]
    return args


def names_run(args: argparse.Namespace) -> bool:
    """Return whether `args` say which config or run is meant, by a CONFIG, `--run` or `name=`."""
    return args.run is not None or any("=" not in s or s.startswith("name=") for s in args.settings)


def split_settings(settings: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the CONFIG among them, and the overrides; UsageError for two CONFIGs."""
    names = [s for s in settings if "=" not in s]
    if len(names) > 1:
        raise UsageError(f"one CONFIG at most, found {', '.join(map(repr, names))}; overrides have the form key=value")
    return next(iter(names), None), [s for s in settings if "=" in s]


def resolve_config(args: argparse.Namespace, *, prefer_newest: bool) -> RunConfig:
    """Return the config that `args` name.

    Args:
        prefer_newest: without a name the newest run folder's, if there is one, before the shipped demo.

    Raises:
        UsageError: two configs, no such config, a `--run` folder without config, an unknown key or bad value.
    """
    from webrl.preflight import check_settings

    name, overrides = split_settings(args.settings)
    if args.seed is not None:
        overrides.append(f"seed={args.seed}")
    if args.run is not None:
        folder = args.run.absolute() if args.run.name in ("", "..") else args.run
        overrides += [f"runs_dir={json.dumps(str(folder.parent))}", f"name={json.dumps(folder.name)}"]
    run = None  # the run folder whose settings apply where no CONFIG is given
    if name is None and args.run is not None:
        if is_file(args.run / "config.yaml"):
            run = RunFolder(args.run)
        elif prefer_newest or RunFolder(args.run).last_phase() >= 0:
            hint = "start one with `webrl run`, or name the CONFIG that this one was made with"
            raise UsageError(f"{str(args.run)!r:.200} is not a run folder (no config.yaml); {hint}")
    elif name is None and prefer_newest and not any(o.startswith("name=") for o in overrides):
        runs_dir = next((o.partition("=")[2] for o in reversed(overrides) if o.startswith("runs_dir=")), "runs")
        if run := newest_run(Path(runs_dir)):
            print(f"webrl: newest run folder: {run.path}", file=sys.stderr)
    path = run.config if run else find_config("demo" if name is None else name)
    config = load_run_config(run, overrides) if run else load_config(path, overrides)
    check_settings(config, f"{path}{' and the command line' if overrides else ''}")
    return config


def add_section_help(parser: argparse.ArgumentParser, sections: Sequence[str]) -> None:
    """`--help` with the options that people change, `--help-all` and `--help SECTION` with all, or a section's."""
    parser.add_argument(
        "-h",
        "--help",
        action=SectionHelp,
        nargs="?",
        metavar="SECTION",
        const=tuple(sections),
        help="show this help; with SECTION, all options of that section",
    )
    parser.add_argument(
        "--help-all", action=SectionHelp, nargs=0, const=tuple(sections), help="show this help with all options"
    )


class SectionHelp(argparse.Action):
    """Prints the parser's help with options of the config below it (of the sections `const`), and ends the program."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, asked: Any, name: str | None = None
    ) -> None:
        """Print the text for `--help`, `--help SECTION` or `--help-all`."""
        del namespace
        if name == "--help-all":
            text = describe_sections(self.const)
        elif asked is self.const:  # no SECTION was named
            text = describe_sections(self.const, common=True)
        elif asked in RunConfig.model_fields:
            text = describe_sections((asked,))
        else:
            parser.error(f"--help {asked!r}: a SECTION is one of {', '.join(section_names())}")
        print(f"{parser.format_help().rstrip()}\n\n{text}")
        parser.exit()


def section_names() -> list[str]:
    """Sections of the config, in their order."""
    return list(dict.fromkeys(key.partition(".")[0] for o in describe_options() for key in o.keys if "." in key))


def describe_sections(sections: Sequence[str], *, common: bool = False) -> str:
    """Options of the named sections and the top level, with default and description; all without names.

    `common`: those of `COMMON` alone.
    """
    defaults = RunConfig()
    indent = "      "
    wrapper = textwrap.TextWrapper(112, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    lines = ["config options (key=value), with the defaults that a config file overrides:"]
    for option in describe_options():
        keys = [key for key in option.keys if "." not in key or not sections or key.partition(".")[0] in sections]
        if common:
            keys = [key for key in keys if key in COMMON]
        if not keys:
            continue
        choices = " | ".join(option.choices)
        lines.append(f"  {keys[0]}={default_text(defaults, keys[0])}")
        lines += wrapper.wrap(f"{option.description}{f' ({choices})' if choices else ''}")
        others = [f"{key}={default_text(defaults, key)}" for key in keys[1:]]
        if others:
            lines += wrapper.wrap(f"also {', '.join(others)}")
    if common:
        lines.append(f"all options: --help-all, or --help SECTION: {', '.join(sections or section_names())}")
    return "\n".join(lines)


def default_text(defaults: RunConfig, key: str) -> str:
    """Return an option's default as `--help` and the reference page show it."""
    value: Any = defaults
    for part in key.split("."):
        value = getattr(value, part)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value) if isinstance(value, str | Path) else json.dumps(value, ensure_ascii=False, default=str)


def count(text: str) -> int:
    """Type of an option that counts: a whole number of 0 or more."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)
