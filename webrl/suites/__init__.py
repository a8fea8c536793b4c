"""What a run's suites have to say together (`tasks.suite`): several are played as the sum of what each has to say.

What one suite has to say: `webrl.rollouts.suite.Suite`. A task says by its site whose it is, so episodes, judgement and
filters need no more than the task. What is drawn or counted suite by suite goes over `parts`.
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


def in_turn(groups: Iterable[Sequence[Task]]) -> list[Task]:
    """One of each as long as it has any: what is cut off at the end is not one suite's alone."""
    return [task for row in itertools.zip_longest(*groups) for task in row if task is not None]


def by_suite(tried: Sequence[Trajectory], suites: Any) -> dict[str, list[Trajectory]]:
    """Return the episodes of each suite if `tasks.suite` names several; else all of them under ""."""
    if isinstance(suites, str) or not suites:
        return {"": list(tried)}
    return {suite: [t for t in tried if t.task.site.partition(".")[0] == suite] for suite in suites}


def check_settings(config: RunConfig) -> None:
    """Raise UsageError if settings of the suite, or several suites, cannot work together.

    Several: one that cannot be mixed, fewer tasks than suites, or a type that none of them has.
    """
    tasks, suites = config.tasks, [suite for suite, _ in parts(config)]
    names = [suite.name for suite in suites]
    if len(suites) > 1:
        if alone := [suite.name for suite in suites if not suite.can_mix]:
            raise UsageError(
                f"tasks.suite=[{', '.join(names)}]: {alone[0]!r} cannot be mixed with other suites: it holds "
                "and resets its sites for a whole stage, minutes each time, while the others' episodes would wait; use "
                "a separate run for it"
            )
        if tasks.num_seed_tasks < len(suites):
            raise UsageError(
                f"tasks.num_seed_tasks={tasks.num_seed_tasks} leaves one of {', '.join(names)} without tasks"
            )
        typed = [suite.name for suite in suites if not suite.is_one_type]
        for key in ("train_sites", "heldout_sites"):
            for name in getattr(tasks, key):
                if name.partition(".")[0] not in typed:
                    raise UsageError(f"tasks.{key}: {name!r} is not a task type of {', '.join(typed)}")
    for suite, part in parts(config):
        if config.tasks.source == "fresh" and not suite.draws_fresh:
            raise UsageError(f"tasks.source=fresh needs tasks that a seed makes, and tasks.suite={suite.name} has none")
        suite.check_settings(part, mixed=len(config.tasks.suites) > 1)


def check_installed(config: RunConfig, stages: Collection[str]) -> None:
    """Raise ExtraMissing if one of these stages plays a suite whose packages are not installed."""
    for suite, _ in parts(config):
        if suite.extra and not {"rollout", "accept", "eval"}.isdisjoint(stages):
            require(suite.extra, f"tasks.suite={suite.name}")


def proposing(config: RunConfig) -> Suite | None:
    """The suite whose phase 0 has no instructions, so that the generator proposes them from its pages."""
    return next((suite for suite, part in parts(config) if suite.proposes(part)), None)


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suites' own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    draw = phase if config.tasks.source == "fresh" else 0
    return in_turn(suite.training_tasks(part, draw) for suite, part in parts(config))


def eval_tasks(config: RunConfig) -> list[Task]:
    """Held-out tasks, of each suite those of held-out task types last; the same in every phase."""
    return in_turn(suite.eval_tasks(part) for suite, part in parts(config))


def held_out(config: RunConfig) -> list[Task]:
    """Everything that an evaluation of these suites may ask: never trained on."""
    return in_turn(suite.heldout_tasks(part) for suite, part in parts(config))


def held_out_of(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """As `held_out`; of the tasks' own suites where none of them is akin to one of the config's."""
    theirs = dict.fromkeys(map(suite_of, tasks))
    # Akin is the same one, or one that extends the same suite, as WebArena's two do: their sites are the same.
    lines = [{*type(suite).__mro__} - {*Suite.__mro__} for suite, _ in parts(config)]
    if theirs and not any(line & {*type(each).__mro__} for line in lines for each in theirs):
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
    """An evaluation's counts, of several suites each apart (`by_suite`): a rate over unlike tasks says nothing.

    Args:
        labels: by trajectory id, of tasks that need a judge.
        start: the supervised start's evaluation, with which the counts are compared.
    """
    groups, started = (by_suite(tried, config.tasks.suite) for tried in (trajectories, start))
    counts: dict[str, dict[str, Any]] = {}
    for (name, tried), (suite, part) in zip(groups.items(), parts(config), strict=True):
        counts[name] = suite.summarize(part, tried, folder, labels)
        add_over_start(counts[name], tried, started[name])
    return next(iter(counts.values())) if len(counts) == 1 else {"by_suite": counts}
