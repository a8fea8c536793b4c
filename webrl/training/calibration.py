"""How good a value model is: explained variance, calibration, and how well it ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

NUM_BINS = 10


@dataclass(frozen=True)
class Calibration:
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
    bins: list[dict[str, float]]
    """Reliability diagram: `low`, `high`, `count`, `value`, `outcome` of each non-empty bin."""

    def to_json(self) -> dict[str, Any]:
        """Plain dict."""
        return asdict(self)


def calibrate(values: Sequence[float], outcomes: Sequence[float]) -> Calibration:
    """Measure predictions against outcomes.

    Raises:
        ValueError: no predictions, or another number of outcomes.
    """
    v, y = np.asarray(values, dtype=float), np.asarray(outcomes, dtype=float)
    if len(v) == 0 or len(v) != len(y):
        raise ValueError(f"{len(v)} values cannot be held against {len(y)} outcomes")
    bins = _reliability(v, y)
    variance = float(y.var())
    return Calibration(
        count=len(v),
        explained_variance=1 - float((y - v).var()) / variance if variance > 0 else None,
        ece=sum(b["count"] * abs(b["outcome"] - b["value"]) for b in bins) / len(v),
        auc=_auc(v, y),
        brier=float(((v - y) ** 2).mean()),
        bins=bins,
    )


def _reliability(v: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> list[dict[str, float]]:
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


def _auc(v: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float | None:
    positive, negative = v[y > 0.5], np.sort(v[y <= 0.5])
    if len(positive) == 0 or len(negative) == 0:
        return None
    below = np.searchsorted(negative, positive, side="left")
    ties = np.searchsorted(negative, positive, side="right") - below
    return float((below + 0.5 * ties).sum() / (len(positive) * len(negative)))
