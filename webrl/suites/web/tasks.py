"""The tasks of one's own site: instruction files as `Task`s, and what a task's checks are.

API: `training_tasks(config)`, `heldout_tasks(config)`, `checks_of(task)`.

A Task's site is `web.NAME`, its start_url absolute; `extra["checks"]` holds the checks as the file has them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import DataError, UsageError
from webrl.suites.web.instructions import Check, Instruction, read_instructions, require_unique
from webrl.types import Lineage, Task

PREFIX = "web."
CHECKS = "checks"
"""Key in the `extra` of a task."""


def site_name(config: RolloutConfig) -> str:
    """The site as tasks name it."""
    return PREFIX + config.web.name


def training_tasks(config: RunConfig) -> list[Task]:
    """Tasks of phase 0: a seeded draw of `num_seed_tasks` from the training files.

    Raises:
        UsageError: no start page.
        DataError: a file that cannot be read or is not understood.
    """
    tasks = _tasks(config.rollout, config.rollout.web.train_files, "train")
    random.Random(config.seed).shuffle(tasks)
    return tasks[: config.tasks.num_seed_tasks]


def heldout_tasks(config: RunConfig) -> list[Task]:
    """All held-out instructions, in file order. Raises as `training_tasks`."""
    return _tasks(config.rollout, config.rollout.web.heldout_files, "eval")


def has_checks(task: Task) -> bool:
    """Whether checks measure its success; else the outcome model judges."""
    return bool(task.extra.get(CHECKS))


def checks_of(task: Task) -> list[Check]:
    """What its success is measured by; [] where the outcome model judges."""
    return [Check.model_validate(data) for data in task.extra.get(CHECKS, ())]


def require_start(config: RolloutConfig) -> None:
    """Raises UsageError without a start page."""
    if not config.web.start_urls:
        raise UsageError("tasks.suite=web needs start pages: rollout.web.start_urls=[http://127.0.0.1:5000/]")


def task_at(config: RolloutConfig, task_id: str, url: str, instruction: str) -> Task:
    """A task without checks at a page of the site."""
    return Task(
        task_id=task_id,
        site=site_name(config),
        instruction=instruction,
        start_url=url,
        lineage=Lineage(strategy="seed"),
    )


def _tasks(config: RolloutConfig, files: Sequence[Path], split: str) -> list[Task]:
    require_start(config)
    known = [instruction for path in files for instruction in read_instructions(path)]
    require_unique(known)
    return [_task(config, instruction, split) for instruction in known]


def _task(config: RolloutConfig, instruction: Instruction, split: str) -> Task:
    web = config.web
    start = web.absolute(instruction.start or "")
    parts = urlsplit(start)
    host, name = parts.netloc.lower(), parts.hostname or ""
    if parts.scheme not in ("http", "https"):
        raise DataError(f"{instruction.where}: start {instruction.start!r} is no web address")
    if not {host, name, "*"} & {*web.hosts, *(h.lower() for h in config.allowed_hosts)}:
        raise DataError(
            f"{instruction.where}: start {instruction.start!r} is outside the site's hosts {', '.join(web.hosts)}; "
            "add it to rollout.web.start_urls or rollout.allowed_hosts"
        )
    if web.database is None and any(check.sql for check in instruction.checks):
        raise DataError(f"{instruction.where}: a sql check needs rollout.web.database=sqlite:///FILE")
    if not web.verify and any(check.verify for check in instruction.checks):
        raise DataError(
            f"{instruction.where}: a verify check needs rollout.web.verify, the program that it is asked of"
        )
    checks = [check.to_json() for check in instruction.checks]
    return Task(
        task_id=f"{site_name(config)}.{instruction.id}",
        site=site_name(config),
        instruction=instruction.instruction,
        start_url=start,
        split=split,
        extra={CHECKS: checks} if checks else {},
    )
