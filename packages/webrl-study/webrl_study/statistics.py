"""Means over seeds, paired differences, bootstrap intervals over seeds and tasks, and what survives the seeds' spread.

Every number is the mean over seeds of a mean over tasks. Its interval is a percentile bootstrap (Efron 1979) in two
stages: seeds are drawn with replacement, then the tasks of each drawn seed. Differences are taken task by task first,
(method − reference) of the same seed and evaluation task, so that what is hard for both cancels.
With three seeds the first stage has few values to draw from: intervals are then rather too narrow than too wide.

So a difference is also compared with the spread from run to run: Student's t interval (1908) of the seeds' paired
differences, as Colas et al. 2018 (arXiv 1806.08295) advise for few seeds. It survives if zero lies outside of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from webrl_study.results import CellResult, Outcomes

NUM_RESAMPLES = 10_000
LEVEL = 0.95
MIN_SEEDS = 3
"""Seeds from which on their spread is estimated: of two, t's interval is 12.7 standard errors wide to each side."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    value: float
    low: float
    high: float
    seeds: int
    """Seeds that it is the mean of."""

    def text(self, *, signed: bool = False) -> str:
        """`75.6 [69.8, 80.7]`, in percent (points for differences)."""
        form = "+.1f" if signed else ".1f"
        return f"{100 * self.value:{form}} [{100 * self.low:{form}}, {100 * self.high:{form}}]"


@dataclass(frozen=True)
class Comparison:
    """Two sets of outcomes on the same tasks."""

    difference: Estimate
    won: int
    """Tasks that the first alone solved."""
    lost: int
    """Tasks that the second alone solved."""
    over_seeds: tuple[float, float] | None
    """`spread_interval` of the seeds' mean differences."""

    @property
    def survives(self) -> bool | None:
        """Whether it is more than pages and runs do by chance; None with fewer than `MIN_SEEDS` seeds."""
        if self.over_seeds is None:
            return None
        intervals = (self.over_seeds, (self.difference.low, self.difference.high))
        return all(low > 0 for low, _ in intervals) or all(high < 0 for _, high in intervals)


def estimate(by_seed: Sequence[Sequence[float]], rng: np.random.Generator) -> Estimate:
    """Estimate the mean over seeds of the mean over tasks, with its bootstrap interval.

    Args:
        by_seed: of each seed, one value a task.

    Raises:
        ValueError: no seed, or a seed without tasks.
    """
    if not by_seed or not all(len(values) for values in by_seed):
        raise ValueError("an estimate needs at least one seed, with at least one task")
    resampled = []  # [R, S] of each seed; drawing counts of the distinct values is the same as drawing values
    for values in by_seed:
        distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
        size = (NUM_RESAMPLES, len(by_seed))
        resampled.append(rng.multinomial(len(values), counts / len(values), size=size) @ distinct / len(values))
    means = np.stack(resampled)
    drawn = rng.integers(len(by_seed), size=(NUM_RESAMPLES, len(by_seed)))  # [R, S] which seed
    rows, columns = np.indices(drawn.shape)
    totals = means[drawn, rows, columns].mean(axis=1)  # [R]
    low, high = np.quantile(totals, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(np.mean([np.mean(values) for values in by_seed]))
    return Estimate(value, float(low), float(high), len(by_seed))


def compare(first: Sequence[Outcomes], second: Sequence[Outcomes], rng: np.random.Generator) -> Comparison:
    """`first` − `second`, paired by seed (the position in both) and task.

    Raises:
        ValueError: a seed's tasks differ between the two.
    """
    differences = []
    for mine, theirs in zip(first, second, strict=True):
        if mine.keys() != theirs.keys():
            raise ValueError(f"tasks of the two differ, such as {min(mine.keys() ^ theirs.keys())}")
        differences.append([float(mine[task]) - float(theirs[task]) for task in sorted(mine)])
    flat = [value for values in differences for value in values]
    return Comparison(
        estimate(differences, rng), sum(v > 0 for v in flat), sum(v < 0 for v in flat),
        spread_interval([float(np.mean(values)) for values in differences]),
    )  # fmt: skip


def spread_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of one value a seed; None with fewer than `MIN_SEEDS`."""
    if len(values) < MIN_SEEDS:
        return None
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * error
    return mean - margin, mean + margin


def spread(cells: Sequence[CellResult], split: str, phase: int) -> float | None:
    """Return the standard deviation over seeds of success after a phase; None with fewer than `MIN_SEEDS` seeds."""
    reached = [r.phases[phase].outcomes[split] for r in cells if len(r.phases) > phase]
    rates = [float(np.mean(list(outcomes.values()))) for outcomes in reached if outcomes]
    return float(np.std(rates, ddof=1)) if len(rates) >= MIN_SEEDS else None


def rate_by_phase(cells: Sequence[CellResult], split: str, rng: np.random.Generator) -> list[Estimate | None]:
    """Estimate success after each phase over the cells that finished it; None without any, or without such tasks."""
    last = max((len(result.phases) for result in cells), default=0)
    found: list[Estimate | None] = []
    for phase in range(last):
        by_seed = [list(r.phases[phase].outcomes[split].values()) for r in cells if len(r.phases) > phase]
        by_seed = [values for values in by_seed if values]
        found.append(estimate(by_seed, rng) if by_seed else None)
    return found
