"""Calibration measures against numbers computed by hand."""

from __future__ import annotations

import pytest

from webrl.training.calibration import calibrate


def test_ece_and_bins_by_hand() -> None:
    result = calibrate([0.12, 0.18, 0.85, 1.0], [0, 1, 1, 1])
    # bin [.1, .2): mean value .15, mean outcome .5; bin [.8, .9): .85 and 1; bin [.9, 1]: 1 and 1
    assert [(b["low"], b["count"]) for b in result["bins"]] == [(0.1, 2), (0.8, 1), (0.9, 1)]
    assert result["ece"] == pytest.approx(2 / 4 * 0.35 + 1 / 4 * 0.15)


def test_auc_counts_ties_half_and_is_none_without_both_outcomes() -> None:
    # pairs: (.8 > .3), (.8 > .5), (.5 > .3), (.5 = .5)
    assert calibrate([0.8, 0.5, 0.3, 0.5], [1, 1, 0, 0])["auc"] == pytest.approx(3.5 / 4)
    assert calibrate([0.4, 0.6], [1, 1])["auc"] is None
