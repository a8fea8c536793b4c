"""`webrl eval … --against OTHER`: another model, or a finished evaluation, on the same pages, compared page by page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from webrl import phase as phases
from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.evaluate import page_difference, success_rate
from webrl.llm.loading import check_sight
from webrl.reports.run import rate_text
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records
from webrl.suites.mix import by_suite
from webrl.types import Task, Trajectory


def find_other(config: RunConfig, other: str) -> Path | RunConfig:
    """The episodes of a phase folder, or of a run's newest evaluated phase; of a model, the run that evaluates it.

    Raises:
        UsageError: a run folder without a finished evaluation.
        ModelError: it is no folder of a run and no model either.
    """
    path = Path(other)
    if (path / "eval.jsonl").is_file():
        return path / "eval.jsonl"
    run = RunFolder(path)
    if run.config.is_file():
        evaluated = [k for k in range(run.last_phase() + 1) if run.phase(k).is_done("eval")]
        if not evaluated:
            raise UsageError(f"--against {other}: no phase of this run has been evaluated to the end")
        return run.phase(evaluated[-1]).eval
    check_sight(config, other)
    models = config.models.model_copy(update={"actor": other})
    return config.model_copy(update={"name": f"{config.name}-against-{path.name}", "models": models})


def compare(config: RunConfig, phase: int, found: Path | RunConfig) -> dict[str, Any]:
    """Both rates and their paired difference (the first minus the other), by part of the evaluation.

    Raises:
        DataError: the two were evaluated on other pages, or no page has a verdict in both.
    """
    if isinstance(found, RunConfig):
        phases.run_stage(found, "eval", 0)
        found = RunFolder(found.run_dir).phase(0).eval
    mine = RunFolder(config.run_dir).phase(phase).eval
    first, second = (list(read_records(path, Trajectory)) for path in (mine, found))

    def page(task: Task) -> str:
        text = f"{task.site} {task.task_id} seed {task.seed}"
        return text if task.instruction is None else f"{text} {task.instruction!r:.100}"

    pages = [sorted(page(t.task) for t in side) for side in (first, second)]
    if pages[0] != pages[1]:
        differing = sorted(set(pages[0]) ^ set(pages[1])) or ["pages that were played twice"]
        raise DataError(
            f"{found}: {len(differing)} of its pages and those of {mine} are not in both, such as {differing[0]}; a "
            "paired comparison needs the same `seed` and `tasks` in both evaluations"
        )
    parts: dict[str, Any] = {"of": str(found)}
    groups = [by_suite(side, config.tasks.suite) for side in (first, second)]
    for suite in groups[0]:
        for split, name in (("eval", "held-out seeds"), ("eval_heldout", "held-out types")):
            here, there = (
                [t for t in group[suite] if (t.task.split == "eval_heldout") == (split == "eval_heldout")]
                for group in groups
            )
            if not here:
                continue
            difference = page_difference(here, there, config.evaluate.confidence)
            if difference is None:
                raise DataError(f"{found} and {mine}: no page of the {name} has a verdict in both")
            rates = [success_rate(side, config.evaluate.confidence).to_json() for side in (here, there)]
            parts[f"{suite}: {name}" if suite else name] = {"this": rates[0], "other": rates[1], **difference}
    return parts


def describe(parts: dict[str, Any]) -> list[str]:
    """Lines of a comparison: `held-out seeds: 198/234 = …, other 206/234 = …; −3.4 points [−7.1, 0.2], paired`."""
    lines = [f"against {parts['of']}"]
    for name, found in parts.items():
        if name != "of":
            points = [100 * value for value in (found["difference"], *found["ci95"])]
            lines.append(
                f"{name}: {rate_text(found['this'])}, other {rate_text(found['other'])}; {points[0]:+.1f} points "
                f"[{points[1]:+.1f}, {points[2]:+.1f}], paired over {found['tasks']} pages"
            )
    return lines
