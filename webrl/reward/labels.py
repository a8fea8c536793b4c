"""`labels.jsonl`: judgements by trajectory, a later line of the same one replacing an earlier; and how right a judge
is: accuracy, precision and recall with counts and Wilson intervals; balanced accuracy, AUC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from webrl.evaluate import is_success, wilson_interval
from webrl.runs.store import read_records
from webrl.types import Label, Trajectory


def read_labels(path: Path, on_error: Callable[[str], None] | None = None) -> dict[str, Label]:
    """Return the judgement by trajectory id; a trajectory judged on a later try counts as judged.

    Args:
        on_error: called with "path:line: reason" for a bad line; None raises.

    Raises:
        DataError: missing file or malformed line.
    """
    return {label.trajectory_id: label for label in read_records(path, Label, on_error)}


def read_outcomes(path: Path, on_error: Callable[[str], None] | None = None) -> dict[str, int | None]:
    """Return the reward by trajectory id. Arguments and errors as `read_labels`."""
    return {label.trajectory_id: label.reward for label in read_records(path, Label, on_error)}


PRIOR_TASKS = 4


def count_failures(attempts: Iterable[tuple[str, str, int | None]]) -> tuple[dict[str, int], dict[str, float]]:
    """Return (tasks tried, how many of them failed) by site, from (site, task id, label) of each attempt.

    Attempts at one task are no news of other tasks: together they count as one, by the share of them that failed.
    Attempts without a label do not count.
    """
    tasks: dict[tuple[str, str], list[bool]] = {}
    for site, task_id, label in attempts:
        if label is not None:
            tasks.setdefault((site, task_id), []).append(label == 0)
    tried: dict[str, int] = {}
    failed: dict[str, float] = {}
    for (site, _), outcomes in tasks.items():
        tried[site] = tried.get(site, 0) + 1
        failed[site] = failed.get(site, 0.0) + fmean(outcomes)
    return tried, failed


def failure_rates(tried: Mapping[str, int], failed: Mapping[str, float], sites: Iterable[str]) -> dict[str, float]:
    """Failure rate of each of `sites`, shrunk towards that of all tasks (all the same where nothing was tried).

    The shrinking (`PRIOR_TASKS` more of the common rate: a Beta prior) keeps a site that was tried once from getting
    five times another's share.
    """
    prior = PRIOR_TASKS * sum(failed.values()) / sum(tried.values()) if tried else float(PRIOR_TASKS)
    return {site: (failed.get(site, 0.0) + prior) / (tried.get(site, 0) + PRIOR_TASKS) for site in sites}


def judge_report(truth: Sequence[int], p_yes: Sequence[float], num_unjudged: int = 0) -> dict[str, Any]:
    """Compare judgements with the truth; an answer is positive if P(YES) exceeds 0.5.

    Returns:
        `num` judged trajectories, `num_success` of them, `true_positive`, `false_positive`, `true_negative`,
        `false_negative`; `accuracy`, `balanced_accuracy` (mean of the accuracies on successes and on failures),
        `precision`, `recall`, and `auc` (probability that a success gets a higher P(YES) than a failure), each with
        `value` (None if it is not defined: precision without a positive answer), `ci95` (of proportions, their 95 %
        interval; else empty) and `num` (denominator); `num_unjudged`, which are in none of the figures.
    """
    import numpy as np
    from sklearn.metrics import roc_auc_score

    y = np.asarray(truth, dtype=np.int64)  # [N]
    p = np.asarray(p_yes, dtype=np.float64)  # [N]
    said = (p > 0.5).astype(np.int64)  # [N]
    tp, fp = int((said & y).sum()), int((said & (1 - y)).sum())
    fn, tn = int(y.sum()) - tp, int((1 - y).sum()) - fp
    successes, failures = tp + fn, tn + fp
    has_both = successes > 0 and failures > 0
    return {
        "num": len(y),
        "num_success": successes,
        "true_positive": tp,
        "false_positive": fp,
        "true_negative": tn,
        "false_negative": fn,
        "accuracy": _proportion(tp + tn, len(y)),
        "balanced_accuracy": _figure((tp / successes + tn / failures) / 2 if has_both else None, (), len(y)),
        "precision": _proportion(tp, tp + fp),
        "recall": _proportion(tp, tp + fn),
        "auc": _figure(float(roc_auc_score(y, p)) if has_both else None, (), len(y)),
        "num_unjudged": num_unjudged,
    }


def agreement(trajectories: Path, labels: Path) -> dict[str, Any] | None:
    """The labels against the environment's own reward, in total and by site; None if there is no such reward."""
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
    report = judge_report([r[0] for r in everything], [r[2] for r in everything], unjudged)
    report["auc"] = judge_report([r[0] for r in everything], [r[1] for r in everything])["auc"]
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


def _figure(value: float | None, ci95: tuple[float, ...], num: int) -> dict[str, Any]:
    return {"value": value, "ci95": list(ci95), "num": num}


def _proportion(count: int, num: int) -> dict[str, Any]:
    return _figure(count / num, wilson_interval(count, num), num) if num else _figure(None, (), 0)
