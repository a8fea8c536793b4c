"""What a run folder holds, as far as it goes: records reduced to what is shown, and all that lacks, by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml

from webrl.config.yaml_file import read_yaml
from webrl.errors import WebRLError
from webrl.phase import STAGES
from webrl.reward.labels import read_labels
from webrl.runs.clock import progress
from webrl.runs.folder import PhaseFolder, require_run
from webrl.runs.store import read_json, read_lines, read_records
from webrl.tasks.filter import Dropped
from webrl.types import Label, Record, Task, Trajectory

R = TypeVar("R", bound=Record)
T = TypeVar("T")
NUM_SHOWN = 3
"""Bad lines of a file that are quoted; the others are counted."""


@dataclass(frozen=True)
class Attempt:
    """A trajectory without its pages."""

    trajectory: Trajectory
    """With neither steps nor final page."""
    num_steps: int
    prompt_tokens: int
    answer_tokens: int


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
    metrics: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Lines of `metrics.jsonl` by trainer, in order."""

    def counts(self, stage: str) -> dict[str, Any]:
        """Return what a stage counted; empty if it has not finished."""
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
        named = {text: ", ".join(map(str, sorted(set(phases)))) for text, phases in self.notes.items()}
        return [f"{'phases' if ',' in at else 'phase'} {at}: {text}" if at else text for text, at in named.items()]

    def note(self, text: str, phase: int | None = None) -> None:
        """Add what is missing, of a phase or of the run."""
        self.notes.setdefault(text, []).extend([] if phase is None else [phase])

    def option(self, key: str, default: Any = None) -> Any:
        """Return a value of the config by its dotted key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                return default
            value = value[part]
        return value


def read_run(path: Path) -> RunFacts:
    """Read a run folder; `missing` names what is broken or not there. Raises UsageError if it is no run folder."""
    folder = require_run(path)
    facts = RunFacts(path)
    facts.config = _try(facts, lambda: read_yaml(folder.config, "the run's config"), {})
    if not isinstance(facts.config, dict):
        facts.note(f"{folder.config.name} is not a mapping: no configuration is shown")
        facts.config = {}
    phases = [folder.phase(number) for number in range(folder.last_phase() + 1)]
    by_line = ("generated", "tasks", "dropped", "trajectories", "eval", "metrics")
    files = [path for phase in phases for name in by_line if (path := getattr(phase, name)).is_file()]
    with progress(sum(p.stat().st_size for p in files), f"read {facts.name}", "B", leave=False) as bar:
        for phase in phases:
            read_phase(facts, phase, bar.update)
    planned = facts.option("num_phases")
    if isinstance(planned, int) and folder.last_phase() < planned:
        facts.note(f"the run should have {planned} phases after phase 0 and has {max(folder.last_phase(), 0)}")
    return facts


def read_phase(run: RunFacts, folder: PhaseFolder, on_bytes: Callable[[int], Any] | None = None) -> None:
    """Add a phase to the facts of its run, and note what is not there; `on_bytes` hears of each line's size."""
    if not folder.path.is_dir():
        run.note("there is no such folder", folder.phase)
        return
    facts = PhaseFacts(folder.phase)
    run.phases.append(facts)

    def read(path: Path, otherwise: T, load: Callable[[Callable[[str], None]], T]) -> T:
        bad: list[str] = []
        found = _try(run, lambda: load(bad.append), otherwise) if path.exists() else otherwise
        for text in bad[:NUM_SHOWN]:
            run.note(f"left out: {text.removeprefix(f'{path.parent}/')}", facts.phase)
        if len(bad) > NUM_SHOWN:
            run.note(f"left out: {len(bad) - NUM_SHOWN} more lines of {path.name}", facts.phase)
        return found

    def records(path: Path, cls: type[R], keep: Callable[[R], Any] = lambda record: record) -> list[Any]:
        return read(path, [], lambda note: [keep(record) for record in read_records(path, cls, note, on_bytes)])

    unfinished = []
    for name in STAGES:
        if not folder.is_done(name):
            unfinished.append(name)
            continue
        if (marker := _try(run, partial(folder.read_stage, name), None)) is not None:
            facts.stages[name] = marker
            _try(run, partial(folder.require, name), None)
    if unfinished:
        run.note(f"not finished: {', '.join(unfinished)}", facts.phase)
    facts.generated = records(folder.generated, Task)
    facts.tasks = records(folder.tasks, Task)
    facts.dropped = records(folder.dropped, Dropped)
    if (report := folder.path / "filter_report.json").exists():
        facts.filters = _try(run, lambda: dict(read_json(report)), {})
    facts.attempts = records(folder.trajectories, Trajectory, _reduce)
    facts.evaluated = records(folder.eval, Trajectory, _reduce)
    facts.labels = read(folder.labels, {}, partial(read_labels, folder.labels))
    lines: list[Any] = read(
        folder.metrics, [], lambda note: [line for _, line in read_lines(folder.metrics, note, on_bytes)]
    )
    for line in lines:
        if isinstance(line, dict) and isinstance(line.get("name"), str):
            facts.metrics.setdefault(line["name"], []).append(line)


def _reduce(trajectory: Trajectory) -> Attempt:
    return Attempt(
        trajectory=dataclasses.replace(trajectory, steps=(), final_observation=""),
        num_steps=len(trajectory.steps),
        prompt_tokens=sum(len(step.prompt_ids) for step in trajectory.steps),
        answer_tokens=sum(len(step.action_ids) for step in trajectory.steps),
    )


def _try(run: RunFacts, read: Callable[[], T], otherwise: T) -> T:
    try:
        return read()
    except (WebRLError, OSError, TypeError, ValueError) as error:
        run.note(f"left out: {error}")
        return otherwise


def in_words(name: str) -> str:
    """Return what a name of a status, a filter or a reason means; an unknown one without its underscores."""
    return str(texts()["words"].get(name, name.replace("_", " ")))


@cache
def texts() -> dict[str, Any]:
    """Read the page's texts, `texts.yaml`."""
    text = resources.files("webrl_report.page").joinpath("texts.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
