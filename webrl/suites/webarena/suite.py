"""WebArena as three suites: all its tasks, its Lite version, and WebArena-Verified; training tasks are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import UsageError
from webrl.evaluate import summarize_evaluation
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import Env
from webrl.rollouts.suite import API_VERSION, Suite, score_episode
from webrl.suites.webarena import report, tasks
from webrl.suites.webarena.env import WebArenaEnv
from webrl.suites.webarena.session import open_sites
from webrl.suites.webarena.verified import verified_tasks
from webrl.types import Label, Task, Trajectory

LOGIN_TIMEOUT_S = 120.0
"""A reset may log in to several sites."""


class WebArena(Suite):
    """The 812 tasks, on sites that are held and reset for the whole of a stage."""

    name = "webarena"
    api_version = API_VERSION
    extra: ClassVar[str | None] = "webarena"
    extra_stages = frozenset(("filter-tasks", "accept", "eval"))
    can_mix = False
    can_record_by_hand = False
    not_served = "WebArena tasks are not served over OpenEnv; use rollout.env=browser"

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:  # noqa: ARG002
        """Of the instruction files."""
        return tasks.training_tasks(config)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        """The first of them."""
        return tasks.evaluation_tasks(config.tasks, self.heldout_tasks(config))

    def heldout_tasks(self, config: RunConfig) -> list[Task]:  # noqa: ARG002
        """All of them."""
        return tasks.load_suite("webarena")

    def check(self, task: Task, config: RolloutConfig) -> None:
        """Raises UsageError: remote environments."""
        if config.env == "openenv":
            raise UsageError(f"task {task.task_id!r}: WebArena tasks need rollout.env=browser")

    def make_env(self, browser: Browser, config: RolloutConfig) -> WebArenaEnv:
        """With sites leased, logged in, and a validation at the end."""
        return WebArenaEnv(browser, config)

    def reset_allowance_s(self, config: RolloutConfig) -> float:
        """Waiting for the sites, and logging in."""
        return config.webarena.lease_timeout_s + LOGIN_TIMEOUT_S

    async def finish(self, env: Env, trajectory: Trajectory) -> Trajectory:
        """With BrowserGym's score; the sites are free again."""
        return await score_episode(env, trajectory)

    def open_sites(self, config: RunConfig, tasks: Sequence[Task]) -> AbstractAsyncContextManager[None]:
        """See `session.py`."""
        return open_sites(config, tasks)

    def instruction_of(self, task: Task) -> str:
        """The task file's, where it has a reference."""
        return tasks.instruction_of(task)

    def is_seeded(self, task: Task) -> bool:  # noqa: ARG002
        """Never."""
        return False

    def without_reference(self, extra: dict[str, Any]) -> dict[str, Any]:
        """Nothing of the task file."""
        return {key: value for key, value in extra.items() if key != "webarena"}

    def summarize(
        self,
        config: RunConfig,
        trajectories: Sequence[Trajectory],
        folder: Path,
        labels: Mapping[str, Label],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The judged episodes' counts, and by site and evaluator; WebArena's own files go to `folder`."""
        report.write_task_files(trajectories, folder / "eval_tasks")
        if config.rollout.webarena.vab_traces:
            report.write_traces(trajectories, folder / "vab")
        confidence = config.evaluate.confidence
        judged = [trajectory for trajectory in trajectories if not report.is_unjudged(trajectory)]
        return summarize_evaluation(judged, confidence) | {"webarena": report.summarize(trajectories, confidence)}

    def describe(self, counts: Mapping[str, Any]) -> str:
        """Success by site."""
        return report.format_table(counts["webarena"]) if "webarena" in counts else ""


class WebArenaLite(WebArena):
    """The 165 tasks."""

    name = "webarena_lite"

    def heldout_tasks(self, config: RunConfig) -> list[Task]:  # noqa: ARG002
        """All of them."""
        return tasks.load_suite("webarena_lite")


class WebArenaVerified(WebArena):
    """WebArena's tasks, scored by WebArena-Verified's program."""

    name = "webarena_verified"
    extra = None

    def heldout_tasks(self, config: RunConfig) -> list[Task]:
        """Those of the file that the program wrote."""
        return tasks.interleave(verified_tasks(config.rollout))
