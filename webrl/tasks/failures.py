"""What went wrong last time: the seeds of new instructions.

Two sources: a run folder (phases that have both trajectories and labels), or JSONL lines of instructions (`task` and
`web`, as in the released code's file) or tasks of ours, and optionally `page`, `seed`, `start_url`, `task_id`. A
failure is a trajectory that the outcome model judged 0; an unjudged one is neither failed nor done.

Each site brings the failures of the newest phase that attempted it. With those of the newest phase alone (paper), a
site that a filter once emptied never comes back: 25 task types were 9 after one phase and 4 after four.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from webrl.errors import DataError
from webrl.reward.labels import count_failures, failure_rates, read_outcomes
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_lines, read_records
from webrl.types import Record, Task, Trajectory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure(Record):
    """One attempted task with what the agent saw.

    Example: `Failure(task=Task(…, instruction='Click on the "ok" button.'), page="[12] button 'ok'")`
    """

    task: Task
    """The task; its `instruction` is what the agent was given."""
    page: str = ""
    """The initial page, or "" if it is not known."""


@dataclass(frozen=True)
class FailureSet:
    """Seeds of generation, and where they come from."""

    failures: tuple[Failure, ...]
    """In file order; the attempted tasks themselves if nothing failed (`from_seeds`)."""
    from_seeds: bool = False
    """True if nothing failed, so that the attempted tasks are used instead."""
    tried: Mapping[str, int] = field(default_factory=dict)
    """Judged tasks of each site in the phase that its failures come from; empty if only failures are known."""
    failed: Mapping[str, float] = field(default_factory=dict)
    """Number of failures; a task with several attempts counts as its share of failed ones."""

    def shares(
        self, rule: Literal["failures", "learnability"] = "failures", *, every_site: bool = False
    ) -> dict[str, float]:
        """Return each site's share of the next tasks, by its failure rate f shrunk towards that of all sites.

        Weighted by the number of failures (the fallback if nothing else is known), sites with many tasks would get
        more and more.

        Args:
            rule: f (paper: tasks come from failures), or f (1 - f), the variance of the outcome (arXiv 2408.15099): a
                site that always fails gives no success to learn from, and gets little.
            every_site: include sites without a failure, for tasks that are not written from one.
        """
        groups = self.by_site()
        if not self.tried:
            return {site: float(len(group)) for site, group in groups.items()}
        rates = failure_rates(self.tried, self.failed, self.tried if every_site else groups)
        if rule == "failures" or all(rate == 1 for rate in rates.values()):
            return rates
        return {site: rate * (1 - rate) for site, rate in rates.items()}

    def by_site(self) -> dict[str, list[Failure]]:
        """Return the failures of each site, sites in order of first appearance."""
        groups: dict[str, list[Failure]] = {}
        for failure in self.failures:
            groups.setdefault(failure.task.site, []).append(failure)
        return groups


def load_failures(source: Path, before: int | None = None) -> FailureSet:
    """Read failures from a run folder (of the phases before `before`), a phase folder, or a JSONL file; unusable lines
    are listed, not fatal. Raises DataError: nothing usable there.
    """
    problems: list[str] = []
    failed: list[Failure] = []
    attempted: list[Failure] = []
    tried: dict[str, int] = {}
    lost: dict[str, float] = {}
    if source.is_dir():
        run = RunFolder(source)
        last = run.last_phase() if before is None else before - 1
        phases = [source, *(run.phase(number).path for number in range(last, -1, -1))]  # newest first
        files = ("trajectories.jsonl", "labels.jsonl")
        judged = [folder for folder in phases if all((folder / name).is_file() for name in files)]
        if not judged:
            raise DataError(
                f"{source}: no phase with trajectories.jsonl and labels.jsonl; run `webrl rollout` and `webrl label`"
            )
        for folder in judged:
            rewards = read_outcomes(folder / "labels.jsonl", problems.append)
            now = [
                (
                    Failure(replace(t.task, instruction=t.instruction), t.steps[0].observation),
                    rewards.get(t.trajectory_id),
                )
                for t in read_records(folder / "trajectories.jsonl", Trajectory, problems.append)
                if t.status.finished and t.steps and t.instruction.strip()
            ]
            failed += [f for f, reward in now if reward == 0 and f.task.site not in tried]
            counts, lost_now = count_failures((f.task.site, f.task.task_id, reward) for f, reward in now)
            for site, num in counts.items():
                if site not in tried:
                    tried[site], lost[site] = num, lost_now[site]
            attempted = attempted or [failure for failure, _ in now]
    else:
        known: dict[str, Failure] = {}
        for number, data in read_lines(source, problems.append):
            try:
                task = task_of_line(data, f"{source.stem}-{number}")
                if not (task.instruction or "").strip():
                    raise ValueError(f"`instruction` must be non-empty text, found {task.instruction!r:.80}")
                failure = Failure.from_json({"task": task.to_json(), "page": data.get("page", "")})
            except ValueError as error:
                problems.append(f"{source}:{number}: {error}")
                continue
            if known.setdefault(task.task_id, failure) is not failure:
                problems.append(f"{source}:{number}: duplicate task_id {task.task_id!r}; the first one is used")
        failed = attempted = list(known.values())
    for problem in problems:
        logger.warning("%s", problem)
    if not attempted:
        first = f"; first problem: {problems[0]}" if problems else ""
        raise DataError(f"{source}: no attempted task to generate from{first}")
    if not failed:
        logger.warning("%s: nothing failed; the %d attempted tasks are used as seeds", source, len(attempted))
    return FailureSet(tuple(failed or attempted), not failed, tried if failed else {}, lost)


def task_of_line(data: Any, default_id: str) -> Task:
    """The task of a line with `task` and `web`, as in the released code, or of a task of ours. Raises ValueError."""
    if isinstance(data, dict) and {"site", "task_id"} <= data.keys() and "web" not in data:
        return Task.from_json({key: value for key, value in data.items() if key != "page"})
    if not isinstance(data, dict):
        raise ValueError(f"expected an instruction (an object with `task` and `web`), found {data!r:.80}")
    for key in ("task", "web"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise ValueError(
                f"expected an instruction (`task` and `web`) or a task (`task_id` and `site`): `{key}` must be "
                f"non-empty text, found {data.get(key)!r:.80}"
            )
    fields = {"task_id": default_id, "site": data["web"].strip(), "instruction": data["task"].strip()}
    more = ("task_id", "seed", "start_url", "lineage")
    return Task.from_json(fields | {key: data[key] for key in more if key in data})
