"""Computes what episodes are worth: their rewards by name, and mean rewards with counts and intervals.

API: `reward_functions(names)` are functions as TRL calls them, `weighted_rewards(weights, episodes)` their sums. An
episode that failed for reasons of its own (page, browser, server, engine, deadline) has no reward: TRL leaves it out of
its group's mean, and nothing is learnt from it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webrl.evaluate import is_success, wilson_interval
from webrl.types import Record

if TYPE_CHECKING:
    from webrl_grpo.play import Episode
    from webrl_grpo.settings import Reward

RewardFunction = Callable[..., list[float | None]]

MIN_EPISODES = 128
"""A mean is taken over whole generation batches of at least so many episodes, and over half of them at most."""
_REWARDS: dict[str, Callable[[Episode], float]] = {
    "outcome": lambda episode: float(is_success(episode.trajectory)),
    "sum": lambda episode: sum(episode.step_rewards),
    "mean": lambda episode: sum(episode.step_rewards) / len(episode.step_rewards),
    "max": lambda episode: max(episode.step_rewards),
    "format": lambda episode: 1 - len(episode.unreadable) / len(episode.step_rewards),
}


def reward_functions(names: Collection[Reward]) -> list[RewardFunction]:
    """Returns one function a name, under which TRL logs it."""
    functions: list[RewardFunction] = []
    for name in names:
        functions.append(lambda episode, _reward=name, **_: weighted_rewards({_reward: 1.0}, episode))
        functions[-1].__name__ = name
    return functions


def weighted_rewards(weights: Mapping[Reward, float], episodes: Sequence[Episode]) -> list[float | None]:
    """Returns each episode's reward, summed as TRL sums its functions; None for one that failed."""
    return [
        sum(weight * _REWARDS[name](episode) for name, weight in weights.items())
        if episode.trajectory.status.finished
        else None
        for episode in episodes
    ]


@dataclass(frozen=True)
class Mean(Record):
    """A mean reward.

    Example: `Mean(mean=0.25, episodes=96, ci95=(0.174, 0.345))`
    """

    mean: float
    """Mean over the episodes that have a reward."""
    episodes: int
    """Number of episodes that have a reward."""
    ci95: tuple[float, ...]
    """95 % interval: Wilson's where every reward is 0 or 1, else of the normal approximation."""

    def __str__(self) -> str:
        low, high = self.ci95
        return f"{self.mean:.3f} [{low:.3f}, {high:.3f}] over {self.episodes} episodes"


def mean_reward(rewards: Sequence[float]) -> Mean:
    """Returns the mean of some rewards; 0 with the interval (-inf, inf) if there are none."""
    if not rewards:
        return Mean(0.0, 0, (-math.inf, math.inf))
    mean = statistics.fmean(rewards)
    if set(rewards) <= {0.0, 1.0}:
        low, high = wilson_interval(round(sum(rewards)), len(rewards))
    else:
        spread = 1.96 * statistics.stdev(rewards) / math.sqrt(len(rewards)) if len(rewards) > 1 else math.inf
        low, high = mean - spread, mean + spread
    return Mean(mean, len(rewards), (low, high))


def first_and_last(batches: Sequence[Sequence[float]]) -> tuple[Mean, Mean]:
    """Returns the mean reward of the first generation batches and of the last (`MIN_EPISODES`).

    Args:
        batches: rewards of each batch, in order.
    """
    half = max(1, len(batches) // 2)
    means = []
    for part in (batches[:half], batches[::-1][:half]):
        taken: list[float] = []
        for batch in part:
            if len(taken) < MIN_EPISODES:
                taken += batch
        means.append(mean_reward(taken))
    return means[0], means[1]
