"""Several suites in one curriculum (`tasks.suite=[miniwob, arena]`): the config as each of them alone would see it.

A task says by its site whose it is, so episodes, judgement and filters need no more than the task. What is drawn or
counted suite by suite goes over `parts`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.rollouts.suite import Suite, find_suite
from webrl.types import Task, Trajectory

_SHARED = ("num_seed_tasks", "num_eval_tasks", "num_heldout_tasks")
"""Numbers that the suites share evenly, the first ones having one more where they must."""


def parts(config: RunConfig) -> list[tuple[Suite, RunConfig]]:
    """Each suite with the config as it alone would see it: its share of the tasks, its own of the named task types."""
    tasks, suites = config.tasks, config.tasks.suites
    if len(suites) == 1:
        return [(find_suite(suites[0]), config)]
    found = []
    for number, suite in enumerate(suites):
        part: dict[str, object] = {"suite": suite}
        for key in _SHARED:
            part[key] = (getattr(tasks, key) + len(suites) - 1 - number) // len(suites)
        for key in ("train_sites", "heldout_sites"):
            part[key] = tuple(name for name in getattr(tasks, key) if name.startswith(f"{suite}."))
        found.append((find_suite(suite), config.model_copy(update={"tasks": tasks.model_copy(update=part)})))
    return found


def check_mix(config: RunConfig) -> None:
    """Raises UsageError where several suites cannot share a run: one that goes alone, fewer tasks than suites, or a
    type that none of them has.
    """
    tasks, suites = config.tasks, [suite for suite, _ in parts(config)]
    if len(suites) == 1:
        return
    names = [suite.name for suite in suites]
    if alone := [suite.name for suite in suites if not suite.can_mix]:
        raise UsageError(
            f"tasks.suite=[{', '.join(names)}]: {alone[0]!r} is not mixed with other suites: its sites are held and "
            "reset for the whole of a stage, minutes each time, while the others' episodes would wait; give it a run "
            "of its own"
        )
    if tasks.num_seed_tasks < len(suites):
        raise UsageError(f"tasks.num_seed_tasks={tasks.num_seed_tasks} leaves one of {', '.join(names)} without tasks")
    typed = [suite.name for suite in suites if not suite.is_one_type]
    for key in ("train_sites", "heldout_sites"):
        for name in getattr(tasks, key):
            if name.partition(".")[0] not in typed:
                raise UsageError(f"tasks.{key}: {name!r} is no task type of {', '.join(typed)}")


def in_turn(groups: Iterable[Sequence[Task]]) -> list[Task]:
    """One of each as long as it has any: what is cut off at the end is not one suite's alone."""
    return [task for row in itertools.zip_longest(*groups) for task in row if task is not None]


def by_suite(tried: Sequence[Trajectory], suites: Any) -> dict[str, list[Trajectory]]:
    """The episodes of each suite, where `tasks.suite` is several; else all of them by ""."""
    if isinstance(suites, str) or not suites:
        return {"": list(tried)}
    return {suite: [t for t in tried if t.task.site.partition(".")[0] == suite] for suite in suites}
