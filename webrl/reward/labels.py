"""`labels.jsonl`: judgements by trajectory. A later line of the same trajectory replaces an earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean

from webrl.runs.store import read_records
from webrl.types import Label


def read_labels(path: Path, on_error: Callable[[str], None] | None = None) -> dict[str, Label]:
    """Return the judgement by trajectory id; an unjudged trajectory that was judged on a later try counts as judged.

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
