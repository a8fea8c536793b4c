"""One's own site as a suite: what `webrl.rollouts.suite.Suite` asks of one."""

from __future__ import annotations

from webrl.config import RolloutConfig
from webrl.errors import UsageError
from webrl.rollouts.actions import ACTIONS
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import score_episode
from webrl.suites.web.env import WebEnv
from webrl.suites.web.tasks import has_checks, is_web, require_start, site_name
from webrl.types import Task, Trajectory

_PATIENCE_S = 10.0
"""Longest wait of an environment for its turn under `max_actions_per_s`; workers are given up some seconds later."""


class OwnSite:
    """See the module docstring."""

    def owns(self, task: Task) -> bool:
        """By the prefix of its site's name."""
        return is_web(task)

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: a task of another site, settings that cannot work together."""
        require_start(config)
        if task.site != site_name(config):
            raise UsageError(f"task {task.task_id!r} is of {task.site!r}, and rollout.web.name is {config.web.name!r}")
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: tasks.suite=web needs rollout.env=browser")
        check_limits(config)

    def make_env(self, browser: Browser, config: RolloutConfig) -> WebEnv:
        """Logged in, and within the site's limits."""
        return WebEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        """The site's reset, and its log-in."""
        web = config.web
        reset_s = web.reset.timeout_s if web.reset.every == "episode" else 0.0
        return _PATIENCE_S + reset_s + 2 * web.login.timeout_s + (web.serve.timeout_s if web.serve.is_set else 0.0)

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With the reward of the task's checks; without checks as it is."""
        return await score_episode(env, trajectory) if has_checks(trajectory.task) else trajectory


def check_limits(config: RolloutConfig) -> None:
    """Raises UsageError: an action that there is not, or more environments than a limit lets work."""
    web, num_envs = config.web, config.num_workers * config.envs_per_worker
    unknown = sorted(set(web.forbidden_actions) - ACTIONS.keys())
    if unknown:
        raise UsageError(f"rollout.web.forbidden_actions: unknown action {unknown[0]!r}; known: {', '.join(ACTIONS)}")
    if web.reset.every == "episode" and num_envs > 1:
        raise UsageError(
            f"rollout.web.reset.every=episode resets the site under the {num_envs - 1} other environments: set "
            "rollout.num_workers=1 rollout.envs_per_worker=1, or reset.every=stage"
        )
    rate = web.max_actions_per_s
    if rate is not None and num_envs / rate > _PATIENCE_S:
        raise UsageError(
            f"rollout.web.max_actions_per_s={rate:g}: each of {num_envs} environments (num_workers x envs_per_worker) "
            f"waits {num_envs / rate:g} s for its turn, {_PATIENCE_S:g} are allowed; use fewer"
        )
