"""Suites of tasks: the base class of all, and how the suite of a name or a task is found."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

from webrl.config import RolloutConfig, RunConfig, plugins
from webrl.errors import BrowserError, UsageError
from webrl.evaluate import is_decided, summarize_evaluation
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Env, Score, checked_reward
from webrl.rollouts.sites import Site, open_site
from webrl.types import Label, Task, Trajectory

logger = logging.getLogger(__name__)

API_VERSION = 2
"""Of `Suite`; it grows when a suite that was written for the class as it was would do something else."""


class Expert(Protocol):
    """A script that plays the tasks of one type from the same text that an agent sees."""

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """The next action; None if it cannot continue. `history`: the answers whose actions have worked."""


class Suite(ABC):
    """One kind of tasks: what a run of `tasks.suite=NAME` trains on and is evaluated on, and how episodes are played.

    To write one, subclass this, set `name` and `api_version`, and implement `training_tasks` and `eval_tasks`:

        class Notes(Suite):
            name = "notes"
            api_version = 2

            def training_tasks(self, config, draw=0):
                return [Task("notes.0", "notes.add", instruction="Add a note", start_url="http://127.0.0.1:5000/")]

            def eval_tasks(self, config):
                return [Task("notes.1", "notes.add", instruction="Add two notes", start_url="…", split="eval")]

    A task's `site` is its type and begins with the suite's name and a dot. Then let your package say where it is:

        [project.entry-points."webrl.suites"]
        notes = "my_package.suite:Notes"

    Once the package is installed, `webrl run tasks.suite=notes` plays it, `webrl record-demos` records its experts,
    and `webrl serve-env` serves it. Nothing else is needed where a page is opened at `start_url` and the outcome model
    judges. What else to override:

    - reward: `open_site`, whose `Site` starts an episode in the page, returns its goal, and reads the reward there
      (the tasks have no instruction then); or `make_env`, with an environment whose `finish` scores the episode, and
      here `finish`, which calls `score_episode`, and `needs_judge`;
    - `expert`, scripts that record demonstrations; `demonstration_types`, what they are recorded of;
    - a world that several runs share: `open_sites`, around all episodes of a stage;
    - tasks that the generator writes: `has_page_seeds`, `shows_pages`, `without_reference`, and `dedupe_key`,
      `task_type` and `sites_of`, by which they are compared with those of an evaluation;
    - what an evaluation reports: `summarize`, `describe`; what cannot work: `check`, `check_settings`.

    One instance serves all tasks of a process and keeps no state of an episode. Heavy imports belong into the methods:
    the module is imported when a config or a task names the suite. Pages run in worker processes, which import it too.
    """

    name: ClassVar[str]
    """As in `tasks.suite`, and the first part of its tasks' sites."""
    api_version: ClassVar[int]
    """The `API_VERSION` that it was written for."""
    extra: ClassVar[str | None] = None
    """Row of `webrl.config.extras.EXTRAS` without which its episodes cannot be played."""
    has_page_seeds: ClassVar[bool] = False
    """A seed makes a page, so every generated instruction gets its own page (`fresh_seed`)."""
    shows_pages: ClassVar[bool] = False
    """The generator sees the page that its instructions start from."""
    is_stateless: ClassVar[bool] = False
    """Pages hold nothing but themselves: they stay open between episodes, and browsers between stages."""
    draws_fresh: ClassVar[bool] = False
    """`training_tasks` has other tasks for every draw (`tasks.source=fresh`)."""
    can_record_by_hand: ClassVar[bool] = True
    """A person may play its tasks in a visible browser (`webrl record-demos --by-hand`)."""
    not_served: ClassVar[str] = ""
    """Why `webrl serve-env` does not serve its tasks; empty: it does, by name and seed."""
    first_task: ClassVar[str] = "miniwob.click-test"
    """What the server plays if a reset names no task."""

    @abstractmethod
    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        """At most `tasks.num_seed_tasks` tasks to train on, drawn by `config.seed`; where `draws_fresh`, `draw` is
        which of many, and phases count from 0. Raises UsageError, DataError: settings or files that cannot be used.
        """

    @abstractmethod
    def eval_tasks(self, config: RunConfig) -> list[Task]:
        """What a run is evaluated on, the same in every phase: at most `tasks.num_eval_tasks` with the split `eval`,
        then at most `tasks.num_heldout_tasks` of types that are never trained on, with `eval_heldout`. Raises as
        `training_tasks`.
        """

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        """Everything that an evaluation may ask: never trained on, however few tasks this run evaluates."""
        return self.eval_tasks(config)

    def first_heldout_tasks(self, config: RunConfig) -> list[Task]:
        """The `eval_tasks` of a suite whose `heldout_tasks` are a fixed list: its first `tasks.num_eval_tasks`."""
        tasks, count = self.heldout_tasks(config), config.tasks.num_eval_tasks
        if count < len(tasks):
            logger.warning("tasks.suite=%s: %d of %d held-out tasks (num_eval_tasks)", self.name, count, len(tasks))
        return tasks[:count]

    def check_settings(self, config: RunConfig) -> None:  # noqa: B027 (most have nothing to refuse)
        """Raise UsageError if settings cannot work together."""

    def proposes(self, config: RunConfig) -> bool:  # noqa: ARG002
        """Whether phase 0 has no instructions, so that the generator proposes them for pages of `explore`."""
        return False

    async def explore(self, config: RunConfig) -> list[tuple[Task, str]]:
        """Pages to propose instructions for, as tasks without one, each with its text."""
        raise NotImplementedError(f"{self.name} proposes tasks but explores no pages")

    def fresh_seed(self, taken: Collection[int], rng: random.Random) -> int:
        """A seed of a page to train on, where `has_page_seeds`, that is not taken."""
        while (seed := rng.randrange(1_000_000)) in taken:
            pass
        return seed

    def named_tasks(self, types: Sequence[str], seeds: Sequence[int], seed: int) -> list[Task]:  # noqa: ARG002
        """A training task of each of these types, which may repeat, with a seed for each; `seed` is the training's."""
        return [Task(f"{site}.{number}", site=site, seed=number) for site, number in zip(types, seeds, strict=True)]

    def check(self, task: Task, config: RolloutConfig) -> None:  # noqa: ARG002
        """Raise DataError or UsageError, before anything starts, if a task cannot be played."""
        self.open_site(task)

    def open_site(self, task: Task) -> Site:
        """How an episode of the task starts and ends in its page; by default at its `start_url`, without a reward.
        Raises DataError: a task that names no page.
        """
        return open_site(task)

    def make_env(self, browser: Browser, config: RolloutConfig) -> BrowserEnv:
        """An environment for tasks of this suite."""
        return BrowserEnv(browser, config, self.open_site)

    def reset_allowance_s(self, config: RolloutConfig) -> float:  # noqa: ARG002
        """Seconds that a reset may take beyond a step's deadline."""
        return 0.0

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        """The trajectory with what is known only after its last step; called once after every episode."""
        return trajectory

    def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """Hold, and reset, what the tasks' episodes share with the world outside this run; around all of them."""
        return nullcontext()

    def with_step_rewards(self, config: RolloutConfig) -> RolloutConfig:
        """The settings with a reward in every step: OpenEnv's protocol knows no other."""
        return config

    def needs_judge(self, task: Task) -> bool:
        """Whether an evaluation's episode of this task has no reward unless the outcome model gives one: by default
        where the instruction is the task's, as a page rewards its own alone. Suites whose `finish` scores episodes
        override it.
        """
        return task.instruction is not None

    def instruction_of(self, task: Task) -> str:
        """The agent's goal, if known before the page is open."""
        return task.instruction or ""

    def is_seeded(self, task: Task) -> bool:
        """Whether the task's seed makes its page: a site that is addressed by name, not by URL or task file."""
        return task.start_url is None

    def sites_of(self, task: Task) -> list[str]:
        """The sites on which an equal instruction is the same task."""
        return task.site.split("+")

    def dedupe_key(self, task: Task) -> str:
        """Where the same words are the same task, among those that are generated."""
        return task.site

    def task_type(self, task: Task) -> str:
        """The type of a task, also of a generated one."""
        return task.site

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        """What a generated task keeps of the `extra` of the one whose page it has, without how that one is scored."""
        return extra

    def demonstration_types(self, config: RunConfig) -> Sequence[str]:
        """The task types that experts play."""
        return config.tasks.train_sites or (self.name,)

    def expert(self, task_type: str) -> Expert | None:  # noqa: ARG002
        """The script that plays a task type, or None."""
        return None

    def summarize(
        self,
        config: RunConfig,  # noqa: ARG002
        trajectories: Sequence[Trajectory],
        folder: Path,  # noqa: ARG002
        labels: Mapping[str, Label],
    ) -> dict[str, Any]:
        """The counts of an evaluation (`webrl.evaluate.summarize_evaluation`), and what else the suite has to say.

        By default success is by reward, or by the outcome model where `needs_judge`; finished episodes without
        a judgement are in no rate and counted as `undecided`.

        Args:
            folder: a phase's, for files that the suite's users expect.
            labels: by trajectory id, where `needs_judge`.
        """
        counted = [t for t in trajectories if not self.needs_judge(t.task)]
        for trajectory in trajectories:
            if self.needs_judge(trajectory.task):
                label = labels.get(trajectory.trajectory_id)
                counted.append(dataclasses.replace(trajectory, env_reward=label.reward if label else None))
        decided = [t for t in counted if is_decided(t) or not self.needs_judge(t.task)]
        undecided = {"undecided": len(counted) - len(decided)} if len(counted) > len(decided) else {}
        return summarize_evaluation(decided) | undecided

    def describe(self, counts: Mapping[str, Any]) -> str:  # noqa: ARG002
        """What the command line prints of `summarize` in addition to the success rate; "" for nothing."""
        return ""


class _Pages(Suite):
    """Tasks of no suite: any page with a URL, which an outcome model judges."""

    name = "pages"
    api_version = API_VERSION
    not_served = "it is of no suite"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:  # noqa: ARG002
        return []

    def eval_tasks(self, config: RunConfig) -> list[Task]:  # noqa: ARG002
        return []


PAGES = _Pages()
"""The suite of tasks that no other one has."""


def find_suite(name: str) -> Suite:
    """The suite of a name. Raises ExtraMissing: it is one of webrl's and not installed; UsageError: no package has it,
    two have it, it cannot be imported, is not a Suite, or has another version.
    """
    return _load(plugins.SUITES, name)


def suite_of(task: Task) -> Suite:
    """The suite that a task is of. Raises as `find_suite`."""
    return suite_at(task.site)


def suite_at(site: str) -> Suite:
    """The suite of the tasks with this `site`: the one it begins with the name of. Raises as `find_suite`."""
    name, dot, _ = site.partition(".")
    if dot and plugins.is_known(plugins.SUITES, name):
        return find_suite(name)
    first = site.partition("+")[0]
    return _load(plugins.SITES, first) if plugins.is_known(plugins.SITES, first) else PAGES


@cache
def _load(group: str, name: str) -> Suite:
    try:
        made = plugins.load(group, name)
    except UsageError as error:
        raise type(error)(f"tasks.suite: {error}") from error
    if not (isinstance(made, type) and issubclass(made, Suite)):
        raise UsageError(f"tasks.suite: {name!r} is {made!r:.100}, not a subclass of webrl.rollouts.suite.Suite")
    version = getattr(made, "api_version", None)
    if version != API_VERSION:
        raise UsageError(
            f"tasks.suite: {name!r} has api_version {version}, but this webrl needs {API_VERSION}; install a "
            f"matching version of its package ({made.__module__.partition('.')[0]})"
        )
    if group == plugins.SUITES and made.name != name:
        raise UsageError(f"tasks.suite: the package of {name!r} calls it {made.name!r}; the names must match")
    return made()


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suite's own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    return find_suite(config.tasks.suite).training_tasks(config, phase if config.tasks.source == "fresh" else 0)


def in_turn(groups: Iterable[Sequence[Task]]) -> list[Task]:
    """One of each as long as it has any: what is cut off at the end is not one group's alone."""
    return [task for row in itertools.zip_longest(*groups) for task in row if task is not None]


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


async def score_episode(env: Env, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the environment's score of it; an unfinished one only has the environment closed."""
    if not trajectory.status.finished:
        await env.close()
        return trajectory
    try:
        score = await env.finish()
    except BrowserError as error:  # the worker has gone, or does not answer
        score = Score(None, str(error))
    checked_reward(trajectory.trajectory_id, score.reward or 0)
    if score.note:
        level = logging.WARNING if score.reward is None else logging.DEBUG
        logger.log(level, "%s: %s", trajectory.trajectory_id, score.note)
    return dataclasses.replace(trajectory, env_reward=score.reward, env_error=score.note)
