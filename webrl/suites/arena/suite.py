"""The arena as a suite: what `webrl.rollouts.suite.Suite` asks of one."""

from __future__ import annotations

from webrl.arena.sites import starts_at_a_site
from webrl.config import RolloutConfig
from webrl.errors import UsageError
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import score_episode
from webrl.suites.arena.env import ArenaEnv
from webrl.suites.arena.tasks import find_task, is_arena
from webrl.types import Task, Trajectory

_SESSION_S = 60.0
"""Longest wait for a new session."""


class ArenaSuite:
    """See the module docstring."""

    def owns(self, task: Task) -> bool:
        """By the prefix of its site's name."""
        return is_arena(task)

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: remote environments, a start page outside the arena; DataError: no such task."""
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: tasks.suite=arena needs rollout.env=browser")
        if task.start_url is None:
            find_task(task.site, task.seed, config.arena)
            return
        if not starts_at_a_site(task.start_url):
            raise UsageError(f"task {task.task_id!r}: start_url {task.start_url!r} must begin with a site's __NAME__")

    def make_env(self, browser: Browser, config: RolloutConfig) -> ArenaEnv:
        """In a session of its own."""
        return ArenaEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:  # noqa: ARG002
        """Making the session."""
        return _SESSION_S

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With the score; the session is dropped."""
        scored = await score_episode(env, trajectory)
        await env.close()
        return scored
