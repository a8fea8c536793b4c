"""How often the actor succeeds at a proposed task already: k rollouts of each, judged by the outcome model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from webrl.config import RunConfig
from webrl.runs.store import read_records
from webrl.types import Task, Trajectory


async def success_rates(
    config: RunConfig, tasks: Sequence[Task], *, actor: str, folder: Path, phase: int
) -> list[float | None]:
    """Share of `filter.num_trials` rollouts that were judged successful; None for a task none of whose were judged.

    Rollouts and labels stay in `folder` (`trials.jsonl`, `trial_labels.jsonl`): an interrupted call goes on from
    there. The environment's own reward is not looked at.

    Raises:
        WebRLError: browser, model or judge are unusable.
    """
    from webrl.llm import open_policy
    from webrl.reward.labels import read_labels
    from webrl.reward.stage import judge_all
    from webrl.rollouts.collect import collect
    from webrl.suites import open_sites

    trials, labels = folder / "trials.jsonl", folder / "trial_labels.jsonl"
    repeated = [task for task in tasks for _ in range(config.filter.num_trials)]
    async with open_sites(config, tasks), open_policy(actor, config) as policy:
        await collect(repeated, config, policy, trials, phase=phase, prefix=f"k{phase:02d}")
    await judge_all(config, read_records(trials, Trajectory), labels, len(repeated))
    judged = read_labels(labels)
    rewards: dict[str, list[int]] = defaultdict(list)
    for trajectory in read_records(trials, Trajectory):
        label = judged.get(trajectory.trajectory_id)
        if label is not None and label.reward is not None:
            rewards[trajectory.task.task_id].append(label.reward)
    found = [rewards.get(task.task_id) for task in tasks]
    return [sum(outcomes) / len(outcomes) if outcomes else None for outcomes in found]
