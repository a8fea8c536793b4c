"""What the stage subcommands print around the calls to `webrl.phase`."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import yaml
from rich.console import Console

from webrl import phase as phases
from webrl.api import run
from webrl.config import RunConfig, plugins
from webrl.config.extras import check_extras
from webrl.preflight import check_inputs, check_models
from webrl.reports.relay import Relay
from webrl.reports.run import overview_table, phase_table, site_table
from webrl.reports.trackers import open_trackers
from webrl.reward.system_text import describe as describe_text
from webrl.rollouts.suite import find_suite
from webrl.runs.folder import RunFolder
from webrl.runs.lock import hold_run
from webrl.runs.memory import pass_over_what_is_loaded
from webrl.runs.store import read_json


def show_plan(config: RunConfig, stage: str | None, phase: int | None) -> int:
    """Print for `--dry-run` what would run and what is done, the episodes of a phase, then the resolved config.

    Raises:
        ModelError: a model that it starts from cannot be loaded.
    """
    check_models(config, (stage,) if stage else [spec.name for spec in phases.STAGES])
    print(f"# plan of {config.run_dir}")
    for line in phases.plan(config):
        number, name = line.removeprefix("phase ").split()[:2]
        if stage in (None, name) and phase in (None, int(number.rstrip(":"))):
            print(line)
    if stage in (None, "rollout") and config.num_phases:
        tasks, attempts = config.max_phase_tasks, config.rollout.num_generations
        print(f"# a phase after 0 plays at most {tasks} tasks x {attempts} = {tasks * attempts} episodes")
    if stage in (None, "label") and config.label.system_prompt:
        print(f"# label.system_prompt: {describe_text(config.label.system_prompt)}")
    print("# resolved config")
    print(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")
    return 0


def run_stage(config: RunConfig, stage: str, phase: int | None, against: str | None = None) -> int:
    """Run one stage and print its counts; of an evaluation `against` another one, how the two differ as well."""
    check_extras(config, (stage,))
    check_inputs(config, (stage,))
    other = None
    if against is not None:
        from webrl.cli.against import compare, describe, find_other

        other = find_other(config, against)
        if phase is None:
            phase = phases.next_phase(RunFolder(config.run_dir), phases.STAGES[-1])
    with hold_run(config.run_dir), open_trackers(config) as trackers, Relay(config.run_dir, trackers):
        counts = phases.run_stage(config, stage, phase)
    _describe(config, counts, sys.stderr)  # standard output stays JSON
    if other is not None and phase is not None:
        counts = {**counts, "against": compare(config, phase, other)}
        print("\n".join(describe(counts["against"])), file=sys.stderr)
    print(json.dumps(counts, indent=2, ensure_ascii=False, default=str))
    return 0


def run_all(config: RunConfig) -> int:
    """Run everything; a table after each phase, an overview and a report at the end."""
    console = output()
    console.print(f"run folder {config.run_dir}, {config.num_phases} phases, seed {config.seed}", highlight=False)

    def on_phase(summary: dict[str, Any]) -> None:
        console.print(phase_table(summary))
        _describe(config, summary["eval"], sys.stdout)
        pass_over_what_is_loaded()

    show_results(run(config, on_phase=on_phase))
    return 0


def show_results(folder: RunFolder) -> None:
    """Overview, success by task type, and where the files are."""
    console = output()
    summaries = read_json(folder.summary)["phases"]
    console.print(overview_table(summaries))
    by_site = site_table(summaries)
    if by_site is not None:
        console.print(by_site)
    console.print(f"summary  {folder.summary}", highlight=False)
    if write_report := plugins.hook("report"):
        report = folder.path / "report.html"
        write_report([folder.path], report)
        console.print(f"report   {report}", highlight=False)


def _describe(config: RunConfig, counts: dict[str, Any], file: TextIO) -> None:
    """What the suites print of an evaluation."""
    for suite in map(find_suite, config.tasks.suites):
        if text := suite.describe(counts.get("by_suite", {}).get(suite.name, counts)):
            print(text, file=file)


def output() -> Console:
    """Standard output; tables are not squeezed to 80 columns where there is no terminal."""
    return Console(file=sys.stdout, soft_wrap=False, width=None if sys.stdout.isatty() else 140, highlight=False)
