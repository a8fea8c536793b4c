"""What a suite of tasks brings to its episodes, and where they are played; rollouts know a suite by this alone.

API: a `Suite` owns tasks and says how they are started and finished. A `World` is the suites that `collect` may meet
and the servers that it may ask; `WEB` has none but web pages (MiniWoB's and any other), `webrl.suites.world.WORLD` has
all that webrl knows.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Env, Pool, Score
from webrl.rollouts.sites import open_site
from webrl.types import Task, Trajectory

logger = logging.getLogger(__name__)


class Suite(Protocol):
    """One kind of tasks."""

    def owns(self, task: Task) -> bool:
        """Whether the task is of this suite."""
        ...

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Refuse, before anything starts, what cannot be played. Raises DataError, UsageError."""
        ...

    def make_env(self, browser: Browser, config: RolloutConfig) -> BrowserEnv:
        """An environment for tasks of this suite."""
        ...

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        """Seconds that a reset may take beyond a step's deadline."""
        ...

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """The trajectory with what is known only after its last step; called once after every episode."""
        ...


async def score_episode(env: Env, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the environment's score of it; an unfinished one only has the environment closed."""
    if not trajectory.status.finished:
        await env.close()
        return trajectory
    try:
        score = await env.finish()
    except BrowserError as error:  # the worker has gone, or does not answer
        score = Score(None, str(error))
    if score.note:
        level = logging.WARNING if score.reward is None else logging.DEBUG
        logger.log(level, "%s: %s", trajectory.trajectory_id, score.note)
    return dataclasses.replace(trajectory, env_reward=score.reward, env_error=score.note)


class WebPages:
    """Tasks that a page starts and rewards (MiniWoB), or that an outcome model judges (any start page)."""

    def owns(self, task: Task) -> bool:  # noqa: ARG002
        """Whatever no other suite claims."""
        return True

    def check(self, task: Task, config: RolloutConfig) -> None:  # noqa: ARG002
        """Raises DataError: a task that names no known page."""
        open_site(task)

    def make_env(self, browser: Browser, config: RolloutConfig) -> BrowserEnv:
        """As any other page."""
        return BrowserEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:  # noqa: ARG002
        """None."""
        return 0.0

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:  # noqa: ARG002
        """As it is: the page has said all."""
        return trajectory


@dataclass(frozen=True)
class World:
    """What `collect` plays in."""

    path: str
    """`module:name` of this very object, by which workers in other processes find it."""
    suites: tuple[Suite, ...]
    """Asked in turn whose a task is; the last one owns every task."""
    remote: Callable[[RolloutConfig], AbstractAsyncContextManager[Pool]] | None = None
    """Opens environments on servers (`rollout.env=openenv`)."""

    def suite_of(self, task: Task) -> Suite:
        """The suite of a task."""
        return next(suite for suite in self.suites if suite.owns(task))


def find_world(path: str) -> World:
    """The world of a `World.path`."""
    module, _, name = path.partition(":")
    world: World = getattr(importlib.import_module(module), name)
    return world


WEB = World("webrl.rollouts.suite:WEB", (WebPages(),))
"""Web pages, in browsers of our own."""
