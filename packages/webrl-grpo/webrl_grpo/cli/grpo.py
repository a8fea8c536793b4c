"""`webrl grpo`: options by the public scripts' names, and the lines at the end."""

from __future__ import annotations

import argparse
import logging
import os
import typing
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from webrl.cli.options import split_settings
from webrl.config.resources import find_config
from webrl.errors import UsageError
from webrl_grpo.settings import ALIASES, GrpoSettings, load_settings

logger = logging.getLogger(__name__)
_VARIABLES = ("MODEL_ID", "BROWSERGYM_BASE_URL", "BROWSERGYM_TASK_NAME", "VLLM_ENDPOINT")
"""Variables that the first of the public scripts read."""
DEMO = "grpo_demo"
"""The config that is used if neither a config nor a model is given: the tiny actor."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one option per field, with its aliases."""
    parser.usage = "%(prog)s [CONFIG | key=value ...] [--OPTION X ...]"  # the list of 70 would hide an error below it
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="CONFIG | key=value",
        help="a YAML file of these options (the cookbook's files work unchanged) and overrides; without a CONFIG and\n"
        f"a model: the shipped {DEMO}",
    )
    names: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        names.setdefault(name, []).append(alias)
    for name, info in GrpoSettings.model_fields.items():
        flags = [f"--{n.replace('_', '-')}" for n in (name, *names.get(name, ()))]
        default = info.default
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        text = f"{info.description} (default: {'none' if shown in (None, '') else shown})".replace("%", "%%")
        options: dict[str, Any] = {"dest": f"option_{name}", "default": None, "help": text}
        if info.annotation in (bool, bool | None):
            parser.add_argument(*flags, action=argparse.BooleanOptionalAction, **options)
        elif name == "rewards":
            parser.add_argument(*flags, nargs="+", metavar="NAME=WEIGHT", **options)
        else:
            many = typing.get_origin(info.annotation) is tuple
            parser.add_argument(*flags, nargs="+" if many else None, metavar="X", **options)
    parser.add_argument(
        "--dry-run", action="store_true", help="check tasks and model and print the resolved options, run nothing"
    )


def main(args: argparse.Namespace) -> int:
    """Train; returns the exit code."""
    if ignored := [name for name in _VARIABLES if os.environ.get(name)]:
        logger.warning("%s in the environment: not read; give options instead (--help)", ", ".join(ignored))
    settings = resolve(args)
    from webrl.config.extras import require
    from webrl.llm.check import check_model
    from webrl.llm.loading import weight_files
    from webrl_grpo.train import check, make_tasks, train

    model = settings.model_name
    if args.dry_run:
        require("grpo", "webrl grpo")
        make_tasks(settings)
        check_model(model, use="training")
        print(yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False), end="")
        if not weight_files(model):
            print(f"# missing on this machine: the model {model!r} (hf download {model})")
        return 0
    name = Path(model).resolve().name if Path(model).is_dir() else model.strip("/").replace("/", "-")
    out = settings.output_dir or Path("runs") / f"grpo-{name}-{datetime.now().astimezone():%Y-%m-%d_%H-%M-%S}"
    if (out / "trajectories.jsonl").exists() and not settings.resume_from_checkpoint:
        raise UsageError(f"output_dir {str(out)!r} already holds a run; name another, or resume_from_checkpoint")
    from webrl.runs.lock import hold_output

    settings = check(settings)
    where = ", ".join(map(str, settings.browsergym_url)) or "local browsers"
    more = f" and {len(settings.task_name) - 3} more" if len(settings.task_name) > 3 else ""
    print(
        f"model  {settings.model_name}\ntasks  {settings.dataset_size} pages x {settings.num_generations} attempts of "
        f"{', '.join(settings.task_name[:3])}{more}, in {where}\noutput {out}",
        flush=True,
    )
    if not settings.save_interval:
        print("no checkpoints: Ctrl-C loses what was learned; --save-interval N saves it every N steps", flush=True)
    try:
        with hold_output(out):
            report = train(settings, out)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_continue(out)) from None
    print("\n".join(describe(report)))
    print(f"saved {out}\nThese rewards are from training pages: measure the model with `webrl eval` (docs/grpo.md)")
    return 0


def how_to_continue(out: Path) -> str:
    """Describe, after Ctrl-C, which options resume the training whose output is `out`."""
    saved = [path.parent for path in out.glob("checkpoint-*/trainer_state.json")]
    if not saved:
        return "no checkpoint was saved (--save-interval N saves them): start again, in another --output-dir"
    newest = max(saved, key=lambda path: int(path.name.removeprefix("checkpoint-")))
    return f"to resume: the same options, and --output-dir {out} --resume-from-checkpoint {newest}"


def resolve(args: argparse.Namespace) -> GrpoSettings:
    """Return the settings of command line and CONFIG. Raises UsageError for two CONFIGs, none of that name, an unknown
    key or a bad value.
    """
    config, overrides = split_settings(args.settings)
    given = {name: getattr(args, f"option_{name}") for name in GrpoSettings.model_fields}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    options |= {name: None for name, value in options.items() if value == "null"}
    if "rewards" in options:
        parts = (text.partition("=") for text in options["rewards"])
        options["rewards"] = {name: weight if equals else "1" for name, equals, weight in parts}
    names_model = "model_name" in options or {s.partition("=")[0] for s in overrides} & {"model_name", "model_id"}
    name = config if config is not None else None if names_model else DEMO
    path = find_config(name, "grpo") if name else None
    return load_settings(path, options, overrides)


def describe(report: dict[str, Any]) -> list[str]:
    """Format the report as lines."""
    from webrl_grpo.rows import Mean

    first, last = (Mean.from_json(report[key]) for key in ("reward_first", "reward_last"))
    lines = [f"mean reward, first {first}", f"mean reward, last  {last}"]
    if report["failed_episodes"]:
        lines.append(f"{report['failed_episodes']} episodes failed and were left out")
    if report["unreadable_left_out"]:
        lines.append(f"{report['unreadable_left_out']} answers that were not actions were not reinforced")
    lines += [f"taken back: {steps}" for steps in report["taken_back"]]
    return [*lines, f"ended early: {report['stopped']}"] if report["stopped"] else lines
