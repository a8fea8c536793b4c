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

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError, PolicyError, StageError
from webrl.llm.interface import Policy, Turn
from webrl.llm.pictures import shrink
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.interface import Env, Observation, checked_reward
from webrl.types import Status, Step, Task, Trajectory

logger = logging.getLogger(__name__)

SaveScreenshot = Callable[[bytes, int], str]
"""(PNG, step index) -> path relative to the run folder."""


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
    steps: list[Step] = []
    status: Status | None = None
    observation, message, reward, parse_failures = Observation("", "", ""), "", 0.0, 0
    start = time.perf_counter()
    try:
        async with asyncio.timeout(config.episode_timeout_s):
            observation = await env.reset(task)
            while status is None:
                before, shown = observation, None
                if (size := config.image_size) is not None:
                    if before.screenshot is None:
                        lacks = f"there is no screenshot of the page, which rollout.image_size={size} asks for"
                        raise StageError(f"{before.url}: {lacks}")
                    try:
                        shown = await asyncio.to_thread(shrink, before.screenshot, size)
                    except ValueError as error:
                        raise BrowserError(str(error)) from None
                picture = shown or before.screenshot
                screenshot = save_screenshot(picture, len(steps)) if save_screenshot and picture else ""
                drawn = step_seed(seed, draws or trajectory_id, len(steps))
                asked = time.perf_counter()
                output = await policy.act(Turn(before.goal, tuple(steps), before.text, drawn, shown))
                answered = time.perf_counter()
                taken, note = output.text, ""
                with contextlib.suppress(ActionError):  # the environment tells of it
                    action = read_answer(output.text, config.dialect)
                    taken, note = action.canonical, action.note
                result = await env.step(taken)
                steps.append(
                    Step(
                        index=len(steps),
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
                observation, reward, message = result.observation, result.reward, result.message
                parse_failures = 0 if result.action else parse_failures + 1
                last = [(step.action, step.observation) for step in steps[-config.max_repeats :]]
                if result.done:
                    status = Status.PAGE_ENDED
                elif result.agent_done:
                    status = Status.AGENT_DONE
                elif parse_failures >= config.max_parse_failures:
                    status = Status.PARSE_FAILURES
                elif len(last) == config.max_repeats and last[0][0] and len(set(last)) == 1:
                    status = Status.REPEATED_ACTION
                elif len(steps) >= config.max_steps:
                    status = Status.STEP_LIMIT
    except TimeoutError:
        status, message = Status.TIMEOUT, f"the episode passed its deadline of {config.episode_timeout_s:g} s"
    except (BrowserError, DataError) as error:
        status, message = Status.ENV_ERROR, str(error)
    except PolicyError as error:
        status, message = Status.POLICY_ERROR, str(error)
    has_reward = task.instruction is None and status.finished
    return Trajectory(
        trajectory_id=trajectory_id,
        task=task,
        instruction=task.instruction or observation.goal,
        phase=phase,
        steps=tuple(steps),
        final_observation=observation.text,
        status=status,
        message=message,
        env_reward=checked_reward(trajectory_id, reward) if has_reward else None,
        seconds=time.perf_counter() - start,
        policy=policy.fingerprint,
    )


def step_seed(seed: int, draws: str, index: int) -> int:
    """Return the seed of one draw: set by the run seed, stream of draws and step alone, not by concurrent work."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{draws}:{index}".encode()).digest()[:4], "big") >> 1
