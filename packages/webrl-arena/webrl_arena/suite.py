"""The arena as a suite, and what a stage needs of it around its episodes: that it is up."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import API_VERSION, Expert, Suite, score_episode
from webrl.types import Task, Trajectory
from webrl_arena import tasks as arena_tasks
from webrl_arena.env import ArenaEnv
from webrl_arena.templates import all_templates, by_type
from webrl_arena.world.client import Arena, ArenaError

logger = logging.getLogger(__name__)

_SESSION_S = 60.0
"""Longest wait for a new session."""


class ArenaSuite(Suite):
    """Sites to practise in, each episode in its own session."""

    name = "arena"
    api_version = API_VERSION
    extra = "arena"
    shows_pages = True
    draws_fresh = True
    first_task = "arena.shop.open-product"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        return arena_tasks.training_tasks(config, f"{config.seed}.{draw}" if draw else None)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        kept: list[Task] = []
        for name, tasks in zip(
            ("num_eval_tasks", "num_heldout_tasks"), arena_tasks.evaluation_tasks(config), strict=True
        ):
            count = getattr(config.tasks, name)
            if count < len(tasks):
                logger.warning("%d of %d evaluation tasks (%s)", count, len(tasks), name)
            kept += tasks[:count]
        return kept

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        return [task for tasks in arena_tasks.evaluation_tasks(config) for task in tasks]

    def named_tasks(self, types: Sequence[str], seeds: Sequence[int], seed: int) -> list[Task]:
        """Raises UsageError: a task of the evaluation."""
        for site in types:
            template, evaluated, _ = site.partition("-eval-")
            if evaluated:
                raise UsageError(f"task {site!r} is one of the evaluation's; train on its template, {template}")
        return super().named_tasks(types, seeds, seed)

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: remote environments; DataError: no such task."""
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: tasks.suite=arena needs rollout.env=browser")
        if task.start_url is None:
            arena_tasks.find_task(task.site, task.seed)

    def make_env(self, browser: Browser, config: RolloutConfig) -> ArenaEnv:
        return ArenaEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        return _SESSION_S

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With the score; the session is dropped."""
        scored = await score_episode(env, trajectory)
        await env.close()
        return scored

    @contextlib.asynccontextmanager
    async def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
        """Raises UsageError if no arena runs: no episode is worth starting then."""
        try:
            Arena.running(config.rollout.arena.folder)
        except ArenaError as error:
            raise UsageError(f"tasks.suite=arena: {error}") from None
        yield

    def with_step_rewards(self, config: RolloutConfig) -> RolloutConfig:
        return config.model_copy(update={"arena": config.arena.model_copy(update={"score_steps": True})})

    def needs_judge(self, task: Task) -> bool:
        return arena_tasks.eval_of(task) is None

    def sites_of(self, task: Task) -> list[str]:
        return arena_tasks.sites_of(task)

    def dedupe_key(self, task: Task) -> str:
        """The site that it starts at."""
        return arena_tasks.sites_of(task)[0]

    def task_type(self, task: Task) -> str:
        """The template in whose words its instruction is, trained ones first; "" if it is in none's."""
        there = [template for template in all_templates() if template.site == task.site.split(".")[1]]
        fitting = (template.key for template in there if template.read(task.instruction or "") is not None)
        return min(fitting, key=lambda key: (by_type()[key].held_out, key), default="")

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in extra.get(arena_tasks.KEY, {}).items() if key != "eval"}
        return extra | {arena_tasks.KEY: kept} if arena_tasks.KEY in extra else extra

    def demonstration_types(self, config: RunConfig) -> Sequence[str]:
        return config.tasks.train_sites or [template.key for template in all_templates() if not template.held_out]

    def expert(self, task_type: str) -> Expert | None:
        return by_type().get(task_type)
