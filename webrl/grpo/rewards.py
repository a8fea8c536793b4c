"""What an episode is worth, by name; weights come from `rewards`.

API: `reward_functions(names)` are functions as TRL calls them, `weighted_rewards(weights, episodes)` their sums. An
episode that failed for reasons of its own (page, browser, server, engine, deadline) has no reward: TRL leaves it out of
its group's mean, and nothing is learnt from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from webrl.evaluate import is_success
from webrl.grpo.play import Episode
from webrl.grpo.settings import Reward

RewardFunction = Callable[..., list[float | None]]

_REWARDS: dict[str, Callable[[Episode], float]] = {
    "outcome": lambda episode: float(is_success(episode.trajectory)),
    "sum": lambda episode: sum(episode.step_rewards),
    "mean": lambda episode: sum(episode.step_rewards) / len(episode.step_rewards),
    "max": lambda episode: max(episode.step_rewards),
    "format": lambda episode: 1 - len(episode.unreadable) / len(episode.step_rewards),
}


def reward_functions(names: Collection[str]) -> list[RewardFunction]:
    """One function a name, which TRL logs it under."""
    return [_function(name) for name in names]


def weighted_rewards(weights: Mapping[Reward, float], episodes: Sequence[Episode]) -> list[float | None]:
    """Each episode's reward, summed as TRL sums its functions; None for one that has none."""
    return [
        sum(weight * _REWARDS[name](episode) for name, weight in weights.items())
        if episode.trajectory.status.finished
        else None
        for episode in episodes
    ]


def _function(name: str) -> RewardFunction:
    def reward(episode: Sequence[Episode], **_: Any) -> list[float | None]:
        return [_REWARDS[name](e) if e.trajectory.status.finished else None for e in episode]

    reward.__name__ = name
    return reward
