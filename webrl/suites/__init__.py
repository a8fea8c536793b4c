"""What a run's suites have to say together (`tasks.suite`): several are played as the sum of what each has to say.

What one suite has to say: `webrl.rollouts.suite.Suite`. How a run is shared among several: `mix.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.config.extras import require
from webrl.errors import UsageError
from webrl.evaluate import add_over_start
from webrl.rollouts.suite import Suite, suite_of
from webrl.suites.mix import by_suite, check_mix, in_turn, parts
from webrl.types import Label, Task, Trajectory


def check_settings(config: RunConfig) -> None:
    """Raises UsageError where settings of the suite, or several suites, cannot work together."""
    check_mix(config)
    for suite, part in parts(config):
        if config.tasks.source == "fresh" and not suite.draws_fresh:
            raise UsageError(f"tasks.source=fresh needs tasks that a seed makes, and tasks.suite={suite.name} has none")
        suite.check_settings(part, mixed=len(config.tasks.suites) > 1)


def check_installed(config: RunConfig, stages: Collection[str]) -> None:
    """Raises ExtraMissing where one of these stages plays a suite whose packages are not installed."""
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
    # Akin is the same one, or one that extends the same suite, as WebArena's three do: their sites are the same.
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
        add_over_start(counts[name], tried, started[name], config.evaluate.confidence)
    return next(iter(counts.values())) if len(counts) == 1 else {"by_suite": counts}
