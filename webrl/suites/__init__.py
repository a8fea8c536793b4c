"""What a run asks its suite (`tasks.suite`, `webrl.rollouts.suite.Suite`).

A task says by its site whose it is, so episodes, judgement and filters need no more than the task.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.config.extras import require
from webrl.errors import UsageError
from webrl.evaluate import add_over_start
from webrl.rollouts.suite import Suite, find_suite, suite_of
from webrl.types import Label, Task, Trajectory


def in_turn(groups: Iterable[Sequence[Task]]) -> list[Task]:
    """One of each as long as it has any: what is cut off at the end is not one group's alone."""
    return [task for row in itertools.zip_longest(*groups) for task in row if task is not None]


def check_settings(config: RunConfig) -> None:
    """Raise UsageError if settings of the suite cannot work together."""
    suite = find_suite(config.tasks.suite)
    if config.tasks.source == "fresh" and not suite.draws_fresh:
        raise UsageError(f"tasks.source=fresh needs tasks that a seed makes, and tasks.suite={suite.name} has none")
    suite.check_settings(config)


def check_installed(config: RunConfig, stages: Collection[str]) -> None:
    """Raise ExtraMissing if one of these stages plays a suite whose packages are not installed."""
    suite = find_suite(config.tasks.suite)
    if suite.extra and not {"rollout", "accept", "eval"}.isdisjoint(stages):
        require(suite.extra, f"tasks.suite={suite.name}")


def proposing(config: RunConfig) -> Suite | None:
    """The suite, if its phase 0 has no instructions, so that the generator proposes them from its pages."""
    suite = find_suite(config.tasks.suite)
    return suite if suite.proposes(config) else None


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suite's own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    return find_suite(config.tasks.suite).training_tasks(config, phase if config.tasks.source == "fresh" else 0)


def eval_tasks(config: RunConfig) -> list[Task]:
    """Held-out tasks, those of held-out task types last; the same in every phase."""
    return find_suite(config.tasks.suite).eval_tasks(config)


def held_out(config: RunConfig) -> list[Task]:
    """Everything that an evaluation of the suite may ask: never trained on."""
    return find_suite(config.tasks.suite).heldout_tasks(config)


def held_out_of(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """As `held_out`; of the tasks' own suites where none of them is akin to the config's."""
    theirs = dict.fromkeys(map(suite_of, tasks))
    # Akin is the same one, or one that extends the same suite, as WebArena's two do: their sites are the same.
    line = {*type(find_suite(config.tasks.suite)).__mro__} - {*Suite.__mro__}
    if theirs and not any(line & {*type(each).__mro__} for each in theirs):
        return in_turn(suite.heldout_tasks(config) for suite in theirs)
    return held_out(config)


@asynccontextmanager
async def open_sites(config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
    """Hold, and reset, what the tasks' episodes share with the world outside this run; around all of them."""
    groups: dict[Suite, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[suite_of(task)].append(task)
    async with AsyncExitStack() as held:
        for suite, theirs in sorted(groups.items(), key=lambda group: group[0].name):
            await held.enter_async_context(suite.open_sites(config, theirs))
        yield


def summarize(
    config: RunConfig,
    trajectories: Sequence[Trajectory],
    folder: Path,
    labels: Mapping[str, Label] = {},
    start: Sequence[Trajectory] = (),
) -> dict[str, Any]:
    """An evaluation's counts.

    Args:
        labels: by trajectory id, of tasks that need a judge.
        start: the supervised start's evaluation, with which the counts are compared.
    """
    counts = find_suite(config.tasks.suite).summarize(config, trajectories, folder, labels)
    add_over_start(counts, trajectories, start)
    return counts
