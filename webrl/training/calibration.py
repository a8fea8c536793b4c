"""Measures a value model: explained variance, calibration, and how well it ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from webrl.types import Record

NUM_BINS = 10


@dataclass(frozen=True)
class Calibration(Record):
    """Quality of predicted probabilities against 0/1 outcomes.

    Example: `Calibration(count=240, explained_variance=0.31, ece=0.06, auc=0.84, brier=0.17, bins=[…])`
    """

    count: int
    """Predictions."""
    explained_variance: float | None
    """1 − Var(outcome − value) / Var(outcome); None if all outcomes are equal."""
    ece: float
    """Expected calibration error: Σ_bins n_b/n · |mean outcome − mean value| over ten equal-width bins."""
    auc: float | None
    """Chance that a success has the higher value, ties counting half; None without both outcomes."""
    brier: float
    """Mean squared error."""
    bins: list[dict[str, Any]]
    """Reliability diagram: `low`, `high`, `count`, `value`, `outcome` of each non-empty bin."""


def calibrate(values: Sequence[float], outcomes: Sequence[float]) -> Calibration:
    """Measure predictions against outcomes.

    Raises:
        ValueError: no predictions, or a different number of outcomes.
    """
    v, y = np.asarray(values, dtype=float), np.asarray(outcomes, dtype=float)
    if len(v) == 0 or len(v) != len(y):
        raise ValueError(f"{len(v)} values cannot be compared with {len(y)} outcomes")
    bins = reliability(v, y)
    ranked = auc(y > 0.5, v)
    variance = float(y.var())
    return Calibration(
        count=len(v),
        explained_variance=1 - float((y - v).var()) / variance if variance > 0 else None,
        ece=sum(b["count"] * abs(b["outcome"] - b["value"]) for b in bins) / len(v),
        auc=None if math.isnan(ranked) else ranked,
        brier=float(((v - y) ** 2).mean()),
        bins=bins,
    )


def reliability(v: NDArray[Any], y: NDArray[Any]) -> list[dict[str, Any]]:
    """Return `low`, `high`, `count`, mean `value` and mean `outcome` of each non-empty bin of ten equal ones."""
    index = np.minimum((v * NUM_BINS).astype(int), NUM_BINS - 1)
    return [
        {
            "low": b / NUM_BINS,
            "high": (b + 1) / NUM_BINS,
            "count": int((index == b).sum()),
            "value": float(v[index == b].mean()),
            "outcome": float(y[index == b].mean()),
        }
        for b in range(NUM_BINS)
        if (index == b).any()
    ]


def auc(truth: NDArray[Any], values: NDArray[Any]) -> float:
    """Area under the ROC curve, ties counted half; NaN without both classes."""
    positives = int(truth.sum())
    negatives = len(truth) - positives
    if not positives or not negatives or np.isnan(values).any():
        return math.nan
    # scikit-learn's takes twenty times as long, and intervals ask a thousand times; scipy.stats takes a second to load.
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # [N], of ties the mean rank
    above = ranks[truth == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))
