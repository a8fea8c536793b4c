"""One process of `run_multinode.sh`: trains the current phase of a run folder, the sample records of a clean clone, or
(`run_multinode.sh sft …`) the supervised start.

All processes go through the same calls; only the main one writes files and marks the stage as done.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.cli.command import Parser
from webrl.cli.launch import joined
from webrl.cli.options import add_config_arguments, names_run, parse_around_options, resolve_config
from webrl.config import RunConfig
from webrl.config.redaction import guard_output
from webrl.errors import WebRLError
from webrl.preflight import check_inputs
from webrl.runs.folder import newest_run

logger = logging.getLogger(__name__)
SAMPLES = Path("data/samples/experience")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; gives the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_sft = arguments[:1] == ["sft"]
    args = parse(arguments)
    is_first = os.environ.get("RANK", "0") in ("", "0")
    logging.basicConfig(level=logging.INFO if is_first else logging.WARNING, format="%(message)s")
    guard_output()
    from torch.distributed.elastic.multiprocessing.errors import record

    if is_sft:
        from webrl.cli.sft import main as train_sft
    run: Any = record(train_sft if is_sft else _run)  # the agent learns from it which rank failed first, and why
    try:
        run(args)
        return 0
    except WebRLError as error:
        logger.error("webrl: %s", error)
        return error.exit_code


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of `run_multinode.sh`, which begin with `sft` for the supervised start."""
    if arguments[:1] == ["sft"]:
        from webrl.cli.sft import add_arguments

        parser = Parser(prog="bash run_multinode.sh sft")
        add_arguments(parser)
        return parse_around_options(parser, arguments[1:])
    description = "Train the current phase on all processes of this job."
    parser = Parser(prog="bash run_multinode.sh", description=description)
    add_config_arguments(parser, prefer_newest=True, phased=True)
    return parse_around_options(parser, arguments)


def train_phase(config: RunConfig, phase: int | None) -> dict[str, Any]:
    """Run the train stage of a phase (default: the first that needs this stage), on all processes of the job."""
    from webrl import phase as phases
    from webrl import stages
    from webrl.runs.folder import RunFolder, open_run
    from webrl.training.topology import broadcast, is_main

    folder = open_run(config) if is_main() else RunFolder(config.run_dir)
    if phase is None and is_main():
        phase = phases.next_phase(folder, "train")
        begun = folder.phase(phase)
        if phase and not (begun.is_done("replay") or begun.trajectories.is_file()):  # begun by `gen_task.py` alone
            planned = max(phase, config.num_phases)
            logger.info(
                "%s has no rollouts yet: `webrl run --run %s num_phases=%d` plays and trains it",
                begun.path, folder.path, planned,
            )  # fmt: skip
            phase -= 1
    number = int(broadcast(phase))
    if broadcast(folder.phase(number).is_done("train")):
        logger.info("%s: training has finished already", folder.phase(number).path)
        return {}
    if is_main():
        return phases.run_stage(config, "train", number)
    return stages.train(stages.Context(config, folder, number))


def _run(args: argparse.Namespace) -> None:
    named = names_run(args)
    config = resolve_config(args, prefer_newest=True)
    samples = not named and newest_run(config.runs_dir) is None
    if args.dry_run:
        from webrl.cli.run import show_plan

        show_plan(config, "train", args.phase)
        return
    check_inputs(config, ("train",))
    from webrl.replay.sources import find_source, read_steps, tools_of
    from webrl.runs.lock import hold_output, hold_run
    from webrl.runs.problems import ProblemLog
    from webrl.training.scoring import score_actions, score_values
    from webrl.training.topology import is_main
    from webrl.training.update import train_actor, train_critic

    out = config.runs_dir / "samples"
    with joined(config, hold_output(out) if samples else hold_run(config.run_dir)):
        if samples:  # critic, values and actor, with the demo's actor; finished parts are kept
            actor, metrics = config.models.actor, out / "metrics.jsonl"
            source, tools = find_source(SAMPLES), tools_of(actor, config, ProblemLog())
            records = score_actions(list(read_steps(source, tools.judged(source))), actor, config)
            counts = train_critic(records, actor, out / "critic", config, seed=config.seed, metrics_path=metrics)
            scored = score_values(records, out / "critic", config)
            counts |= train_actor(scored, actor, out / "actor", config, seed=config.seed, metrics_path=metrics)
        else:
            counts = train_phase(config, args.phase)
        if is_main():
            where = f"sample records of the clone, written to {out}" if samples else f"run folder {config.run_dir}"
            logger.info("trained: %s", where)
            for name, value in counts.items():
                logger.info("  %s: %s", name, f"{value:.5g}" if isinstance(value, float) else str(value)[:200])


if __name__ == "__main__":
    sys.exit(main())
