"""WebArena as two suites, all its tasks and its Lite version; training tasks are the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from webrl.config import RolloutConfig, RunConfig
from webrl.config.extras import require
from webrl.errors import UsageError
from webrl.evaluate import summarize_evaluation
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import API_VERSION, Suite, score_episode
from webrl.types import Label, Task, Trajectory
from webrl_site.locks import LEASE_TIMEOUT_S, hold_sites
from webrl_webarena import report
from webrl_webarena import tasks as webarena
from webrl_webarena.check import reset_sites
from webrl_webarena.env import WebArenaEnv
from webrl_webarena.sites import find_sites

LOGIN_TIMEOUT_S = 120.0
"""A reset may log in to several sites."""


class WebArena(Suite):
    """The 812 tasks, on sites that are held and reset for the whole of a stage."""

    name = "webarena"
    api_version = API_VERSION
    can_record_by_hand = False
    not_served = "WebArena tasks are not served over OpenEnv; use rollout.env=browser"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        return webarena.training_tasks(config)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        return self.first_heldout_tasks(config)

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        return webarena.load_suite("webarena")

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: remote environments."""
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: WebArena tasks need rollout.env=browser")

    def make_env(self, browser: Browser, config: RolloutConfig) -> WebArenaEnv:
        """With sites leased, logged in, and a validation at the end."""
        return WebArenaEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        del config
        return LEASE_TIMEOUT_S + LOGIN_TIMEOUT_S

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With BrowserGym's score; the sites are free again."""
        return await score_episode(env, trajectory)

    @asynccontextmanager
    async def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
        """Hold all sites of the tasks for this run, reset and verify them first (`rollout.webarena.reset`).

        Raises:
            ExtraMissing: scored tasks without BrowserGym's packages.
            UsageError: a site without address.
            SiteBusy: another run has one of the sites (it is named).
            SiteError: the reset fails or never ends, or a site is not healthy afterwards.
        """
        settings = config.rollout.webarena
        if any(map(webarena.is_scored, tasks)):
            require("webarena", "the score of a WebArena task")
        sites = find_sites(settings)
        names = sorted({name for task in tasks for name in webarena.sites_of(task)})
        sites.require(names)
        with hold_sites(sites.urls, names, config.name, settings.lock_dir):
            if settings.reset:
                await reset_sites(settings, sites, names)
            yield

    def needs_judge(self, task: Task) -> bool:
        """Never: what its evaluators do not score is counted apart."""
        return False

    def instruction_of(self, task: Task) -> str:
        return webarena.instruction_of(task)

    def is_seeded(self, task: Task) -> bool:
        return False

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in extra.items() if key != "webarena"}

    def summarize(
        self, config: RunConfig, trajectories: Sequence[Trajectory], folder: Path, labels: Mapping[str, Label]
    ) -> dict[str, Any]:
        """The judged episodes' counts, and by site and evaluator; WebArena's own files go to `folder`."""
        report.write_task_files(trajectories, folder / "eval_tasks")
        judged = [trajectory for trajectory in trajectories if not report.is_unjudged(trajectory)]
        return summarize_evaluation(judged) | {"webarena": report.summarize(trajectories)}

    def describe(self, counts: Mapping[str, Any]) -> str:
        return report.format_table(counts["webarena"]) if "webarena" in counts else ""


class WebArenaLite(WebArena):
    """The 165 tasks."""

    name = "webarena_lite"

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        return webarena.load_suite("webarena_lite")
