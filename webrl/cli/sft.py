"""`webrl sft`: options, defaults, and the lines at the end."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from webrl.cli.launch import joined
from webrl.cli.options import add_config_arguments, resolve_config
from webrl.errors import UsageError
from webrl.llm.check import check_model
from webrl.llm.loading import check_sight
from webrl.preflight import check_inputs, check_output
from webrl.sft import check_data, train_start
from webrl.training.metrics import TrainingPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_config_arguments(parser, prefer_newest=False, sections=("sft", "training", "models", "rollout", "tasks"))
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="PATH",
        help="demonstrations: trajectories.jsonl, a phase or run folder, a VAB result folder, a released .pt file,\n"
        "or JSONL of instruction and steps (observation, response) (default: RUN/demos, of `webrl record-demos`)",
    )
    parser.add_argument("--init", metavar="DIR", help="base model, folder or hub name (default: models.actor)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the trained model (default: RUN/sft)")


def main(args: argparse.Namespace) -> int:
    """Train, on all processes of the job (`run_multinode.sh sft`); gives the exit code.

    Raises:
        UsageError: no `--data`, and no demonstrations recorded for this run; or options that have not been tried with
            screenshots.
        ExtraMissing: a package that the training wants is not there.
        ModelError: the base model cannot be loaded, or cannot read what it is to be shown.
    """
    config = resolve_config(args, prefer_newest=False)
    data: Sequence[Path] = args.data or [config.run_dir / "demos"]
    if not args.data and not data[0].is_dir():
        raise UsageError(
            f"no demonstrations: {data[0]} does not exist; record some with `webrl record-demos`, or name them "
            "with --data"
        )
    paths = TrainingPaths(tuple(data), args.init or config.models.actor, args.out or config.run_dir / "sft")
    print(f"data   {', '.join(map(str, paths.data))}\nbase   {paths.init}\nmodel  {paths.out}", flush=True)
    sees, untried = config.rollout.sees, config.sft.untried_with_screenshots
    if not args.dry_run:
        check_inputs(config, ("sft",))
        check_sight(config, paths.init)
    check_model(paths.init, sees=sees, prompt_format=config.models.prompt_format, use="training")
    if args.dry_run:
        return 0
    check_output(config.sft, paths.init, paths.out)
    if sees and untried:
        raise UsageError(f"rollout.image_size is not supported yet with sft.{', sft.'.join(untried)}")
    check_data(config, paths)
    from webrl.runs.lock import hold_output

    with joined(config, hold_output(paths.out)):
        report = train_start(config, paths)
    if not report:  # not the main process
        return 0
    print("demonstrations " + ", ".join(f"{n} {kind}" for kind, n in report["demonstrations"].items()))
    print(f"examples {report['examples']} (held out: {report['heldout']})")
    losses = report["losses"]
    if losses:
        print(f"loss {losses['sft_loss']:.4f} (mean over {losses['sft_steps']} steps)")
    else:
        print("the model already exists; remove its folder to train it again")
    if "sft_val_loss" in losses:
        print(f"validation loss {losses['sft_val_loss']:.4f}")
    print(f"report {paths.report / 'report.json'}")
    return 0
