"""From failures to descendants: the funnel of each phase's proposals, and the family trees of tasks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from webrl_report.page.facts import Attempt, PhaseFacts, RunFacts, in_words

NUM_TREES, NUM_EXAMPLES = 4, 5
CHILDREN = (2, 2, 1)
"""Children that are shown of a root, of its children, and of all below."""
MAX_DEPTH = 12
_REPEAT = re.compile(r"-r\d+$")


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


@dataclass
class Node:
    """A task in its family."""

    task_id: str
    phase: int
    instruction: str
    state: str = "not attempted"
    """What became of it."""
    mark: str = "open"
    """`solved`, `failed`, `dropped` or `open`."""
    children: list[Node] = field(default_factory=list)
    num_more: int = 0
    """Children that are not shown."""


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


def families(run: RunFacts) -> list[Node]:
    """Find the largest families, one a site where that can be: a failed task, what was written from it, and so on."""
    nodes = _nodes(run)
    children: dict[str, list[str]] = defaultdict(list)
    for phase in run.phases:
        for task in phase.generated:
            for parent in dict.fromkeys(task.lineage.parent_ids):
                children[parent].append(task.task_id)
    born = {child for group in children.values() for child in group}
    sites = {task.task_id: task.site for phase in run.phases for task in _known(phase)}
    sizes: dict[str, int] = {}
    for root in children:
        if root in nodes and root not in born:
            seen, waiting = {root}, [root]
            while waiting:
                fresh = [child for child in children.get(waiting.pop(), ()) if child not in seen]
                seen.update(fresh)
                waiting += fresh
            sizes[root] = len(seen)
    trees: list[Node] = []
    seen_sites: set[str] = set()
    for root in sorted(sizes, key=lambda name: (-sizes[name], name)):
        if len(trees) < NUM_TREES and sites[root] not in seen_sites:
            seen_sites.add(sites[root])
            trees.append(_grow(root, nodes, children, {root}))
    return trees


def _reward(phase: PhaseFacts, attempt: Attempt) -> int | None:
    label = phase.labels.get(attempt.trajectory.trajectory_id)
    return label.reward if label else None


def _examples(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(list(dict.fromkeys(texts))[:NUM_EXAMPLES])


def _known(phase: PhaseFacts) -> list[Any]:
    return [*phase.generated, *phase.tasks, *(attempt.trajectory.task for attempt in phase.attempts)]


def _nodes(run: RunFacts) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for phase in run.phases:
        for task in _known(phase):
            nodes.setdefault(task.task_id, Node(task.task_id, phase.phase, task.instruction or task.task_id))
        for each in phase.dropped:
            if node := nodes.get(each.task.task_id):
                node.mark = "dropped"
                node.state = f"dropped: {in_words(each.reason)}" + (f" ({each.detail})" if each.detail else "")
        for attempt in phase.attempts:
            node = nodes[attempt.trajectory.task.task_id]
            node.instruction = attempt.trajectory.instruction or node.instruction
            node.state = f"attempted, {in_words(attempt.trajectory.status)}, not judged"
        judged: dict[str, list[int]] = defaultdict(list)
        for label in phase.labels.values():
            # The trajectory's id has the task's in it, so that no trajectory is needed.
            name = label.trajectory_id.removeprefix(f"p{phase.phase:02d}-")
            name = name if name in nodes else _REPEAT.sub("", name)
            if name in nodes and label.reward is not None:
                judged[name].append(label.reward)
        for name, rewards in judged.items():
            nodes[name].mark = "solved" if any(rewards) else "failed"
            times = f" in {sum(rewards)} of {len(rewards)} attempts" if len(rewards) > 1 else ""
            nodes[name].state = f"judged {nodes[name].mark}{times}"
    return nodes


def _grow(root: str, nodes: dict[str, Node], children: dict[str, list[str]], seen: set[str], depth: int = 0) -> Node:
    """The tree below a task; a task that descends from it in two ways is shown once."""
    node = nodes[root]
    below = [child for child in dict.fromkeys(children.get(root, ())) if child in nodes and child not in seen]
    below.sort(key=lambda child: -len(children.get(child, ())))
    shown = below[: CHILDREN[min(depth, len(CHILDREN) - 1)] if depth < MAX_DEPTH else 0]
    seen.update(below)
    grown = [_grow(child, nodes, children, seen, depth + 1) for child in shown]
    return replace(node, children=grown, num_more=len(below) - len(shown))
