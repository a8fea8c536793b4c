"""What `from webrl import …` offers beyond records and configs: a whole run, an environment, an actor; no asyncio.

Examples are in docs/python.md.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from typing import Any

from webrl import phase as phases
from webrl.config import RolloutConfig, RunConfig
from webrl.config.resources import shipped_model
from webrl.errors import UsageError
from webrl.llm import Policy, PolicyOutput, Turn, open_policy
from webrl.llm.check import check_model
from webrl.preflight import check_inputs, check_room, check_settings
from webrl.reports.run import phase_metrics
from webrl.reports.trackers import open_trackers
from webrl.rollouts.blocking import BlockingEnv, call
from webrl.rollouts.episode import run_episode
from webrl.rollouts.interface import Observation
from webrl.rollouts.suite import suite_of
from webrl.runs.folder import RunFolder
from webrl.runs.lock import hold_run
from webrl.types import Step, Task, Trajectory


def run(config: RunConfig, *, on_phase: Callable[[dict[str, Any]], None] | None = None) -> RunFolder:
    """Run all phases, as `webrl run` does but for its report; what has finished is skipped.

    Args:
        on_phase: called with each phase's part of `summary.json`.

    Raises:
        WebRLError: one clear message; everything that finished is kept, the same call resumes from there.
        UsageError: an event loop runs here already, as in a notebook.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError("an event loop is already running, as in a notebook: `await asyncio.to_thread(run, config)`")
    check_settings(config, "run()")
    check_inputs(config, phases.STAGES)
    check_room(config)
    with hold_run(config.run_dir), open_trackers(config) as trackers:

        def report(summary: dict[str, Any]) -> None:
            if on_phase is not None:
                on_phase(summary)
            trackers.log("phase", phase_metrics(summary), summary["phase"])

        return phases.run(config, on_phase=report)


class TaskEnv(BlockingEnv):
    """The environment of one task, the same that training rolls out in; a context manager.

    `reset` returns an `Observation`, `step` a `StepResult`; neither raises for what an agent writes.
    """

    def __init__(self, task: Task, config: RolloutConfig) -> None:
        super().__init__(lambda task, browser, config: suite_of(task).make_env(browser, config), config)
        self.task = task
        """The task of the next episode."""
        self.settings = config
        """How pages are shown and episodes ended."""

    def reset(self, task: Task | None = None, *, seed: int | None = None) -> Observation:
        """Start an episode of the task, or of another one of its suite; `seed` replaces the task's.

        Raises:
            UsageError: a task of another suite: its environment is another one.
            DataError: a task that cannot be played.
        """
        chosen = task or self.task
        if seed is not None:
            name = chosen.task_id.removesuffix(f".{chosen.seed}")
            chosen = dataclasses.replace(chosen, seed=seed, task_id=f"{name}.{seed}")
        suite = suite_of(chosen)
        if suite is not suite_of(self.task):
            raise UsageError(f"task {chosen.task_id!r} is of another suite than {self.task.task_id!r}; use make_env")
        suite.check(chosen, self.settings)
        self.task = chosen
        return super().reset(chosen)


def make_env(task: Task | str, config: RolloutConfig | None = None) -> TaskEnv:
    """Return an environment; nothing starts before its first reset.

    Args:
        task: a task of any suite, or the name of a MiniWoB++ page (`miniwob.click-button`) or of a task type of the
            arena (`arena.shop.price`).
        config: how pages are shown and what they may reach (`load_config(…).rollout`).

    Raises:
        DataError: no such page (the nearest is named), or a task that cannot be played.
        UsageError: a config whose pages are on servers.
    """
    if config is not None and config.env != "browser":
        raise UsageError(f"rollout.env={config.env}: make_env opens pages in a browser here; rollout.env=browser")
    if isinstance(task, str):
        task = Task(task_id=f"{task}.0", site=task)
    config = config or RolloutConfig()
    suite_of(task).check(task, config)
    return TaskEnv(task, config)


class Actor(AbstractContextManager["Actor"]):
    """A model that acts; a context manager. `load_actor` opens one."""

    def __init__(self, name: str, config: RunConfig) -> None:
        self._stack = AsyncExitStack()
        self.policy: Policy = call(self._stack.enter_async_context(open_policy(name, config)))
        """The same actor for asynchronous code on the loop of `webrl.rollouts.blocking.call`."""

    def act(
        self,
        goal: str,
        page: str,
        history: Sequence[Step] = (),
        *,
        seed: int | None = None,
        screenshot: bytes | None = None,
    ) -> PolicyOutput:
        """Return the next action on a page: its text, token ids and log-probabilities. Raises PolicyError.

        Args:
            screenshot: a PNG in the size that the model is to see, with `rollout.image_size`.
        """
        return call(self.policy.act(Turn(goal, tuple(history), page, seed, screenshot)))

    def play(self, env: TaskEnv, *, seed: int = 0) -> Trajectory:
        """Play one episode of the environment's task to its end, by the stop rules of its settings.

        What page, browser or model do is in the trajectory's `status`, not raised. `seed` is of the actor's draws.
        """
        task, opened = env.task, call(env.ready(env.task))
        identity = f"{task.task_id}-{seed}"
        trajectory = call(run_episode(opened, self.policy, task, env.settings, trajectory_id=identity, seed=seed))
        return call(suite_of(task).finish(opened, trajectory))

    def close(self) -> None:
        """Free the model, or end its server."""
        call(self._stack.aclose())

    def __exit__(self, *exc: object) -> None:
        self.close()


def load_actor(name: str | None = None, config: RunConfig | None = None) -> Actor:
    """Return an actor on the engine that the config names (`rollout.engine`).

    Args:
        name: a model folder, a hub name or a shipped model (`data/tiny/actor`); default `models.actor` of the config.
        config: prompt, sampling and engine; default `RunConfig()`.

    Raises:
        ModelError: unusable folder, architecture or server.
    """
    config = config or RunConfig()
    name = shipped_model(name) if name else config.models.actor
    if config.rollout.engine.kind != "openai":
        check_model(name, sees=config.rollout.sees, use=config.rollout.engine.kind)
    return Actor(name, config)
