"""What the stage subcommands print around the calls to `webrl.phase`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from webrl import phase as phases
from webrl.api import run
from webrl.config import RunConfig, plugins
from webrl.config.extras import require
from webrl.errors import DataError, ExtraMissing, UsageError
from webrl.evaluate import difference_text, named_rates, page_difference, success_rate
from webrl.llm.servers.vllm_fleet import keep_servers
from webrl.preflight import check_inputs, check_models, check_rollouts, check_tasks, room_text, run_bytes, wanted_extras
from webrl.replay.demonstrations import check_demonstrations
from webrl.reports.run import overview_table, phase_table, rate_text
from webrl.reports.trackers import open_trackers
from webrl.rollouts.suite import find_suite
from webrl.runs.folder import RunFolder
from webrl.runs.lock import hold_run
from webrl.runs.store import read_json, read_records
from webrl.training.topology import local_processes
from webrl.types import Trajectory


def show_plan(config: RunConfig, stage: str | None, phase: int | None, against: str | None = None) -> int:
    """Print for `--dry-run` the whole config, and as its comments what is done, what is to do and what is missing.

    Files and optional packages that this machine lacks are named and not refused: the run may be for another machine.

    Raises:
        UsageError, DataError: as of `check_rollouts` and `check_tasks`, or a demonstration cannot be read.
        ModelError: a model that it starts from, or that it is held `against`, cannot be loaded.
    """
    stages = [stage] if stage else list(phases.STAGES)
    check_rollouts(config, stages)
    missing = list[str]()
    try:
        check_tasks(config, stages)
    except ExtraMissing:
        pass  # named below
    except (UsageError, DataError) as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        missing.append(str(error))
    if "replay" in stages:
        check_demonstrations(config)
    away = check_models(config, stages)
    if against is not None and isinstance(other := evaluated_by(config, against), RunConfig):
        away += check_models(other, ("eval",))
    missing += [f"the model {name!r} (hf download {name})" for name in away]
    print(f"# plan of {config.run_dir}")
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")
    print("\n".join(phases.plan(config, stage, phase)))
    if stage in (None, "rollout") and config.num_phases:
        tasks, attempts = config.max_phase_tasks, config.rollout.num_generations
        print(f"# a phase after 0 plays at most {tasks} tasks x {attempts} = {tasks * attempts} episodes")
    if stage in (None, "train") and (processes := local_processes(config)) > 1:
        print(f"# trains by {processes} processes on this machine")
    if stage is None and (need := run_bytes(config)) is not None:
        print(f"# the run {room_text(config.run_dir, need)[0]}")
    for name, wanted_by in wanted_extras(config, stages):
        try:
            require(name, wanted_by)
        except ExtraMissing as error:
            missing.append(str(error))
    if stage in (None, "label") and (text := config.label.system_prompt) and not text.is_file():
        missing.append(f"label.system_prompt={text}")
    print("".join(f"# missing on this machine: {what}\n" for what in missing), end="")
    return 0


def run_stage(config: RunConfig, stage: str, phase: int | None, against: str | None = None) -> int:
    """Run one stage and print its counts; of an evaluation `against` another one, how the two differ as well."""
    check_inputs(config, (stage,))
    other = None if against is None else evaluated_by(config, against)
    if isinstance(other, RunConfig):
        check_inputs(other, ("eval",))
    if other is not None and phase is None:
        phase = phases.next_phase(RunFolder(config.run_dir), "eval")
    with keep_servers():  # the second model's weights go into the servers of the first
        with hold_run(config.run_dir), open_trackers(config):
            counts = phases.run_stage(config, stage, phase)
        if isinstance(other, RunConfig):
            phases.run_stage(other, "eval", 0)
            other = RunFolder(other.run_dir).phase(0).eval
    if text := find_suite(config.tasks.suite).describe(counts):
        print(text, file=sys.stderr)  # standard output stays JSON
    for name, rate in named_rates(counts).items() if stage == "eval" and other is None else ():
        if rate.get("episodes"):
            print(f"{name}: {rate_text(rate)}", file=sys.stderr)
    if other is not None and phase is not None:
        parts = compare(config, phase, other)
        counts = {**counts, "against": parts}
        print(f"against {parts['of']}", file=sys.stderr)
        for name, found in parts.items():
            if name != "of":  # held-out seeds: 198/234 = …, other 206/234 = …; −3.4 points [−7.1, 0.2], paired …
                rates = f"{rate_text(found['this'])}, other {rate_text(found['other'])}"
                print(f"{name}: {rates}; {difference_text(found)} over {found['tasks']} pages", file=sys.stderr)
    print(json.dumps(counts, indent=2, ensure_ascii=False, default=str))
    return 0


def evaluated_by(config: RunConfig, against: str) -> Path | RunConfig:
    """What `--against` names: the evaluation of a phase folder or of a run's newest evaluated phase, or, of a model,
    the run that evaluates it. Raises UsageError for no such folder, and for a run without a finished evaluation.
    """
    path, folder = Path(against), RunFolder(Path(against))
    if (path / "eval.jsonl").is_file():
        return path / "eval.jsonl"
    if folder.config.is_file():
        evaluated = [k for k in range(folder.last_phase() + 1) if folder.phase(k).is_done("eval")]
        if not evaluated:
            raise UsageError(f"--against {against}: no phase of this run has been evaluated to the end")
        return folder.phase(evaluated[-1]).eval
    if "/" not in against and not path.exists():
        raise UsageError(f"--against {against}: no such folder; name a run's, a phase's or a model's, or OWNER/NAME")
    models = config.models.model_copy(update={"actor": against})
    return config.model_copy(update={"name": f"{config.name}-against-{path.name}", "models": models})


def run_all(config: RunConfig) -> int:
    """Run everything; a table after each phase, an overview and a report at the end."""
    width = None if sys.stdout.isatty() else 140  # without a terminal, tables are not squeezed to 80 columns
    console = Console(file=sys.stdout, soft_wrap=False, width=width, highlight=False)
    console.print(f"run folder {config.run_dir}, phases 0 to {config.num_phases}, seed {config.seed}", highlight=False)

    def on_phase(summary: dict[str, Any]) -> None:
        console.print(phase_table(summary))
        if text := find_suite(config.tasks.suite).describe(summary["eval"]):
            print(text)

    folder = run(config, on_phase=on_phase)
    console.print(overview_table(read_json(folder.summary)["phases"]))
    console.print(f"summary  {folder.summary}", highlight=False)
    if write_report := plugins.hook("report"):
        report = folder.path / "report.html"
        write_report([folder.path], report)
        console.print(f"report   {report}", highlight=False)
    return 0


def compare(config: RunConfig, phase: int, found: Path) -> dict[str, Any]:
    """Both rates and their difference (this minus other), by part. Raises DataError for other pages, or no verdicts."""
    mine = RunFolder(config.run_dir).phase(phase).eval
    first, second = (list(read_records(path, Trajectory)) for path in (mine, found))
    pages = []
    for side in (first, second):
        texts = [(f"{t.task.site} {t.task.task_id} seed {t.task.seed}", t.task.instruction) for t in side]
        pages.append(sorted(text if said is None else f"{text} {said!r:.100}" for text, said in texts))
    if pages[0] != pages[1]:
        differing = sorted(set(pages[0]) ^ set(pages[1])) or ["pages that were played twice"]
        raise DataError(
            f"{found} and {mine}: {len(differing)} pages are not in both, such as {differing[0]}; a paired comparison "
            "needs the same `seed` and `tasks` in both evaluations"
        )
    parts: dict[str, Any] = {"of": str(found)}
    for name, heldout in (("held-out seeds", False), ("held-out types", True)):
        here, there = ([t for t in side if (t.task.split == "eval_heldout") is heldout] for side in (first, second))
        if not here:
            continue
        if (difference := page_difference(here, there)) is None:
            raise DataError(f"{found} and {mine}: no page of the {name} has a verdict in both")
        parts[name] = {"this": success_rate(here).to_json(), "other": success_rate(there).to_json(), **difference}
    return parts
