"""WebArena as a suite: what `webrl.rollouts.suite.Suite` asks of one."""

from __future__ import annotations

from webrl.config import RolloutConfig
from webrl.errors import UsageError
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import score_episode
from webrl.suites.webarena.env import WebArenaEnv
from webrl.suites.webarena.locks import LEASE_TIMEOUT_S
from webrl.suites.webarena.tasks import is_webarena
from webrl.types import Task, Trajectory

LOGIN_TIMEOUT_S = 120.0
"""A reset may log in to several sites."""


class WebArena:
    """See the module docstring."""

    def owns(self, task: Task) -> bool:
        """Not by `task.extra` alone: training tasks and generated ones have none, only a site and a placeholder."""
        return is_webarena(task)

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: remote environments."""
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: WebArena tasks need rollout.env=browser")

    def make_env(self, browser: Browser, config: RolloutConfig) -> WebArenaEnv:
        """With sites leased, logged in, and a validation at the end."""
        return WebArenaEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        """Waiting for the sites, and logging in."""
        del config
        return LEASE_TIMEOUT_S + LOGIN_TIMEOUT_S

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With BrowserGym's score; the sites are free again."""
        return await score_episode(env, trajectory)
