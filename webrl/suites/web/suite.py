"""One's own site as a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.rollouts.actions import ACTIONS
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import API_VERSION, Suite, score_episode
from webrl.suites.web import tasks as own_site
from webrl.suites.web.env import WebEnv
from webrl.suites.web.explore import explore
from webrl.suites.web.report import summarize
from webrl.suites.web.session import open_sites
from webrl.types import Label, Task, Trajectory

_PATIENCE_S = 10.0
"""Longest wait of an environment for its turn under `max_actions_per_s`; workers are given up some seconds later."""


class OwnSite(Suite):
    """A web application, with instructions of yours or of the generator."""

    name = "web"
    api_version = API_VERSION
    shows_pages = True
    is_one_type = True
    not_served = "serve-env holds no site's log-in, checks and limits; use `webrl run`"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:  # noqa: ARG002
        """Of the training files."""
        return own_site.training_tasks(config)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        """Of the held-out files."""
        return own_site.evaluation_tasks(config)

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        """All of them."""
        return own_site.heldout_tasks(config)

    def check_settings(self, config: RunConfig, *, mixed: bool) -> None:
        """Raises UsageError: no start page, limits that cannot be kept, or no instructions where some are needed."""
        own_site.require_start(config.rollout)
        check_limits(config.rollout)
        if not self.proposes(config):
            return
        if mixed:
            raise UsageError(
                "tasks.suite: beside other suites one's own site needs instructions, rollout.web.train_files; the "
                "generator proposes those of phase 0 for tasks.suite=web alone"
            )
        if config.rollout.web.serve.is_set:
            raise UsageError("rollout.web.serve: nothing is served outside of episodes; name rollout.web.train_files")
        if config.num_phases and config.tasks.source != "curriculum":
            raise UsageError(
                f"tasks.source={config.tasks.source} plays instructions of rollout.web.train_files, and there are "
                "none; name some, or let later phases write them too: tasks.source=curriculum"
            )

    def proposes(self, config: RunConfig) -> bool:
        """Without training files."""
        return not config.rollout.web.train_files

    async def explore(self, config: RunConfig) -> list[tuple[Task, str]]:
        """Pages that a short look found."""
        found = await explore(config.rollout, config.rollout.web.explore_pages)
        name = config.rollout.web.name
        return [
            (own_site.task_at(config.rollout, f"{name}.page-{number}", page.url, ""), page.text)
            for number, page in enumerate(found.pages)
        ]

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: a task of another site, settings that cannot work together."""
        own_site.require_start(config)
        if task.site != own_site.site_name(config):
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
        return await score_episode(env, trajectory) if own_site.has_checks(trajectory.task) else trajectory

    def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AbstractAsyncContextManager[None]:  # noqa: ARG002
        """See `session.py`."""
        return open_sites(config)

    def needs_judge(self, task: Task) -> bool:
        """Where it has no checks."""
        return not own_site.has_checks(task)

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        """All but the checks."""
        return own_site.without_checks(extra)

    def summarize(
        self,
        config: RunConfig,
        trajectories: Sequence[Trajectory],
        folder: Path,  # noqa: ARG002
        labels: Mapping[str, Label],
    ) -> dict[str, Any]:
        """See `report.py`."""
        return summarize(trajectories, labels, config.evaluate.confidence)


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
