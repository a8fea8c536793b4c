"""Plays episodes for GRPO: groups of attempts at the same page, many at once, with the reward of every step.

API:

    with Player(settings) as player:                     # opens the browsers, or reaches the servers
        player.check(tasks)                              # every task type is opened once
        episodes = player.play(attempts, model)          # [(name, task)] -> list[Episode], in the same order

The prompt is that of `webrl run`, or (`GrpoPolicy`) that of the public GRPO scripts: goal, past steps with rewards,
errors, clickable elements, page. The same information in the same order as in TRL's OpenEnv examples; the wording is
ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from webrl.errors import BrowserError, DataError, StageError, UsageError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import LanguageModel, Message, Policy, PolicyOutput, Turn
from webrl.llm.pictures import png_size, shrink
from webrl.llm.policy import ModelPolicy
from webrl.llm.prompts import INTERACTIVE, by_coordinates, cut_lines, fit_prompt
from webrl.llm.tokens import encode_chat
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.collect import open_pool
from webrl.rollouts.episode import repeat_after_crash, run_episode
from webrl.rollouts.interface import Env, Observation, Pool, Score, StepResult
from webrl.rollouts.suite import suite_of
from webrl.runs.disk import atomic_path, make_folder
from webrl.types import Step, Task, Trajectory
from webrl_grpo.settings import GrpoSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")
Attempt = tuple[str, Task]
"""Name of an episode, and what it attempts."""
OpenModel = Callable[[], contextlib.AbstractAsyncContextManager[LanguageModel]]

SYSTEM_PROMPT = """You complete tasks in a web browser, one action at a time.

The page is shown as [bid] role 'text': in [13] button 'Click Me!' the element has the bid '13'.

Actions:
- click('13')
- fill('42', 'some text')
- select_option('7', 'label')
- press('42', 'Enter')
- scroll(0, 300)
- noop()

Answer with exactly one action on one line, and nothing else."""

_BID = re.compile(r"^\s*\[(\w+)\]")


@dataclass(frozen=True, repr=False)
class Episode:
    """One attempt at a page."""

    trajectory: Trajectory
    """The episode's record."""
    step_rewards: tuple[float, ...]
    """The environment's reward of each step."""
    unreadable: tuple[int, ...]
    """Indices of the steps whose answer was not an action and was replaced by the fallback."""
    screenshots: tuple[bytes, ...] = ()
    """PNG in each step's prompt, as the model saw it; empty for a text model."""

    def __repr__(self) -> str:
        return f"Episode({self.trajectory.trajectory_id}: {self.trajectory.status}, {self.trajectory.message!r:.200})"


class RewardedEnv:
    """An `Env` that logs rewards, and replaces unreadable actions by the fallback; for one episode on `env`. Raises
    StageError: a reward that is not finite, or no screenshot for a model that sees.
    """

    def __init__(self, settings: GrpoSettings, env: Env | None = None) -> None:
        self.env: Env = env  # type: ignore[assignment]
        self.url = ""
        """Address of the page."""
        self.rewards: list[float] = []
        """Reward of each step."""
        self.unreadable: list[int] = []
        """Indices of the answers that were not an action."""
        self.screenshots: list[bytes] = []
        """Screenshot in the prompt of each step."""
        self._settings = settings
        self._dialect = settings.run_config.rollout.dialect
        self._name = ""

    async def reset(self, task: Task) -> Observation:
        """Start an episode (`Env.reset`)."""
        self._name = task.task_id
        observation = await self.env.reset(task)
        self._goal = observation.goal or self._settings.default_goal
        return self._shown(observation)

    async def step(self, action_text: str) -> StepResult:
        """Act once (`Env.step`)."""
        try:
            text = read_answer(action_text, self._dialect).canonical
        except ActionError:
            self.unreadable.append(len(self.rewards))
            text = self._settings.fallback_action
        result = await self.env.step(text)
        if not math.isfinite(result.reward):
            raise StageError(f"task {self._name!r}: the reward of step {len(self.rewards)} is {result.reward}")
        self.rewards.append(result.reward)
        is_over = result.done or result.agent_done
        reward = result.reward if "outcome" in self._settings.rewards else min(result.reward, 1.0)  # on any scale
        return dataclasses.replace(result, observation=self._shown(result.observation, is_over), reward=reward)

    def _shown(self, observation: Observation, is_over: bool = False) -> Observation:
        """Return the observation as the model is to see it."""
        self.url = observation.url
        if self._settings.sees and not is_over and observation.screenshot is None:
            raise StageError(
                f"task {self._name!r}: no screenshot came with step {len(self.rewards)}, which "
                f"image_size={self._settings.image_size} requires: the model would be trained blind"
            )
        text = "" if self._settings.observation == "none" else observation.text
        return dataclasses.replace(observation, goal=self._goal, text=text)

    async def finish(self) -> Score:
        """Return the episode's score (`Env.finish`)."""
        return await self.env.finish()

    async def close(self) -> None:
        """Close the environment."""
        await self.env.close()


class Player:
    """Plays episodes on browsers or servers that stay open from one training step to the next.

    Args:
        eyes: the model's vision processor, if it sees screenshots.
        out: folder in whose `screenshots/` they are kept.
    """

    def __init__(self, settings: GrpoSettings, eyes: Eyes | None = None, out: Path | None = None) -> None:
        self._settings = settings
        self._eyes = eyes
        self._out = out
        self._config = settings.run_config
        self._loop = asyncio.Runner()
        self._open = contextlib.AsyncExitStack()
        self._pool: Pool = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        try:
            self._pool = self._loop.run(self._open.enter_async_context(open_pool(self._config.rollout)))
        except BaseException:
            self._loop.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        with self._loop:
            self._loop.run(self._open.aclose())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop that the episodes are played on."""
        return self._loop.run(coroutine)

    def check(self, tasks: Sequence[Task]) -> None:
        """Open one page of every task type, and act once; as many at once as there are pages.

        Raises:
            UsageError: a page that cannot be opened; a server without the task or its screenshot, or of another
                version; a screenshot that leaves no room in the prompt.
            StageError: a reward that is not finite.
        """
        self._loop.run(_all(self._check(task) for task in {task.site: task for task in reversed(tasks)}.values()))

    async def _check(self, task: Task) -> None:
        try:
            async with self._env(task) as lent:
                env = RewardedEnv(self._settings, lent)
                observation = await env.reset(task)
                await env.step(self._settings.fallback_action)
        except (BrowserError, DataError) as error:
            raise UsageError(f"task {task.site!r} cannot be opened: {error}") from None
        if self._eyes:
            check_room(self._eyes, self._settings, observation)
        elif not observation.text:
            raise UsageError(
                f"task {task.site!r}: the page has no text (observation={self._settings.observation}): "
                "a text model would be trained blind"
            )

    @contextlib.asynccontextmanager
    async def _env(self, task: Task) -> AsyncIterator[Env]:
        """Borrow an environment for one episode."""
        async with self._pool.env() as env:
            yield env
            suite = suite_of(task)
            if not (suite.is_stateless or suite.not_served):  # the suite's session ends with the episode
                await env.close()

    def play(self, attempts: Sequence[Attempt], open_model: OpenModel) -> list[Episode]:
        """Play all attempts; as many at once as there are pages.

        Args:
            open_model: lends the model that answers.

        Raises:
            StageError: a reward that is not finite, or no server any more.
        """
        return self._loop.run(self._play_all(attempts, open_model))

    async def _play_all(self, attempts: Sequence[Attempt], open_model: OpenModel) -> list[Episode]:
        async with open_model() as model:
            return await _all(self._play(name, task, model) for name, task in attempts)

    async def _play(self, name: str, task: Task, model: LanguageModel) -> Episode:
        """One episode, again after a crash of page or browser."""
        played = RewardedEnv(self._settings)

        def keep(png: bytes, index: int) -> str:  # noqa: ARG001 - `SaveScreenshot`
            """Keep a screenshot; it is written once, however many attempts saw it."""
            played.screenshots.append(png)
            assert self._out is not None
            path = self._out / "screenshots" / f"{hashlib.sha256(png).hexdigest()[:24]}.png"
            if not path.exists():
                make_folder(path.parent)
                with atomic_path(path) as temporary:
                    temporary.write_bytes(png)
            return str(path.relative_to(self._out))

        async def play() -> Trajectory:
            nonlocal played
            played = RewardedEnv(self._settings)
            async with self._env(task) as played.env:
                return await run_episode(
                    played,
                    self._policy(model, played),
                    task,
                    self._config.rollout,
                    trajectory_id=name,
                    seed=self._config.seed,
                    save_screenshot=keep if self._settings.sees else None,
                )

        trajectory = await repeat_after_crash(play, self._config.rollout, name)
        return Episode(trajectory, tuple(played.rewards), tuple(played.unreadable), tuple(played.screenshots))

    def _policy(self, model: LanguageModel, env: RewardedEnv) -> Policy:
        if self._settings.prompt_format == "browsergym":
            return GrpoPolicy(model, self._settings, env)
        return ModelPolicy(model, self._config, sampling=self._settings.sampling)


async def _all(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Results in order; the first error ends the others."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class GrpoPolicy:
    """Answers the pages of one episode, which is played on `env`."""

    def __init__(self, model: LanguageModel, settings: GrpoSettings, env: RewardedEnv) -> None:
        self.fingerprint = model.fingerprint
        self._model, self._settings, self._env = model, settings, env

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`)."""
        settings, model = self._settings, self._model
        past = turn.history[max(0, len(turn.history) - settings.history_steps) :]
        page = turn.observation[: settings.max_page_chars]

        def encode(start: int, shown: str) -> list[int]:
            text = user_text(turn.instruction, past[start:], shown, self._env, len(turn.history))
            messages = [Message("system", settings.system_prompt or SYSTEM_PROMPT), Message("user", text)]
            if settings.observation == "none" and not settings.system_prompt:
                messages = by_coordinates(messages)
            eyes, image = model.eyes, turn.screenshot
            return eyes.encode(messages, eyes.look(image)) if eyes and image else encode_chat(model.tokenizer, messages)

        prompt = fit_prompt(model.tokenizer, encode, page, len(past), settings.max_prompt_tokens, cut_lines)
        answer = await model.generate(prompt.ids, settings.sampling(turn.seed), turn.screenshot)
        return PolicyOutput.of(answer, prompt.observation)


def check_room(eyes: Eyes, settings: GrpoSettings, page: Observation) -> None:
    """Check that a page's screenshot leaves room for the rest of a prompt, and shows the page's coordinates. Raises
    UsageError: it does not.
    """
    assert page.screenshot is not None  # `RewardedEnv` checks it
    image = shrink(page.screenshot, settings.image_size or 0)
    look = eyes.look(image)
    size = f"{look.size[0]}x{look.size[1]}"
    if settings.observation == "none" and png_size(image) != png_size(page.screenshot):
        raise UsageError(
            f"observation=none: image_size={settings.image_size} shows the page at {size}, smaller than it is, so the "
            "model cannot tell coordinates: use image_size=0 or a smaller viewport"
        )
    if look.num_tokens >= settings.max_prompt_tokens:
        raise UsageError(
            f"image_size={settings.image_size}: a screenshot of {size} pixels is {look.num_tokens} tokens, and "
            f"max_seq_length {settings.max_seq_length} less max_completion_length {settings.max_completion_length} "
            f"leaves {settings.max_prompt_tokens} for a prompt: lower image_size, or raise max_seq_length"
        )


def user_text(instruction: str, past: Sequence[Step], page: str, env: RewardedEnv, num_steps: int) -> str:
    """Returns the user's message of the public scripts at one step.

    Args:
        past: the steps that are shown, oldest first.
        num_steps: steps of the episode so far.
    """
    lines = [f"Step: {num_steps + 1}", f"Goal: {instruction}", f"Current URL: {env.url or 'unknown'}"]
    lines.append("Previous steps:" if past else "Previous steps: none")
    for step in past:
        reward = env.rewards[step.index] if step.index < len(env.rewards) else 0.0
        lines.append(f"{step.index + 1}. {step.action} -> reward {reward:+.2f}{' (error)' if step.error else ''}")
    error = past[-1].error if past else ""
    lines.append(f"Last action error: {' '.join(error.split())[:200] if error else 'no'}")
    bids = [match[1] for line in page.split("\n") if INTERACTIVE.search(line) and (match := _BID.match(line))]
    lines.append(f"Clickable elements: {', '.join(bids) or 'none found'}")
    return "\n".join([*lines, "", "Page structure:", page, "", "Answer with exactly one action."])
