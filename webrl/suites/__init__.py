"""Which tasks a run starts from and is evaluated on, by `tasks.suite`, and what else differs outside episodes.

Several suites are played as the sum of what each has to say (`mix.py`). How a suite's episodes start and end:
`webrl.rollouts.suite`; `world.py` lists the suites for that.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.evaluate import add_over_start, summarize_evaluation
from webrl.suites import miniwob
from webrl.suites.arena import tasks as arena_tasks
from webrl.suites.mix import by_suite, check_mix, in_turn, parts
from webrl.suites.web import tasks as own_site
from webrl.suites.webarena import tasks as webarena
from webrl.suites.webarena import verified
from webrl.types import Label, Task, Trajectory


def has_page_seeds(site: str) -> bool:
    """True where a seed makes a page (MiniWoB): every generated instruction then gets a page of its own."""
    return site.startswith("miniwob.")


def check_settings(config: RunConfig) -> None:
    """Raises UsageError where settings of the suite, or several suites, cannot work together."""
    check_mix(config)
    for part in parts(config):
        _check_suite(part)


def _check_suite(config: RunConfig) -> None:
    named = config.tasks.train_sites or config.tasks.heldout_sites
    if config.tasks.suite == "miniwob" and named:
        none = config.tasks.model_copy(update={"num_heldout_tasks": 0})
        try:
            miniwob.heldout_tasks(none, config.seed)
        except UsageError as error:
            raise UsageError(f"tasks.train_sites, tasks.heldout_sites: {error}") from None
    if config.tasks.suite == "web":
        from webrl.suites.web.suite import check_limits

        own_site.require_start(config.rollout)
        check_limits(config.rollout)
        if own_site.proposes(config) and config.rollout.web.serve.is_set:
            raise UsageError("rollout.web.serve: nothing is served outside of episodes; name rollout.web.train_files")
        if own_site.proposes(config) and config.num_phases and config.tasks.source != "curriculum":
            raise UsageError(
                f"tasks.source={config.tasks.source} plays instructions of rollout.web.train_files, and there are "
                "none; name some, or let later phases write them too: tasks.source=curriculum"
            )


def proposes_seeds(config: RunConfig) -> bool:
    """True where phase 0 has no instructions of its own, so that the generator proposes them from pages of the site."""
    return own_site.proposes(config)


async def look_around(config: RunConfig) -> list[tuple[Task, str]]:
    """Pages of one's own site that a short look found, as tasks without an instruction, each with its text."""
    from webrl.suites.web.explore import explore

    found = await explore(config.rollout, config.rollout.web.explore_pages)
    name = config.rollout.web.name
    return [
        (own_site.task_at(config.rollout, f"{name}.page-{number}", page.url, ""), page.text)
        for number, page in enumerate(found.pages)
    ]


def shows_pages(site: str) -> bool:
    """True where the generator is shown the page that its instructions start from (one's own site, the arena)."""
    return site.startswith(("web.", "arena."))


def without_reference(extra: dict[str, Any]) -> dict[str, Any]:
    """What a generated task keeps of the data of the one whose page it has: how that one is scored is not its own."""
    kept = {key: value for key, value in extra.items() if key != "webarena"}
    return arena_tasks.without_reference(own_site.without_checks(kept))


def is_seeded(task: Task) -> bool:
    """Whether the task's seed makes its page: a site that is addressed by name, not by URL or task file."""
    return task.start_url is None and not webarena.is_webarena(task)


def sites_of(task: Task) -> list[str]:
    """Where a task is asked: what is asked there in the same words is the same task."""
    return arena_tasks.sites_of(task) if arena_tasks.is_arena(task) else task.site.split("+")


def place_of(task: Task) -> str:
    """Where the same words are the same task: on the arena the site that it starts at, whatever its template."""
    return arena_tasks.sites_of(task)[0] if arena_tasks.is_arena(task) else task.site


def type_of(task: Task) -> str:
    """The task type: its page's name, or on the arena that of the template in whose words its instruction is."""
    return arena_tasks.reads_as(task) if arena_tasks.is_arena(task) else task.site


def instruction_of(task: Task) -> str:
    """What the agent is asked to do, as far as it is known before the page is open ("" on a MiniWoB page)."""
    return webarena.instruction_of(task)


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suites' own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    draw = phase if config.tasks.source == "fresh" else 0
    return in_turn(_seed_tasks(part, draw) for part in parts(config))


def _seed_tasks(config: RunConfig, draw: int) -> list[Task]:
    if config.tasks.suite == "miniwob":
        return miniwob.seed_tasks(config.tasks, config.seed, draw)
    if config.tasks.suite == "arena":
        return arena_tasks.training_tasks(config, f"{config.seed}.{draw}" if draw else None)
    return own_site.training_tasks(config) if config.tasks.suite == "web" else webarena.training_tasks(config)


def eval_tasks(config: RunConfig) -> list[Task]:
    """Held-out tasks, of each suite those of held-out task types last; the same in every phase."""
    return in_turn(map(_eval_tasks, parts(config)))


def _eval_tasks(config: RunConfig) -> list[Task]:
    if config.tasks.suite == "miniwob":
        return [*miniwob.eval_tasks(config.tasks, config.seed), *miniwob.heldout_tasks(config.tasks, config.seed)]
    if config.tasks.suite == "arena":
        return arena_tasks.evaluation_tasks(config)
    if config.tasks.suite == "web":
        return own_site.evaluation_tasks(config)
    return webarena.evaluation_tasks(config.tasks, _webarena_tasks(config))


def held_out(config: RunConfig) -> list[Task]:
    """Everything that an evaluation of these suites may ask: never trained on, however few tasks this run evaluates.

    (MiniWoB's evaluation seeds are no training seeds, so those of this run are enough there.)
    """
    return in_turn(map(_held_out, parts(config)))


def _held_out(config: RunConfig) -> list[Task]:
    (suite,) = config.tasks.suites
    if suite == "miniwob":
        return _eval_tasks(config)
    if suite == "arena":
        return arena_tasks.heldout_tasks(config)
    return own_site.heldout_tasks(config) if suite == "web" else _webarena_tasks(config)


def _webarena_tasks(config: RunConfig) -> list[Task]:
    if config.tasks.suite == verified.SUITE:
        return webarena.interleave(verified.verified_tasks(config.rollout))
    return webarena.load_suite(config.tasks.suite)  # type: ignore[arg-type]


def held_out_beside(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """As `held_out`, where `tasks` may be of another suite than the config's: on WebArena's sites its Lite version."""
    if config.tasks.suite == "miniwob" and any(map(webarena.is_webarena, tasks)):
        return webarena.load_suite("webarena_lite")
    return held_out(config)


def fresh_page(taken: Collection[int], rng: random.Random) -> int:
    """A training page seed that is not taken."""
    while True:
        seed = rng.choice(miniwob.TRAIN_SEEDS)
        if seed not in taken and miniwob.is_split_seed(seed, miniwob.TRAIN_SEEDS):
            return seed


@asynccontextmanager
async def open_sites(config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
    """Hold, and reset, what the tasks' episodes share with the world outside this run; around all of them."""
    async with AsyncExitStack() as held:
        if any(map(arena_tasks.is_arena, tasks)):
            from webrl.suites.arena.session import open_sites as open_arena

            await held.enter_async_context(open_arena(config, tasks))
        if any(map(own_site.is_web, tasks)):
            from webrl.suites.web.session import open_sites as open_own_site

            await held.enter_async_context(open_own_site(config))
        if any(map(webarena.is_webarena, tasks)):
            from webrl.suites.webarena.session import open_sites as open_webarena

            await held.enter_async_context(open_webarena(config, tasks))
        yield


def needs_judge(task: Task) -> bool:
    """Whether an evaluation's episode of this task has no reward unless the outcome model gives one."""
    if arena_tasks.is_arena(task):
        return arena_tasks.eval_of(task) is None
    return own_site.is_web(task) and not own_site.has_checks(task)


def summarize(
    config: RunConfig,
    trajectories: Sequence[Trajectory],
    folder: Path,
    labels: Mapping[str, Label] = {},
    start: Sequence[Trajectory] = (),
) -> dict[str, Any]:
    """An evaluation's counts, of several suites each apart (`by_suite`): a rate over unlike tasks says nothing.

    Files that the suite's users expect of one go to `folder`, a phase's.

    Args:
        labels: by trajectory id, where `needs_judge`.
        start: the supervised start's evaluation, which the counts are held against.
    """
    groups, started = (by_suite(tried, config.tasks.suite) for tried in (trajectories, start))
    counts: dict[str, dict[str, Any]] = {}
    for (suite, tried), part in zip(groups.items(), parts(config), strict=True):
        counts[suite] = _summarize(part, tried, folder, labels)
        add_over_start(counts[suite], tried, started[suite], config.evaluate.confidence)
    return next(iter(counts.values())) if len(counts) == 1 else {"by_suite": counts}


def _summarize(
    config: RunConfig, trajectories: Sequence[Trajectory], folder: Path, labels: Mapping[str, Label]
) -> dict[str, Any]:
    confidence = config.evaluate.confidence
    if config.tasks.suite == "web":
        from webrl.suites.web.report import summarize as summarize_own_site

        return summarize_own_site(trajectories, labels, confidence)
    if config.tasks.suite in ("miniwob", "arena"):
        return summarize_evaluation(trajectories, confidence)
    from webrl.suites.webarena import report

    report.write_task_files(trajectories, folder / "eval_tasks")
    if config.rollout.webarena.vab_traces:
        report.write_traces(trajectories, folder / "vab")
    judged = [trajectory for trajectory in trajectories if not report.is_unjudged(trajectory)]
    return summarize_evaluation(judged, confidence) | {"webarena": report.summarize(trajectories, confidence)}
