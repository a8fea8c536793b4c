"""Measures a judge: accuracy, balanced accuracy, precision, recall and AUC with counts and intervals.

Proportions have Wilson intervals. Balanced accuracy joins those of its two proportions as Newcombe 1998 (Statistics in
Medicine 17:873) joins a difference's; AUC has Newcombe 2006's (25:559, method 5). A resampled interval would have no
width for a judge that made no mistake in the few trajectories that there are.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from webrl.evaluate import is_success, wilson_interval
from webrl.reward.labels import read_labels
from webrl.runs.store import read_records
from webrl.training.calibration import auc, reliability
from webrl.types import Record, Trajectory

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate(Record):
    """A figure with its interval.

    Example: `Estimate(value=0.875, ci95=(0.53, 0.98), num=8)`
    """

    value: float | None
    """The figure; None where it is not defined (precision without a positive answer)."""
    ci95: tuple[float, ...]
    """95 % interval (lower, upper); empty where it is not defined."""
    num: int
    """Denominator."""


@dataclass(frozen=True)
class JudgeReport(Record):
    """A judge against the truth."""

    num: int
    """Judged trajectories."""
    num_success: int
    """True successes among them."""
    true_positive: int
    false_positive: int
    true_negative: int
    false_negative: int
    accuracy: Estimate
    balanced_accuracy: Estimate
    """Mean of the accuracies on successes and on failures."""
    precision: Estimate
    """Share of those judged successful that are."""
    recall: Estimate
    """Share of the successes that were judged so."""
    auc: Estimate
    """Probability that a success gets a higher P(YES) than a failure."""
    num_unjudged: int = 0
    """Trajectories without a judgement; in none of the figures."""


def judge_report(
    truth: Sequence[int], p_yes: Sequence[float], threshold: float = 0.5, num_unjudged: int = 0
) -> JudgeReport:
    """Compare judgements with the truth; an answer is positive if P(YES) exceeds `threshold`."""
    y = np.asarray(truth, dtype=np.int64)  # [N]
    p = np.asarray(p_yes, dtype=np.float64)  # [N]
    said = (p > threshold).astype(np.int64)  # [N]
    tp, fp = int((said & y).sum()), int((said & (1 - y)).sum())
    fn, tn = int(y.sum()) - tp, int((1 - y).sum()) - fp
    successes, failures = tp + fn, tn + fp
    balanced = ranked = Estimate(None, (), len(y))  # not defined without both classes
    if successes and failures:
        rates = tp / successes, tn / failures
        limits = wilson_interval(tp, successes), wilson_interval(tn, failures)
        below, above = (
            math.hypot(*(r - limit[side] for r, limit in zip(rates, limits, strict=True))) / 2 for side in (0, 1)
        )
        balanced = Estimate(sum(rates) / 2, (sum(rates) / 2 - below, sum(rates) / 2 - above), len(y))
        area = float(auc(y, p))
        low, high = _auc_limit(area, successes, failures), 1 - _auc_limit(1 - area, successes, failures)
        ranked = Estimate(area, (low, high), len(y))
    return JudgeReport(
        num=len(y),
        num_success=successes,
        true_positive=tp,
        false_positive=fp,
        true_negative=tn,
        false_negative=fn,
        accuracy=_proportion(tp + tn, len(y)),
        balanced_accuracy=balanced,
        precision=_proportion(tp, tp + fp),
        recall=_proportion(tp, tp + fn),
        auc=ranked,
        num_unjudged=num_unjudged,
    )


def agreement(trajectories: Path, labels: Path) -> dict[str, Any] | None:
    """The labels against the environment's own reward, in total and by site; None where there is no such reward."""
    known = read_labels(labels)
    rows: dict[str, list[tuple[int, float, int]]] = defaultdict(list)
    unjudged = 0
    for trajectory in read_records(trajectories, Trajectory):
        if not trajectory.status.finished or trajectory.env_reward is None:
            continue
        label = known.get(trajectory.trajectory_id)
        if label is None or label.reward is None or label.p_yes is None:
            unjudged += 1
            continue
        rows[trajectory.task.site].append((int(is_success(trajectory)), label.p_yes, label.reward))
    everything = [row for site in rows.values() for row in site]
    if not everything:
        return None
    # The rewards as labelled decide; P(YES) ranks (AUC).
    report = judge_report([r[0] for r in everything], [r[2] for r in everything], 0.5, unjudged).to_json()
    ranked = judge_report([r[0] for r in everything], [r[1] for r in everything])
    report["auc"] = ranked.auc.to_json()
    sites = [site for site, group in rows.items() for _ in group]
    report["by_site"] = count_sites(sites, [r[0] for r in everything], [r[2] for r in everything])
    return report


def count_sites(sites: Sequence[str], truth: Sequence[int], said: Sequence[int]) -> dict[str, dict[str, int]]:
    """Return `num`, `num_success` and `num_agree` (judged as the truth is) of each site, by name."""
    counts: dict[str, dict[str, int]] = {}
    for site, true, answer in sorted(zip(sites, truth, said, strict=True)):
        row = counts.setdefault(site, {"num": 0, "num_success": 0, "num_agree": 0})
        row["num"] += 1
        row["num_success"] += true
        row["num_agree"] += true == answer
    return counts


def undecided_sites(by_site: dict[str, dict[str, int]]) -> list[str]:
    """Sites with successes and failures where the judge is right no more often than one answer for all would be.

    There an actor learns nothing from the labels, or the wrong thing, however good their average is.
    """
    return [
        site
        for site, n in by_site.items()
        if 0 < n["num_success"] < n["num"] and n["num_agree"] <= max(n["num_success"], n["num"] - n["num_success"])
    ]


def reliability_bins(truth: Sequence[int], p_yes: Sequence[float]) -> list[tuple[float, int, int]]:
    """Return (mean P(YES), successes, trajectories) of each of ten equal bins that is not empty."""
    bins = reliability(np.asarray(p_yes, dtype=float), np.asarray(truth, dtype=float))
    return [(b["value"], round(b["outcome"] * b["count"]), b["count"]) for b in bins]


def _proportion(count: int, num: int) -> Estimate:
    if not num:
        return Estimate(None, (), 0)
    return Estimate(count / num, wilson_interval(count, num), num)


def _auc_limit(value: float, successes: int, failures: int) -> float:
    """Return the lower limit: where (value − θ)² is z² times the variance of an AUC of θ, by bisection."""
    half = (successes + failures) / 2
    low, high = 0.0, value
    for _ in range(60):
        theta = (low + high) / 2
        spread = 2 * half - 1 - (3 * half - 3) / ((2 - theta) * (1 + theta))
        variance = theta * (1 - theta) / (successes * failures) * spread
        is_outside = (value - theta) ** 2 > _Z**2 * variance
        low, high = (theta, high) if is_outside else (low, theta)
    return low
