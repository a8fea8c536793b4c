"""What a phase's groups (the attempts at one task, `rollout.num_generations`) have to tell.

A group whose judged attempts all end alike has no signal for an objective that compares them (`actor.objective=grpo`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from webrl.reward.labels import read_labels
from webrl.runs.store import read_lines


def group_counts(trajectories: Path, labels: Path) -> dict[str, Any]:
    """Groups of a phase by how they ended; {} where no task was attempted twice.

    Returns:
        `num`; `num_mixed`, `num_succeeded`, `num_failed`: those with at least two judged attempts, by outcome;
        `num_single`: those with fewer, because the others failed (`num_masked` of all attempts) or were not judged;
        `no_signal`: the share that is not mixed.
    """
    rewards = {name: label.reward for name, label in read_labels(labels).items()}
    groups: dict[str, list[int | None]] = {}
    for _, data in read_lines(trajectories):
        groups.setdefault(data["task"]["task_id"], []).append(rewards.get(data["trajectory_id"]))
    if all(len(group) == 1 for group in groups.values()):
        return {}
    kinds = Counter(_kind([reward for reward in group if reward is not None]) for group in groups.values())
    return {
        "num": len(groups),
        **{f"num_{kind}": kinds[kind] for kind in ("mixed", "succeeded", "failed", "single")},
        "num_masked": sum(reward is None for group in groups.values() for reward in group),
        "no_signal": 1 - kinds["mixed"] / len(groups),
    }


def _kind(rewards: list[int]) -> str:
    if len(rewards) < 2:
        return "single"
    if len(set(rewards)) > 1:
        return "mixed"
    return "succeeded" if rewards[0] else "failed"
