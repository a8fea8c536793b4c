"""`webrl train-orm`: options, defaults and the table at the end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from webrl.cli.options import add_config_arguments, resolve_config
from webrl.errors import UsageError
from webrl.llm.check import check_model
from webrl.preflight import check_inputs, check_output
from webrl.reward.labels import undecided_sites
from webrl.runs.folder import RunFolder
from webrl.training.metrics import TrainingPaths


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    add_config_arguments(parser, prefer_newest=True, sections=("orm", "training", "label", "models"))
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="PATH",
        help="judged episodes: trajectories.jsonl with environment rewards (or a folder with one),\n"
        "VAB result folders, or JSONL of instruction, responses, final_page, success\n"
        "(default: rollouts and evaluation episodes of the newest run)",
    )
    parser.add_argument("--init", metavar="DIR", help="model to start from (default: models.orm)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the new model (default: RUN/orm)")


def main(args: argparse.Namespace) -> int:
    """Train, print the report; gives the exit code."""
    config = resolve_config(args, prefer_newest=True)
    if not args.dry_run:
        check_inputs(config, ("train-orm",))
    check_model(args.init or config.models.orm, sees=False, prompt_format=config.label.prompt_format, use="training")
    from webrl.reward.train import check_data, train_orm
    from webrl.runs.lock import hold_output

    data = tuple(args.data or ())
    if not data:
        run = RunFolder(config.run_dir)
        phases = [run.phase(k) for k in range(run.last_phase() + 1)]
        data = tuple(path for phase in phases for path in (phase.trajectories, phase.eval) if path.is_file())
        if not data:
            raise UsageError(f"{run.path} has no episodes; name judged data with --data")
    paths = TrainingPaths(data, args.init or config.models.orm, args.out or config.run_dir / "orm")
    print(f"data   {', '.join(map(str, data))}\nstart  {paths.init}\nmodel  {paths.out}", flush=True)
    if args.dry_run:
        return 0
    check_output(config.orm, paths.init, paths.out)
    check_data(paths)
    with hold_output(paths.out):
        report = train_orm(config, paths)
    print("\n".join(describe_report(report)))
    print(f"report {paths.report / 'report.json'}")
    return 0


def describe_report(report: dict[str, Any]) -> list[str]:
    """Return the lines of the report: examples, and each figure, proportions with their interval."""
    lines = ["examples " + ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in report["data"].items())]
    figures = report.get("heldout")
    if not figures:
        return lines
    lines.append(f"held out: {figures['num']} episodes, {figures['num_success']} successes")
    for key in ("accuracy", "balanced_accuracy", "precision", "recall", "auc"):
        figure = figures[key]
        if figure["value"] is not None:
            interval = "  [{:.3f}, {:.3f}]".format(*figure["ci95"]) if figure["ci95"] else ""
            lines.append(f"  {key.replace('_', ' '):<18} {figure['value']:.3f}{interval}")
    for site in undecided_sites(figures["by_site"]):
        n = figures["by_site"][site]
        right = f"{n['num_agree']} of {n['num']} right with {n['num_success']} successes"
        lines.append(f"  {site}: {right}, no better than a constant")
    return lines
