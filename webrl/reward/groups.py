"""Statistics of a phase's groups, the attempts at one task (`rollout.num_generations`).

A group whose judged attempts all end alike has no signal for an objective that compares them (`actor.objective=grpo`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from webrl.evaluate import pass_all, pass_any
from webrl.reward.labels import read_labels
from webrl.runs.store import read_lines


def group_counts(trajectories: Path, labels: Path) -> dict[str, Any]:
    """Groups of a phase by how they ended; {} where no task was attempted twice.

    Returns:
        `num`; `num_mixed`, `num_succeeded`, `num_failed`: those with at least two judged attempts, by outcome;
        `num_single`: those with fewer, because the others failed (`num_masked` of all attempts) or were not judged;
        `no_signal`: the share that is not mixed; `passed`: by k (1, 2, 4, … and the most that were judged at one task)
        `any` and `all`, pass@k and pass^k over the `tasks` with so many judged attempts.
    """
    rewards = {name: label.reward for name, label in read_labels(labels).items()}
    groups: dict[str, list[int | None]] = {}
    for _, data in read_lines(trajectories):
        groups.setdefault(data["task"]["task_id"], []).append(rewards.get(data["trajectory_id"]))
    if all(len(group) == 1 for group in groups.values()):
        return {}
    judged = [[reward for reward in group if reward is not None] for group in groups.values()]
    kinds = Counter(map(_kind, judged))
    return {
        "num": len(groups),
        **{f"num_{kind}": kinds[kind] for kind in ("mixed", "succeeded", "failed", "single")},
        "num_masked": sum(reward is None for group in groups.values() for reward in group),
        "no_signal": 1 - kinds["mixed"] / len(groups),
        "passed": _passed(judged),
    }


def _passed(judged: Collection[Sequence[int]]) -> dict[str, Any]:
    most = max(map(len, judged))
    found = {}
    for k in sorted({most, *(2**i for i in range(most.bit_length()))} - {0}):
        groups = [(len(group), sum(group), k) for group in judged if len(group) >= k]
        any_, all_ = (fmean(chance(*group) for group in groups) for chance in (pass_any, pass_all))
        found[str(k)] = {"any": any_, "all": all_, "tasks": len(groups)}
    return found


def _kind(rewards: list[int]) -> str:
    if len(rewards) < 2:
        return "single"
    if len(set(rewards)) > 1:
        return "mixed"
    return "succeeded" if rewards[0] else "failed"
