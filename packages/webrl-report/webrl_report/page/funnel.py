"""The funnel of each phase, from its proposals to the tasks that were judged solved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from webrl_report.page.facts import Attempt, PhaseFacts, in_words

NUM_EXAMPLES = 5


@dataclass(frozen=True)
class FunnelRow:
    """One step of the funnel."""

    name: str
    num: int
    """What is left after it."""
    share: float
    """The same as a share of what the phase began with."""
    reasons: str = ""
    """What was dropped here, counted by reason."""
    examples: tuple[str, ...] = ()
    examples_of: str = ""
    """What the examples are."""


def funnel(phase: PhaseFacts) -> list[FunnelRow]:
    """Count from the phase's proposals (or its tasks, where it has none) to what was judged solved."""
    ways = statuses(phase)
    attempted, solved, judged = sum(ways.values()), num_solved(phase), num_judged(phase)
    start = max(len(phase.generated), len(phase.tasks), 1)
    found = []
    if phase.generated:
        proposals = _examples([task.instruction or task.task_id for task in phase.generated])
        num = len(phase.generated)
        found.append(FunnelRow("generated", num, num / start, "", proposals, "generated"))
    stages = phase.filters.get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if not isinstance(stage, dict) or not all(isinstance(stage.get(k), int) for k in ("num_in", "num_kept")):
            continue
        left, lost = stage["num_kept"], stage["num_in"] - stage["num_kept"]
        if lost:  # a filter that dropped nothing is no step down
            dropped = _examples([str(text) for text in stage.get("dropped_examples", ())])
            name = in_words(stage["name"])
            found.append(FunnelRow(f"after: {name}", left, left / start, f"−{lost}", dropped, f"dropped: {name}"))
    if phase.tasks:
        reasons = _counted(Counter(each.reason for each in phase.dropped))
        found.append(FunnelRow("tasks of the phase", len(phase.tasks), len(phase.tasks) / start, reasons))
    if attempted:
        failed = _examples([a.trajectory.instruction for a in phase.attempts if _reward(phase, a) == 0])
        share = min(1.0, attempted / start)
        found.append(FunnelRow("attempted", attempted, share, _counted(ways), failed, "judged failed"))
    if judged:
        of_judged = f"of {judged} judged" + (f", {attempted - judged} not judged" if attempted > judged else "")
        texts = _examples([a.trajectory.instruction for a in phase.attempts if _reward(phase, a) == 1])
        found.append(FunnelRow("judged solved", solved, min(1.0, solved / start), of_judged, texts, "judged solved"))
    return found


def _counted(numbers: Counter[str]) -> str:
    return ", ".join(f"{in_words(name)} {number}" for name, number in numbers.most_common())


def statuses(phase: PhaseFacts) -> Counter[str]:
    """Count attempts by how they ended; as the stage counted them where the trajectories are not there."""
    if phase.attempts:
        return Counter(attempt.trajectory.status.value for attempt in phase.attempts)
    counted = phase.counts("rollout").get("status")
    return Counter({str(k): n for k, n in counted.items() if isinstance(n, int)} if isinstance(counted, dict) else {})


def num_judged(phase: PhaseFacts) -> int:
    """Count labels that are judgements."""
    return sum(label.reward is not None for label in phase.labels.values())


def num_solved(phase: PhaseFacts) -> int:
    """Count labels that say solved."""
    return sum(label.reward == 1 for label in phase.labels.values())


def _reward(phase: PhaseFacts, attempt: Attempt) -> int | None:
    label = phase.labels.get(attempt.trajectory.trajectory_id)
    return label.reward if label else None


def _examples(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(list(dict.fromkeys(texts))[:NUM_EXAMPLES])
