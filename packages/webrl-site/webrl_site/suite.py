"""One's own site as a suite."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.evaluate import is_decided, success_rate, summarize_evaluation
from webrl.rollouts.actions import ACTIONS
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import API_VERSION, Suite, score_episode
from webrl.types import Label, Task, Trajectory
from webrl_site import tasks as own_site
from webrl_site.env import WebEnv
from webrl_site.explore import explore
from webrl_site.hooks import EpisodeServer, reset_site
from webrl_site.locks import hold_sites
from webrl_site.login import Logins, forget
from webrl_site.settings import WebConfig

logger = logging.getLogger(__name__)

_PATIENCE_S = 10.0
"""Longest wait of an environment for its turn under `max_actions_per_s`; workers are given up some seconds later."""


class OwnSite(Suite):
    """A web application, with instructions of yours or of the generator."""

    name = "web"
    api_version = API_VERSION
    shows_pages = True
    not_served = "serve-env does not apply a site's log-in, checks and limits; use `webrl run`"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        return own_site.training_tasks(config)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        return self.first_heldout_tasks(config)

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        return own_site.heldout_tasks(config)

    def check_settings(self, config: RunConfig) -> None:
        """Raises UsageError: no start page, limits that cannot be kept, or no instructions where some are needed."""
        own_site.require_start(config.rollout)
        check_limits(config.rollout)
        if not self.proposes(config):
            return
        if config.rollout.web.serve.is_set:
            raise UsageError("rollout.web.serve: nothing is served outside episodes; name rollout.web.train_files")
        if config.num_phases and config.tasks.source != "curriculum":
            raise UsageError(
                f"tasks.source={config.tasks.source} plays instructions of rollout.web.train_files, and there are "
                "none; name some, or let later phases write them too: tasks.source=curriculum"
            )

    def proposes(self, config: RunConfig) -> bool:
        return not config.rollout.web.train_files

    async def explore(self, config: RunConfig) -> list[tuple[Task, str]]:
        """Pages that a short look found, read-only: the site is not locked here, and nothing resets it."""
        web = config.rollout.web.model_copy(update={"read_only": True})
        rollout = config.rollout.model_copy(update={"web": web})
        async with Browser(max_page_mb=config.rollout.max_page_mb) as browser:
            found = await explore(browser, rollout, web.explore_pages)
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
        return WebEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        web: WebConfig = config.web
        reset_s = web.reset.timeout_s if web.reset.every == "episode" else 0.0
        return _PATIENCE_S + reset_s + 2 * web.login.timeout_s + (web.serve.timeout_s if web.serve.is_set else 0.0)

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With the reward of the task's checks; without checks as it is."""
        return await score_episode(env, trajectory) if own_site.has_checks(trajectory.task) else trajectory

    @asynccontextmanager
    async def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
        """Hold the site for this run, unless it is only read and never reset, reset it, and see that the log-in works.

        Raises:
            SiteBusy: another run has it (it is named).
            SiteError: the reset, the log-in or the start of a server fails: no episode is worth starting then.
        """
        web = config.rollout.web
        if web.serve.is_set:
            await (await EpisodeServer.start(web)).stop()  # one error now instead of one for every episode
            yield
            return
        urls = {web.name: [f"http://{host}" for host in web.hosts]}
        is_shared = web.read_only and not web.reset.is_set
        with nullcontext() if is_shared else hold_sites(urls, [web.name], config.name):
            if web.reset.is_set:
                await reset_site(web)
            elif not web.read_only:
                logger.warning("no reset (rollout.web.reset): the site keeps what earlier episodes left in it")
            if web.reset.is_set or not web.login.proof_url:  # nothing else tells whether an earlier log-in still holds
                forget(web)
            if web.login.is_set:
                async with Browser() as browser:
                    await Logins(web).state(browser)
            yield

    def needs_judge(self, task: Task) -> bool:
        return not own_site.has_checks(task)

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in extra.items() if key != own_site.CHECKS}

    def summarize(
        self, config: RunConfig, trajectories: Sequence[Trajectory], folder: Path, labels: Mapping[str, Label]
    ) -> dict[str, Any]:
        """The headline is by checks; where no instruction has one it is the outcome model's (`web.by` says which).

        Finished episodes whose checks could not be made, or that have no judgement, are in no rate and counted as
        `undecided`.
        """
        checked = [t for t in trajectories if own_site.has_checks(t.task)]
        unchecked = [(t, labels.get(t.trajectory_id)) for t in trajectories if not own_site.has_checks(t.task)]
        judged = [replace(t, env_reward=label.reward if label else None) for t, label in unchecked]
        decided = {"checks": [t for t in checked if is_decided(t)], "judge": [t for t in judged if is_decided(t)]}
        by = "checks" if checked or not judged else "judge"
        rates = {name: success_rate(part).to_json() for name, part in decided.items() if part}
        undecided = len(trajectories) - sum(map(len, decided.values()))
        return summarize_evaluation(decided[by]) | {"web": {"by": by, "undecided": undecided, **rates}}


def check_limits(config: RolloutConfig) -> None:
    """Raises UsageError: an action that there is not, or more environments than a limit lets work."""
    web, num_envs = config.web, config.num_workers * config.envs_per_worker
    unknown = sorted(set(web.forbidden_actions) - ACTIONS.keys())
    if unknown:
        raise UsageError(f"rollout.web.forbidden_actions: unknown action {unknown[0]!r}; known: {', '.join(ACTIONS)}")
    if web.reset.every == "episode" and num_envs > 1:
        raise UsageError(
            f"rollout.web.reset.every=episode would reset the site under the {num_envs - 1} other environments: set "
            "rollout.num_workers=1 rollout.envs_per_worker=1, or reset.every=stage"
        )
    rate = web.max_actions_per_s
    if rate is not None and num_envs / rate > _PATIENCE_S:
        raise UsageError(
            f"rollout.web.max_actions_per_s={rate:g}: each of {num_envs} environments (num_workers x envs_per_worker) "
            f"waits {num_envs / rate:g} s for its turn, {_PATIENCE_S:g} are allowed; use fewer"
        )
