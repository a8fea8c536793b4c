"""What trackers are shown of a phase beside its numbers: the charts of the report so far, and a handful of episodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from webrl.config.redaction import redact
from webrl.config.yaml_file import read_yaml
from webrl.evaluate import is_success
from webrl.reports.page.build import short
from webrl.reports.page.facts import Attempt, PhaseFacts, RunFacts, read_phase
from webrl.reports.page.judge import judge
from webrl.reports.page.sections import Section, difficulty, replay, success
from webrl.reports.page.work import resources, training
from webrl.reports.trackers import Shown
from webrl.runs.folder import RunFolder
from webrl.runs.spelling import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUM_EXAMPLES = 2
"""Episodes of each kind in a phase's table."""
_TEXT_CHARS = 400
_SECTIONS: tuple[Callable[[RunFacts], Section], ...] = (success, difficulty, judge, replay, training, resources)
_HEAD = ("kind", "task", "site", "outcome", "label", "status", "steps", "last action", "trajectory", "file")


class Showcase:
    """Makes it phase by phase; what is read of a phase is read once."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = RunFolder(run_dir)
        self._facts: RunFacts | None = None

    def phase(self, number: int) -> Shown:
        """The charts of all phases up to this one, and examples of this one."""
        facts = self._facts or RunFacts(self._folder.path, config=read_yaml(self._folder.config, "the run's config"))
        self._facts = facts
        for missing in range(len(facts.phases), number + 1):
            read_phase(facts, self._folder.phase(missing))
        return Shown(_pictures(facts, number), _HEAD, examples(facts.phases[-1]))


def examples(phase: PhaseFacts) -> list[tuple[object, ...]]:
    """A few episodes of each kind: those where the label is wrong first, then solved, failed and unfinished ones."""
    kinds: dict[str, list[Attempt]] = {}
    for attempt in phase.attempts:
        kinds.setdefault(_kind(phase, attempt), []).append(attempt)
    for attempt in phase.evaluated:
        solved = "solved" if is_success(attempt.trajectory) else "failed"
        kinds.setdefault(f"held-out, {solved}", []).append(attempt)
    order = ("judged wrongly", "judged solved", "judged failed", "not judged", "held-out, solved", "held-out, failed")
    chosen = [(kind, attempt) for kind in order for attempt in kinds.get(kind, ())[:NUM_EXAMPLES]]
    return [_row(phase, kind, attempt) for kind, attempt in chosen]


def _kind(phase: PhaseFacts, attempt: Attempt) -> str:
    label = phase.labels.get(attempt.trajectory.trajectory_id)
    if label is None or label.reward is None:
        return "not judged"
    reward = attempt.trajectory.env_reward
    if reward is not None and is_success(attempt.trajectory) != bool(label.reward):
        return "judged wrongly"
    return "judged solved" if label.reward else "judged failed"


def _row(phase: PhaseFacts, kind: str, attempt: Attempt) -> tuple[object, ...]:
    tried = attempt.trajectory
    label = phase.labels.get(tried.trajectory_id)
    sure = f" (P(YES) {label.p_yes:.3f})" if label and label.p_yes is not None else ""
    outcome = "" if tried.env_reward is None else "solved" if is_success(tried) else "failed"
    name = "eval.jsonl" if kind.startswith("held-out") else "trajectories.jsonl"
    return (
        kind, _text(tried.instruction), _text(tried.task.site), outcome,
        f"{label.reward}{sure}" if label else "", tried.status.value, attempt.num_steps,
        _text(attempt.actions[-1] if attempt.actions else ""), _text(tried.trajectory_id),
        f"phase_{phase.phase:02d}/{name}",
    )  # fmt: skip


def _text(text: str) -> str:
    return short(visible(redact(text)), _TEXT_CHARS)


def _pictures(facts: RunFacts, phase: int) -> dict[str, NDArray[np.uint8]]:
    """By name; of the charts of single phases only this one's, so that a name means the same from phase to phase."""
    pictures = {}
    for figure in (figure for section in _SECTIONS for figure in section(facts).figures):
        title, _, of_phase = figure.title.partition(", phase ")
        if not of_phase or int(of_phase) == phase:
            pictures[re.sub(r"\W+", "-", title.lower())] = figure.pixels()
    return pictures
