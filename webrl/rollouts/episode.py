"""One episode: reset, then observe - act until something ends it. A bad rollout is data, not a crash.

`run_episode` never raises for what page, browser or policy do; the trajectory's status says how it ended. (But a model
that sees is never shown a page without its screenshot: then it raises StageError.)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError, PolicyError, StageError
from webrl.llm.interface import Policy, Turn
from webrl.llm.pictures import shrink
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.interface import Env, Observation, StepResult, checked_reward
from webrl.types import Status, Step, Task, Trajectory

logger = logging.getLogger(__name__)

SaveScreenshot = Callable[[bytes, int], str]
"""(PNG, step index) -> path relative to the run folder."""


@dataclass
class _Episode:
    """What is known so far; survives an exception at any point."""

    steps: list[Step] = field(default_factory=list)
    observation: Observation = field(default_factory=lambda: Observation("", "", ""))
    status: Status | None = None
    message: str = ""
    reward: float = 0.0
    parse_failures: int = 0


async def repeat_after_crash(
    play: Callable[[], Awaitable[Trajectory]], config: RolloutConfig, trajectory_id: str
) -> Trajectory:
    """The trajectory of `play`, called again after a crash of page or browser, at most `max_retries` times."""
    for attempt in range(1, config.max_retries + 2):
        trajectory = dataclasses.replace(await play(), attempts=attempt)
        if trajectory.status is not Status.ENV_ERROR:
            break
        logger.warning("%s: attempt %d failed: %s", trajectory_id, attempt, trajectory.message)
    return trajectory


async def run_episode(
    env: Env,
    policy: Policy,
    task: Task,
    config: RolloutConfig,
    *,
    trajectory_id: str,
    phase: int = 0,
    seed: int = 0,
    draws: str = "",
    save_screenshot: SaveScreenshot | None = None,
) -> Trajectory:
    """Play one episode to its end.

    Args:
        seed: of the policy's draws; each step derives its own from it and `draws`.
        draws: names the stream of draws: two episodes of one name draw alike. Default: the trajectory id.

    Stop rules (paper, section 2.1 of the released code's settings): `max_parse_failures` unreadable actions in a
    row, `max_repeats` equal actions in a row on a page that stays the same (the released code counts one more press of
    an arrow key or of a +, too), `max_steps` steps, the agent's or the page's end, `episode_timeout_s`.
    """
    episode = _Episode()
    start = time.perf_counter()
    try:
        async with asyncio.timeout(config.episode_timeout_s):
            await _play(env, policy, task, config, episode, (seed, draws or trajectory_id), save_screenshot)
    except TimeoutError:
        episode.status = Status.TIMEOUT
        episode.message = f"the episode passed its deadline of {config.episode_timeout_s:g} s"
    except (BrowserError, DataError) as error:
        episode.status, episode.message = Status.ENV_ERROR, str(error)
    except PolicyError as error:
        episode.status, episode.message = Status.POLICY_ERROR, str(error)
    assert episode.status is not None
    has_reward = task.instruction is None and episode.status.finished
    return Trajectory(
        trajectory_id=trajectory_id,
        task=task,
        instruction=task.instruction or episode.observation.goal,
        phase=phase,
        steps=tuple(episode.steps),
        final_observation=episode.observation.text,
        status=episode.status,
        message=episode.message,
        env_reward=checked_reward(trajectory_id, episode.reward) if has_reward else None,
        seconds=time.perf_counter() - start,
        policy=policy.fingerprint,
    )


async def _play(
    env: Env,
    policy: Policy,
    task: Task,
    config: RolloutConfig,
    episode: _Episode,
    seed: tuple[int, str],
    save_screenshot: SaveScreenshot | None,
) -> None:
    episode.observation = await env.reset(task)
    while episode.status is None:
        index = len(episode.steps)
        before = episode.observation
        shown, size = None, config.image_size
        if size is not None:
            if before.screenshot is None:
                lacks = f"there is no screenshot of the page, which rollout.image_size={size} asks for"
                raise StageError(f"{before.url}: {lacks}")
            try:
                shown = await asyncio.to_thread(shrink, before.screenshot, size)
            except ValueError as error:
                raise BrowserError(str(error)) from None
        picture = shown or before.screenshot
        screenshot = save_screenshot(picture, index) if save_screenshot and picture else ""
        turn = Turn(before.goal, tuple(episode.steps), before.text, step_seed(*seed, index), shown)
        asked = time.perf_counter()
        output = await policy.act(turn)
        answered = time.perf_counter()
        taken, note = output.text, ""
        with contextlib.suppress(ActionError):  # the environment tells of it
            action = read_answer(output.text, config.dialect)
            taken, note = action.canonical, action.note
        result = await env.step(taken)
        episode.steps.append(
            Step(
                index=index,
                observation=output.observation_shown,
                response=output.text,
                action=result.action,
                error=result.error,
                note=note,
                prompt_ids=tuple(output.prompt_ids),
                action_ids=tuple(output.action_ids),
                logprobs=tuple(output.logprobs),
                url=before.url,
                screenshot=screenshot,
                screenshot_sha256=hashlib.sha256(shown).hexdigest() if screenshot and shown else "",
                blocked=result.blocked,
                seconds={"policy": answered - asked, "browser": time.perf_counter() - answered},
            )
        )
        episode.observation, episode.reward = result.observation, result.reward
        episode.parse_failures = 0 if result.action else episode.parse_failures + 1
        episode.status = _stop(episode, result, config)
        episode.message = result.message


def _stop(episode: _Episode, result: StepResult, config: RolloutConfig) -> Status | None:
    """Return the rule that ends the episode after its newest step, or None."""
    if result.done:
        return Status.PAGE_ENDED
    if result.agent_done:
        return Status.AGENT_DONE
    if episode.parse_failures >= config.max_parse_failures:
        return Status.PARSE_FAILURES
    last = [(step.action, step.observation) for step in episode.steps[-config.max_repeats :]]
    if len(last) == config.max_repeats and last[0][0] and len(set(last)) == 1:
        return Status.REPEATED_ACTION
    if len(episode.steps) >= config.max_steps:
        return Status.STEP_LIMIT
    return None


def step_seed(seed: int, draws: str, index: int) -> int:
    """Return the seed of one draw: set by the run seed, stream of draws and step alone, not by concurrent work."""
    digest = hashlib.sha256(f"{seed}:{draws}:{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
