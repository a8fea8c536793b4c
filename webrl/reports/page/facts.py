"""What a run folder holds, as far as it goes: records reduced to what is shown, and all that lacks, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from webrl.config.yaml_file import read_yaml
from webrl.errors import WebRLError
from webrl.phase import STAGES
from webrl.replay.select import action_perplexity
from webrl.reward.labels import read_labels
from webrl.runs.folder import PhaseFolder, require_run
from webrl.runs.progress import progress
from webrl.runs.store import read_json, read_lines, read_records
from webrl.tasks.filter import Dropped
from webrl.types import Label, Record, StepRecord, Task, Trajectory

R = TypeVar("R", bound=Record)
T = TypeVar("T")
NUM_SHOWN = 3
"""Bad lines of a file that are quoted; the others are counted."""
WRITES = {
    "gen-tasks": ("generated",),
    "filter-tasks": ("tasks",),
    "rollout": ("trajectories",),
    "label": ("labels",),
    "replay": ("train_filter",),
    "train": ("metrics",),
    "accept": (),
    "eval": ("eval",),
}
"""Of each stage, the files without which something is left out of the report (attributes of `PhaseFolder`)."""
_WORK = {"gen-tasks": ("num_generated",), "train": ("critic_steps", "actor_steps")}
"""Counts of stages that write nothing in a phase where all of these are 0: no curriculum, no critic."""


@dataclass(frozen=True)
class Attempt:
    """A trajectory without its pages."""

    trajectory: Trajectory
    """With neither steps nor final page."""
    num_steps: int
    prompt_tokens: int
    answer_tokens: int
    actions: tuple[str, ...]
    """The action of each step; what the model said where it was unreadable."""
    page: str
    """Start of the final page."""
    page_chars: int
    """Length of the whole final page."""

    @property
    def task(self) -> Task:
        """What was attempted."""
        return self.trajectory.task


@dataclass
class PhaseFacts:
    """One phase."""

    phase: int
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What each finished stage left."""
    generated: list[Task] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    filters: dict[str, Any] = field(default_factory=dict)
    """`filter_report.json`."""
    tasks: list[Task] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    evaluated: list[Attempt] = field(default_factory=list)
    labels: dict[str, Label] = field(default_factory=dict)
    perplexities: dict[str, list[float]] = field(default_factory=dict)
    """Of the steps that were trained on, by source."""
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Lines of `metrics.jsonl` by trainer, in order."""

    def counts(self, stage: str) -> dict[str, Any]:
        """What a stage counted; empty if it has not finished."""
        found = self.stages.get(stage, {}).get("counts")
        return found if isinstance(found, dict) else {}


@dataclass
class RunFacts:
    """One run."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    phases: list[PhaseFacts] = field(default_factory=list)
    notes: dict[str, list[int]] = field(default_factory=dict)
    """What a reader would look for in vain, and in which phases (none: in the run)."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.absolute().name

    @property
    def missing(self) -> list[str]:
        """What a reader would look for in vain, a line each."""
        return [f"{phase_names(phases)}: {text}" if phases else text for text, phases in self.notes.items()]

    def note(self, text: str, phase: int | None = None) -> None:
        """Add what is missing, of a phase or of the run."""
        self.notes.setdefault(text, []).extend([] if phase is None else [phase])

    def option(self, key: str, default: Any = None) -> Any:
        """A value of the config by its dotted key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value


def read_run(path: Path) -> RunFacts:
    """Read a run folder; what is broken or not there is named in `missing`.

    Raises:
        UsageError: it is no run folder.
    """
    folder = require_run(path)
    facts = RunFacts(path)
    facts.config = _try(facts, lambda: read_yaml(folder.config, "the run's config"), {})
    if not isinstance(facts.config, dict):
        facts.note(f"{folder.config.name} is not a mapping: no configuration is shown")
        facts.config = {}
    phases = [folder.phase(number) for number in range(folder.last_phase() + 1)]
    size = sum(path.stat().st_size for phase in phases for path in _files(phase))
    with progress(size, f"read {facts.name}", "B", leave=False) as bar:
        for phase in phases:
            read_phase(facts, phase, bar.update)
    planned = facts.option("num_phases")
    if isinstance(planned, int) and folder.last_phase() < planned:
        facts.note(f"the run was to have {planned} phases after phase 0 and has {max(folder.last_phase(), 0)}")
    return facts


def read_phase(run: RunFacts, folder: PhaseFolder, on_bytes: Callable[[int], Any] | None = None) -> None:
    """Add a phase to the facts of its run, or note that it is not there; `on_bytes` hears of each line's size."""
    if folder.path.is_dir():
        run.phases.append(_Reader(run, folder, on_bytes).read())
    else:
        run.note("there is no such folder", folder.phase)


def _files(folder: PhaseFolder) -> list[Path]:
    """The files of a phase that are read line by line, those that there are."""
    names = ("generated", "tasks", "dropped", "trajectories", "eval", "train_filter", "metrics")
    return [path for name in names if (path := getattr(folder, name)).is_file()]


class _Reader:
    """Reads one phase into its facts, and notes in the run's what it could not."""

    def __init__(self, run: RunFacts, folder: PhaseFolder, on_bytes: Callable[[int], Any] | None) -> None:
        self._run = run
        self._on_bytes = on_bytes
        self._folder = folder
        self._facts = PhaseFacts(folder.phase)
        models = (folder.actor, run.option("models.actor"))
        self._ends: tuple[int, ...] = _try(run, partial(_end_tokens, *models), ())

    def read(self) -> PhaseFacts:
        """All of the phase."""
        facts, folder = self._facts, self._folder
        self._read_markers()
        facts.generated = self._records(folder.generated, Task)
        facts.tasks = self._records(folder.tasks, Task)
        facts.dropped = self._records(folder.dropped, Dropped)
        if (report := folder.path / "filter_report.json").exists():
            facts.filters = _try(self._run, lambda: dict(read_json(report)), {})
        facts.attempts = self._records(folder.trajectories, Trajectory, _reduce)
        facts.evaluated = self._records(folder.eval, Trajectory, _reduce)
        if folder.labels.exists():
            facts.labels = self._noting(folder.labels, {}, partial(read_labels, folder.labels))
        for source, perplexity in self._records(folder.train_filter, StepRecord, self._perplexity):
            if perplexity is not None:
                facts.perplexities.setdefault(source, []).append(perplexity)
        for line in self._lines(folder.metrics):
            if isinstance(line, dict) and isinstance(line.get("name"), str):
                facts.metrics.setdefault(line["name"], []).append(line)
        return facts

    def _read_markers(self) -> None:
        unfinished = []
        for spec in STAGES:
            if not self._folder.is_done(spec.name):
                unfinished.append(spec.name)
                continue
            marker = _try(self._run, partial(self._folder.read_stage, spec.name), None)
            if marker is None:
                continue
            self._facts.stages[spec.name] = marker
            lacking = [getattr(self._folder, name) for name in WRITES[spec.name]]
            lacking = [path.name for path in lacking if not path.exists()]
            idle = spec.name in _WORK and not any(map(marker["counts"].get, _WORK[spec.name]))
            if lacking and not idle:
                self._note(f"{', '.join(lacking)} is not there, though {spec.name} has finished")
        if unfinished:
            self._note(f"not finished: {', '.join(unfinished)}")

    def _perplexity(self, step: StepRecord) -> tuple[str, float | None]:
        if not step.ref_logprobs:
            return step.source, None
        return step.source, action_perplexity(step.ref_logprobs, step.action_ids, self._ends)

    def _records(self, path: Path, cls: type[R], keep: Callable[[R], Any] = lambda record: record) -> list[Any]:
        if not path.exists():
            return []
        return self._noting(
            path, [], lambda note: [keep(record) for record in read_records(path, cls, note, self._on_bytes)]
        )

    def _lines(self, path: Path) -> list[Any]:
        if not path.exists():
            return []
        return self._noting(path, [], lambda note: [data for _, data in read_lines(path, note, self._on_bytes)])

    def _noting(self, path: Path, otherwise: T, read: Callable[[Callable[[str], None]], T]) -> T:
        bad: list[str] = []
        found = _try(self._run, lambda: read(bad.append), otherwise)
        for text in bad[:NUM_SHOWN]:
            self._note(f"left out: {text.removeprefix(f'{path.parent}/')}")
        if len(bad) > NUM_SHOWN:
            self._note(f"left out: {len(bad) - NUM_SHOWN} more lines of {path.name}")
        return found

    def _note(self, text: str) -> None:
        self._run.note(text, self._facts.phase)


PAGE_CHARS = 4000
"""Characters of a page, an action or a message that are kept."""


def _reduce(trajectory: Trajectory) -> Attempt:
    return Attempt(
        trajectory=dataclasses.replace(trajectory, steps=(), final_observation=""),
        num_steps=len(trajectory.steps),
        prompt_tokens=sum(len(step.prompt_ids) for step in trajectory.steps),
        answer_tokens=sum(len(step.action_ids) for step in trajectory.steps),
        actions=tuple((step.action or step.response)[:PAGE_CHARS] for step in trajectory.steps),
        page=trajectory.final_observation[:PAGE_CHARS],
        page_chars=len(trajectory.final_observation),
    )


def phase_names(numbers: list[int]) -> str:
    """`phase 3`, `phases 0–4, 6`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}–{part[-1]}" for part in parts]
    return f"phase{'s' if len(parts) > 1 or len(parts[0]) > 1 else ''} {', '.join(texts)}"


def _end_tokens(*folders: Path | str | None) -> tuple[int, ...]:
    """Ids that end an answer, by the first of these model folders that is there; none where none is."""
    for folder in folders:
        path = Path(folder or "") / "generation_config.json"
        if path.is_file():
            found = read_json(path).get("eos_token_id")
            return tuple(found) if isinstance(found, list) else (found,) if isinstance(found, int) else ()
    return ()


def _try(run: RunFacts, read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (WebRLError, OSError, TypeError, ValueError) as error:
        run.note(f"left out: {error}")
        return otherwise
