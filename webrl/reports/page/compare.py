"""Runs beside each other: success by phase, differences task by task where the tasks are the same, and settings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from webrl.config import SHARED, RunConfig, share
from webrl.evaluate import by_suite, is_decided, is_success, paired_cells, paired_difference
from webrl.reports.page.charts import Table
from webrl.reports.page.facts import PhaseFacts, RunFacts, phase_names

_NAMES = ("name", "runs_dir")
"""Settings that say where a run lies, not what it does."""


def flatten(data: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value; lists are values."""
    if not isinstance(data, dict) or not data:
        return {prefix[:-1]: data} if prefix else {}
    return {key: value for name, part in data.items() for key, value in flatten(part, f"{prefix}{name}.").items()}


def settings_table(run: RunFacts) -> Table:
    """What a run's config says otherwise than the defaults do."""
    defaults = flatten(share(RunConfig().model_dump(mode="json")))
    shared = flatten(share({name: run.config[name] for name in SHARED if name in run.config}))
    expected = defaults | {key: value for key, value in shared.items() if key.partition(".")[0] not in SHARED}
    rows: list[tuple[object, ...]] = [
        (key, _text(value), _text(defaults[key]) if key in defaults else "no such setting today")
        for key, value in flatten(share(run.config)).items()
        if key not in _NAMES and (key not in expected or expected[key] != value)
    ]
    return Table(("setting", "this run", "default"), rows, is_wide=True)


def differences(runs: Sequence[RunFacts]) -> Table:
    """Settings that are not the same in all runs."""
    flat = [flatten(share(run.config)) for run in runs]
    keys = dict.fromkeys(key for run in runs for key in flatten(run.config) if key not in _NAMES)
    rows: list[tuple[object, ...]] = []
    for key in keys:
        texts = [_text(config[key]) if key in config else "not set" for config in flat]
        if len(set(texts)) > 1:
            rows.append((key, *texts))
    return Table(("setting", *(run.name for run in runs)), rows)


def paired(runs: Sequence[RunFacts]) -> tuple[Table | None, list[str]]:
    """Held-out success of each further run against the first, task by task, and which of them cannot be paired, why.

    A phase is paired if both evaluated the same tasks in it, each as often; else nothing is averaged over the two. Of
    several suites each has a row of its own.
    """
    first, rows = runs[0], []
    refused: dict[str, list[int]] = defaultdict(list)
    for run in runs[1:]:
        others = {phase.phase: phase for phase in run.phases}
        for phase in first.phases:
            other = others.get(phase.phase)
            if other is None or not (phase.counts("eval") and other.counts("eval")):
                continue
            if not (phase.evaluated and other.evaluated):
                refused[f"{run.name} and {first.name}: the episodes of an evaluation are not there"].append(phase.phase)
                continue
            mine, theirs = _outcomes(phase), _outcomes(other)
            if mine.keys() != theirs.keys():
                shared = len(mine.keys() & theirs.keys())
                counts = f"{len(theirs)} and {len(mine)}, {shared} in common"
                text = f"{run.name} and {first.name}: other evaluation tasks ({counts}); beside each other, not paired"
                refused[text].append(phase.phase)
                continue
            undecided = [sum(outcome is None for outcome in side.values()) for side in (theirs, mine)]
            if any(undecided):
                counts = " and ".join(map(str, undecided))
                text = f"{run.name} and {first.name}: {counts} of the episodes have no reward"
                refused[text + "; beside each other, not paired"].append(phase.phase)
                continue
            for suite in sorted({name[0] for name in mine}):
                pairs = Counter((theirs[name], mine[name]) for name in mine if name[0] == suite)
                difference, low, high = paired_difference(*paired_cells(pairs))
                rows.append((
                    f"{run.name} − {first.name}" + (f", {suite}" if suite else ""), phase.phase, pairs.total(),
                    pairs[True, False], pairs[False, True],
                    f"{100 * difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]",
                ))  # fmt: skip
    head = ("runs", "phase", "tasks", "solved by the first alone", "by the second alone", "difference in points, 95 %")
    return (Table(head, rows) if rows else None), [f"{t}; {phase_names(phases)}" for t, phases in refused.items()]


def _outcomes(phase: PhaseFacts) -> dict[tuple[str, str, int], bool | None]:
    """Success by (suite, or "" where there is one, task, how many times it came before), None without a verdict;
    held-out types are tasks like others.

    Two sites of one's own may name their tasks alike: what a task says is a part of which it is.
    """
    seen: Counter[str] = Counter()
    suites = by_suite(phase.counts("eval"))
    found: dict[tuple[str, str, int], bool | None] = {}
    for attempt in sorted(phase.evaluated, key=lambda a: a.trajectory.trajectory_id):
        task, tried = attempt.task, attempt.trajectory
        name = repr((task.task_id, task.site, task.seed, task.instruction, task.start_url, sorted(task.extra.items())))
        suite = "" if "" in suites else task.site.partition(".")[0]
        found[suite, name, seen[name]] = is_success(tried) if is_decided(tried) else None
        seen[name] += 1
    return found


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
