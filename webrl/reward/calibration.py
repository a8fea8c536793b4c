"""Temperature and threshold of an outcome model, fitted on held-out trajectories (option; 1 and 0.5 as published)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from webrl.config import LabelConfig
from webrl.errors import DataError
from webrl.runs.store import read_record, write_json
from webrl.types import Record

FILE_NAME = "calibration.json"
"""Saved next to the model's weights."""
_MARGIN = 30.0
"""Largest log-odds that is distinguished; beyond it P(YES) is 0 or 1 anyway."""
_TEMPERATURES = (0.05, 20.0)


@dataclass(frozen=True)
class Calibration(Record):
    """How the judge's P(YES) is read.

    Example: `Calibration(temperature=2.1, threshold=0.43, num=120)`
    """

    temperature: float = 1.0
    """Divides the log-odds."""
    threshold: float = 0.5
    """Reward 1 if the calibrated P(YES) exceeds this."""
    num: int = 0
    """Held-out trajectories it was fitted on."""

    def apply(self, p_yes: float) -> float:
        """Calibrated P(YES) of a probability at temperature 1."""
        return 1 / (1 + math.exp(-log_odds(p_yes) / self.temperature))

    def save(self, folder: Path) -> None:
        """Write it next to the weights."""
        write_json(folder / FILE_NAME, self.to_json())

    @classmethod
    def load(cls, folder: Path) -> Calibration:
        """Read it from the weights' folder.

        Raises:
            DataError: missing or malformed.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise DataError(f"{path}: no such file; fit one with `webrl train-orm orm.calibrate=true`")
        found = read_record(path, cls)
        if not (0 < found.temperature < math.inf and 0 <= found.threshold <= 1):
            raise DataError(
                f"{path}: temperature {found.temperature} and threshold {found.threshold}: the temperature is above 0, "
                "the threshold from 0 to 1; fit it again with `webrl train-orm orm.calibrate=true`"
            )
        return found


def fit_calibration(truth: Sequence[int], p_yes: Sequence[float]) -> Calibration:
    """Fit the temperature by logistic regression (no intercept) on log-odds, then the best balanced threshold.

    The threshold lies halfway between two neighbouring scores, the one nearest to 0.5 among equals.

    Raises:
        DataError: fewer than ten trajectories of either class.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_curve

    y = np.asarray(truth, dtype=np.int64)  # [N]
    if min(int(y.sum()), int((1 - y).sum())) < 10:
        raise DataError(
            f"{int(y.sum())} successes and {int((1 - y).sum())} failures are held out: calibration needs ten of each"
        )
    odds = np.array([log_odds(p) for p in p_yes])  # [N]
    # A weak penalty keeps perfectly separated scores from an infinite slope.
    slope = float(LogisticRegression(C=100.0, fit_intercept=False).fit(odds[:, None], y).coef_[0, 0])
    low, high = _TEMPERATURES
    temperature = min(max(1 / slope, low), high) if slope > 0 else high
    calibrated = 1 / (1 + np.exp(-odds / temperature))
    false, true, cuts = roc_curve(y, calibrated, drop_intermediate=False)  # from the highest score down, inf first
    balanced, threshold = (true - false)[1:-1], 0.5
    if len(balanced) and balanced.max() > 0:
        middles = (cuts[1:-1] + cuts[2:]) / 2  # a threshold can lie between unequal scores only
        best = middles[balanced >= balanced.max() - 1e-12]
        threshold = float(best[np.argmin(np.abs(best - 0.5))])
    return Calibration(round(temperature, 4), threshold, len(y))


def calibrated(config: LabelConfig, judges: Sequence[str]) -> tuple[LabelConfig, list[float]]:
    """Return the label config with the judges' own threshold, and each judge's temperature, if `calibrated` is set.

    Several judges are each read at their own temperature; their mean P(YES) is compared with their mean threshold, so
    the reward is 1 if they exceed their own thresholds on average.

    Raises:
        DataError: a judge's folder has no calibration.
    """
    if not config.calibrated:
        return config, [1.0] * len(judges)
    fitted = [Calibration.load(Path(judge)) for judge in judges]
    threshold = sum(f.threshold for f in fitted) / len(fitted)
    return config.model_copy(update={"threshold": threshold}), [f.temperature for f in fitted]


def log_odds(p: float) -> float:
    """log(p / (1 - p)), within ±30."""
    if p <= 0 or p >= 1:
        return math.copysign(_MARGIN, p - 0.5)
    return min(max(math.log(p) - math.log1p(-p), -_MARGIN), _MARGIN)
