"""Episodes for GRPO: groups of attempts at the same page, many at once, with the reward of every step.

API:

    with Player(settings) as player:                     # opens the browsers, or reaches the servers
        player.check(tasks)                              # every task type is opened once
        episodes = player.play(attempts, model)          # [(name, task)] -> list[Episode], in the same order
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from webrl.errors import BrowserError, DataError, StageError, UsageError
from webrl.grpo.prompts import BrowserGymPolicy, Seen, find_action
from webrl.grpo.settings import GrpoSettings
from webrl.llm.interface import LanguageModel, Policy
from webrl.llm.policy import ModelPolicy
from webrl.rollouts.actions import ActionError
from webrl.rollouts.aliases import spell_out
from webrl.rollouts.collect import open_pool
from webrl.rollouts.dialects import parse
from webrl.rollouts.episode import repeat_after_crash, run_episode
from webrl.rollouts.interface import Env, Observation, Pool, Score, StepResult
from webrl.suites.world import WORLD
from webrl.types import Task, Trajectory

logger = logging.getLogger(__name__)

Attempt = tuple[str, Task]
"""Name of an episode, and what it attempts."""


@dataclass(frozen=True, repr=False)
class Episode:
    """One attempt at a page."""

    trajectory: Trajectory
    """What was seen, sampled and done."""
    step_rewards: tuple[float, ...]
    """The environment's reward of each step."""
    num_unreadable: int
    """Answers that were no action and were replaced by the fallback."""

    def __repr__(self) -> str:
        return f"Episode({self.trajectory.trajectory_id}: {self.trajectory.status}, {self.trajectory.message!r:.200})"


class RewardedEnv:
    """An `Env` that keeps what GRPO wants to know of its steps, and never sees an unreadable action.

    Raises:
        StageError: a reward that is no number.
    """

    def __init__(self, env: Env, settings: GrpoSettings, seen: Seen) -> None:
        self._env = env
        self._settings = settings
        self._dialect = settings.run_config.rollout.dialect
        self._seen = seen
        self._name = ""

    async def reset(self, task: Task) -> Observation:
        """Start an episode (`Env.reset`)."""
        self._name = task.task_id
        observation = await self._env.reset(task)
        self._seen.url = observation.url
        self._goal = observation.goal or self._settings.default_goal
        return dataclasses.replace(observation, goal=self._goal)

    async def step(self, action_text: str) -> StepResult:
        """Act once (`Env.step`)."""
        text = action_text
        if self._settings.prompt_format == "browsergym":  # system prompts teach send_keys('Enter')
            text = spell_out(find_action(action_text))
        try:
            parse(text, self._dialect)
        except ActionError:
            self._seen.num_unreadable += 1
            text = self._settings.fallback_action
        result = await self._env.step(text)
        if not math.isfinite(result.reward):
            raise StageError(f"task {self._name!r}: the reward of step {len(self._seen.rewards)} is {result.reward}")
        self._seen.rewards.append(result.reward)
        self._seen.url = result.observation.url
        return dataclasses.replace(result, observation=dataclasses.replace(result.observation, goal=self._goal))

    async def finish(self) -> Score:
        """The score of the episode as it stands (`Env.finish`)."""
        return await self._env.finish()

    async def close(self) -> None:
        """Free what it holds."""
        await self._env.close()


class Player:
    """Plays episodes on browsers or servers that stay open from one training step to the next."""

    def __init__(self, settings: GrpoSettings) -> None:
        self._settings = settings
        self._config = settings.run_config
        self._loop = asyncio.Runner()
        self._open = contextlib.AsyncExitStack()
        self._pool: Pool = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        self._loop.__enter__()
        try:
            self._pool = self._loop.run(self._enter_pool())
        except BaseException:
            self._loop.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._loop.run(self._open.aclose())
        finally:
            self._loop.__exit__(None, None, None)

    async def _enter_pool(self) -> Pool:
        return await self._open.enter_async_context(open_pool(self._config.rollout, world=WORLD))

    def check(self, tasks: Sequence[Task]) -> None:
        """Open one page of every task type, and act there once.

        Raises:
            UsageError: a page that cannot be opened; a server without the task, or of another version.
            StageError: a reward that is no number.
        """
        first = {task.site: task for task in reversed(tasks)}
        self._loop.run(self._open_pages(list(first.values())))

    async def _open_pages(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            try:
                async with self._pool.env() as lent:
                    env = RewardedEnv(lent, self._settings, Seen())
                    observation = await env.reset(task)
                    await env.step(self._settings.fallback_action)
            except (BrowserError, DataError) as error:
                raise UsageError(f"task {task.site!r} cannot be opened: {error}") from None
            if not observation.text:
                raise UsageError(
                    f"task {task.site!r}: the page has no text (observation={self._settings.observation}): "
                    "a text model would train blind"
                )

    def play(self, attempts: Sequence[Attempt], open_model: Callable[[], LanguageModel]) -> list[Episode]:
        """Play all attempts; as many at once as there are pages.

        Args:
            open_model: gives the model that answers; it is closed at the end, so that training has its threads.

        Raises:
            StageError: a reward that is no number, or no server any more.
        """
        return self._loop.run(self._play_all(attempts, open_model))

    async def _play_all(self, attempts: Sequence[Attempt], open_model: Callable[[], LanguageModel]) -> list[Episode]:
        model = open_model()
        tasks = [asyncio.create_task(self._play(name, task, model)) for name, task in attempts]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await model.close()

    async def _play(self, name: str, task: Task, model: LanguageModel) -> Episode:
        """One episode, again after a crash of page or browser."""
        seen = Seen()

        async def play() -> Trajectory:
            nonlocal seen
            seen = Seen()
            async with self._pool.env() as env:
                return await run_episode(
                    RewardedEnv(env, self._settings, seen),
                    self._policy(model, seen),
                    task,
                    self._config.rollout,
                    trajectory_id=name,
                    seed=self._config.seed,
                )

        trajectory = await repeat_after_crash(play, self._config.rollout, name)
        return Episode(trajectory, tuple(seen.rewards), seen.num_unreadable)

    def _policy(self, model: LanguageModel, seen: Seen) -> Policy:
        if self._settings.prompt_format == "browsergym":
            return BrowserGymPolicy(model, self._settings, seen)
        return ModelPolicy(model, self._config)
