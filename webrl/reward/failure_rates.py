"""Computes how often each site's tasks fail by their labels; new tasks and replayed steps are drawn in proportion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

PRIOR_TASKS = 4


def count_failures(attempts: Iterable[tuple[str, str, int | None]]) -> tuple[dict[str, int], dict[str, float]]:
    """(tasks tried, how many of them failed) by site, from (site, task id, label) of each attempt.

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
