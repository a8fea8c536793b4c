"""Measures what a GRPO training gained: mean reward of its first and last episodes, with counts and intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webrl.evaluate import wilson_interval
from webrl.types import Record

if TYPE_CHECKING:
    from webrl.grpo.play import Episode

MIN_EPISODES = 128
"""A mean is taken over whole generation batches of at least so many episodes, and over half of them at most."""


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


@dataclass
class Steps:
    """Steps of finished episodes, and those of them without a screenshot."""

    num_steps: int = 0
    """Steps of finished episodes."""
    num_blind: int = 0
    """Without a screenshot; training on one is refused (`make_rows`), so that this stays 0."""

    def count(self, episode: Episode) -> None:
        """Add an episode."""
        if episode.trajectory.status.finished:
            self.num_steps += len(episode.trajectory.steps)
            self.num_blind += max(0, len(episode.trajectory.steps) - len(episode.pictures))

    @property
    def blind_share(self) -> float:
        """Share of the steps without one."""
        return self.num_blind / max(1, self.num_steps)


def mean_reward(rewards: Sequence[float]) -> Mean:
    """The mean of some rewards; 0 in (-inf, inf) of none."""
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
    """Mean reward of the first generation batches and of the last (`MIN_EPISODES`); batches in their order."""
    half = max(1, len(batches) // 2)
    return mean_reward(_take(batches[:half])), mean_reward(_take(batches[::-1][:half]))


def _take(batches: Sequence[Sequence[float]]) -> list[float]:
    taken: list[float] = []
    for batch in batches:
        if len(taken) >= MIN_EPISODES:
            break
        taken += batch
    return taken
