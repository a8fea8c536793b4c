"""Measures predicted probabilities, a critic's values or a judge's P(YES), against 0/1 outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 10


def calibrate(values: Sequence[float], outcomes: Sequence[float]) -> dict[str, Any]:
    """Compare predictions with outcomes.

    Returns:
        `count`; `ece`, the expected calibration error Σ_bins n_b/n · |mean outcome − mean value| over ten equal-width
        bins; `auc`, None without both outcomes; `bins` (`reliability`).
    """
    v, y = np.asarray(values, dtype=float), np.asarray(outcomes, dtype=float)
    bins = reliability(v, y)
    return {
        "count": len(v),
        "ece": sum(b["count"] * abs(b["outcome"] - b["value"]) for b in bins) / len(v),
        "auc": auc(y > 0.5, v) if y.min() < y.max() else None,
        "bins": bins,
    }


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
    """Area under the ROC curve: the chance that a success has the higher value, ties counted half; of both classes."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(truth, values))
