"""`webrl study`: options, the plan, and where the tables are."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from webrl.cli.options import count
from webrl.config.redaction import redact_argument
from webrl.config.resources import find_config
from webrl.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("study", metavar="CONFIG", help="a study's YAML, or the name of a shipped one (study_demo)")
    parser.add_argument(
        "settings",
        nargs="*",
        default=[],
        metavar="key=value",
        help="settings of every cell's run, over the study's `overrides`",
    )
    parser.add_argument("--runs-dir", type=Path, metavar="DIR", help="where the study's folder is made (default: runs)")
    parser.add_argument("--name", metavar="NAME", help="name of the study's folder (default: the config's)")
    parser.add_argument(
        "--parallel", type=count, metavar="N", help="cells at once (default: one per GPU, else one per two cores)"
    )
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these methods; the others keep their cells")
    parser.add_argument(
        "--seeds", nargs="+", type=_seed, metavar="N", help="seeds to run instead of the config's, such as 0 1 2"
    )
    parser.add_argument("--phases", type=count, metavar="N", help="phases after phase 0, not the config's num_phases")
    parser.add_argument("--report", action="store_true", help="write the tables of what has finished, run nothing")
    parser.add_argument("--dry-run", action="store_true", help="print the cells and their commands, run nothing")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; separate several by spaces: --seeds 0 1 2")
    return int(text)


def main(args: argparse.Namespace) -> int:
    """Run and report, or one of both; returns the exit code."""
    from webrl_study.plan import load_study

    if args.parallel == 0:
        raise UsageError("--parallel 0: at least one cell must run")
    changes = {
        "runs_dir": args.runs_dir and str(args.runs_dir),
        "name": args.name,
        "seeds": args.seeds,
        "num_phases": args.phases,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    study = load_study(find_config(args.study, "study"), given, args.methods, args.settings)
    if args.dry_run:
        from webrl.replay.demonstrations import check_demonstrations
        from webrl_study.cells import num_finished

        _check_demos(study)
        for cell in study.jobs:
            check_demonstrations(cell.config)
        kept, tasks = study.config, study.cells[0].config.tasks
        print(f"# {study.folder}: {len(kept.methods)} methods x {len(kept.seeds)} seeds, {kept.num_phases} phases")
        for cell in study.jobs:
            print(f"{cell.name}: {num_finished(cell)} of {cell.config.num_phases + 1} done")
            print(f"    webrl {shlex.join(map(redact_argument, cell.arguments))}")
        print(f"# each phase evaluated on {tasks.num_eval_tasks} held-out seeds, {tasks.num_heldout_tasks} types")
        return 0
    from webrl_study.cells import is_finished, num_cores, read_failures, run_cells
    from webrl_study.report import record_machine, write_report
    from webrl_study.results import read_results

    failures = read_failures(study.folder)
    if not args.report:
        from webrl.runs.lock import hold_run
        from webrl.runs.machine import visible_gpus

        parallel = args.parallel or len(visible_gpus()) or max(1, num_cores() // 2)
        print(f"study folder {study.folder}, {len(study.cells)} cells, {parallel} at once", flush=True)
        with hold_run(study.folder):
            _check(study)
            if not all(is_finished(job) for job in study.jobs):
                record_machine(study, parallel)
            failures = run_cells(study, parallel)
    results = read_results(study, failures)
    for name in write_report(study, results):
        print(study.folder / name)
    for result in results:
        if not result.is_finished:
            print(f"webrl: {result.cell.name}: {result.state}", file=sys.stderr)
    return 0 if args.report or all(result.is_finished for result in results) else 1


def _check(study: Any) -> None:
    """Refuse at once what every cell would refuse.

    Raises:
        WebRLError: a package or a model folder is not there, or a run folder was made with other settings.
    """
    from webrl.phase import STAGES
    from webrl.preflight import check_inputs
    from webrl_study.cells import check_config

    _check_demos(study)
    for cell in (*study.sfts, *study.starts, *study.cells):
        check_config(cell)
    for cell in study.jobs:
        config = cell.config
        if study.sfts:  # their start may be yet to be trained
            base = {"actor": study.sfts[0].config.models.actor}
            config = config.model_copy(update={"models": config.models.model_copy(update=base)})
        check_inputs(config, [*STAGES, "sft"] if cell.demos else STAGES)


def _check_demos(study: Any) -> None:
    for path in study.config.demos:
        if not path.exists():
            raise UsageError(
                f"demos: {str(path)!r} does not exist; name demonstrations of `webrl record-demos`, or none"
            )
