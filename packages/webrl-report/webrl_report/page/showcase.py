"""What trackers get of a phase besides its numbers: the charts of the report so far, and a handful of episodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from webrl.config.redaction import redact
from webrl.config.yaml_file import read_yaml
from webrl.evaluate import is_success
from webrl.reports.trackers import PhaseSummary
from webrl.runs.folder import RunFolder
from webrl.runs.spelling import visible
from webrl_report.page.build import short
from webrl_report.page.facts import Attempt, PhaseFacts, RunFacts, read_phase
from webrl_report.page.sections import Section, difficulty, judge, replay, resources, success, training

NUM_EXAMPLES = 2
"""Episodes of each kind in a phase's table."""
_TEXT_CHARS = 400
_SECTIONS: tuple[Callable[[RunFacts], Section], ...] = (success, difficulty, judge, replay, training, resources)
EXAMPLES_HEAD = ("kind", "task", "site", "outcome", "label", "status", "steps", "last action", "trajectory", "file")


class Showcase:
    """Summarizes a run phase by phase for the trackers; what is read of a phase is read once."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = RunFolder(run_dir)
        self._facts: RunFacts | None = None

    def phase(self, number: int) -> PhaseSummary:
        """Draw the charts of all phases up to this one, and choose examples of this one.

        Of the charts of single phases only this one's are shown, so that a name means the same from phase to phase.
        """
        facts = self._facts or RunFacts(self._folder.path, config=read_yaml(self._folder.config, "the run's config"))
        self._facts = facts
        for missing in range(len(facts.phases), number + 1):
            read_phase(facts, self._folder.phase(missing))
        pictures = {}
        for figure in (figure for section in _SECTIONS for figure in section(facts).figures):
            title, _, of_phase = figure.title.partition(", phase ")
            if not of_phase or int(of_phase) == number:
                pictures[re.sub(r"\W+", "-", title.lower())] = figure.pixels()
        return PhaseSummary(pictures, EXAMPLES_HEAD, examples(facts.phases[-1]))


def examples(phase: PhaseFacts) -> list[tuple[object, ...]]:
    """Choose a few episodes of each kind: where the label is wrong first, then solved, failed and unfinished ones."""
    kinds: dict[str, list[Attempt]] = {}
    for attempt in phase.attempts:
        label, solved = phase.labels.get(attempt.trajectory.trajectory_id), is_success(attempt.trajectory)
        if label is None or label.reward is None:
            kind = "not judged"
        elif attempt.trajectory.env_reward is not None and solved != bool(label.reward):
            kind = "judged wrongly"
        else:
            kind = "judged solved" if label.reward else "judged failed"
        kinds.setdefault(kind, []).append(attempt)
    for attempt in phase.evaluated:
        outcome = "solved" if is_success(attempt.trajectory) else "failed"
        kinds.setdefault(f"held-out, {outcome}", []).append(attempt)
    order = ("judged wrongly", "judged solved", "judged failed", "not judged", "held-out, solved", "held-out, failed")
    rows: list[tuple[object, ...]] = []
    chosen = [(kind, attempt) for kind in order for attempt in kinds.get(kind, ())[:NUM_EXAMPLES]]
    for kind, attempt in chosen:
        tried = attempt.trajectory
        label = phase.labels.get(tried.trajectory_id)
        sure = f" (P(YES) {label.p_yes:.3f})" if label and label.p_yes is not None else ""
        outcome = "" if tried.env_reward is None else "solved" if is_success(tried) else "failed"
        name = "eval.jsonl" if kind.startswith("held-out") else "trajectories.jsonl"
        rows.append((
            kind, _text(tried.instruction), _text(tried.task.site), outcome,
            f"{label.reward}{sure}" if label else "", tried.status.value, attempt.num_steps,
            _text(attempt.actions[-1] if attempt.actions else ""), _text(tried.trajectory_id),
            f"phase_{phase.phase:02d}/{name}",
        ))  # fmt: skip
    return rows


def _text(text: str) -> str:
    return short(visible(redact(text)), _TEXT_CHARS)
