"""What a template's task scores for its expert, and for one who does nothing, half of it, or another task.

API: `await prove(templates, browser, config) -> {key: Proof}`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from webrl.config import RolloutConfig
from webrl.rollouts.browser import Browser
from webrl.rollouts.interface import StepResult
from webrl.types import Task
from webrl_arena.env import ArenaEnv
from webrl_arena.tasks import as_task, draw
from webrl_arena.templates import MAX_WAITS, WAIT, Template

_NUM_TASKS = 8
"""Of a template: the one that is played, and those that its end is compared with."""


@dataclass(frozen=True)
class Proof:
    """Scores of one episode of an expert; None where there is no score."""

    idle: float | None
    """Before its first action."""
    half: float | None
    """Before its last action; None if it did not come so far."""
    expert: float | None
    """At its end."""
    wrong: frozenset[float | None]
    """At its end, by other tasks of the template."""
    note: str = ""
    """What is wrong with the expert's end."""

    @property
    def holds(self) -> bool:
        """Whether the expert alone has solved the task."""
        return (self.idle, self.half, self.expert, self.wrong, self.note) == (0.0, 0.0, 1.0, frozenset({0.0}), "")


async def prove(
    templates: Sequence[Template], browser: Browser, config: RolloutConfig, num_players: int = 3
) -> dict[str, Proof]:
    """Play one evaluation task of each template, several at a time; by template key.

    Raises:
        BrowserError: the browser or the arena has gone.
    """
    waiting, proofs = list(templates), {}

    async def player() -> None:
        env = ArenaEnv(browser, config)
        try:
            while waiting:
                template = waiting.pop()
                proofs[template.key] = await prove_template(env, template)
        finally:
            await env.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(num_players):
            group.create_task(player())
    return proofs


async def prove_template(env: ArenaEnv, template: Template) -> Proof:
    """Play the template's first evaluation task; the session stays as it is at the end."""
    tasks = [as_task(entry, "eval") for entry in draw(template, "eval", _NUM_TASKS)]
    observation = await env.reset(tasks[0])
    idle = (await env.finish()).reward
    half, problem = await _play(env, template, tasks[0], observation.text)
    end = await env.finish()
    wrong = [await env.judge(task) for task in tasks if _eval(task) != _eval(tasks[0])]
    return Proof(idle, half, end.reward, frozenset(score.reward for score in wrong), problem or end.note)


async def _play(env: ArenaEnv, template: Template, task: Task, page: str) -> tuple[float | None, str]:
    """Play to the end; return the score before the last action, and what kept the expert from its end."""
    num_steps = len(template.script)
    half: float | None = None
    worked: list[str] = []
    result: StepResult | None = None
    tried = 0
    while result is None or not result.agent_done:
        if len(worked) - worked.count(WAIT) == num_steps - 1:
            half = (await env.finish()).reward
        action = template.plan(task.instruction or "", page, worked)
        tried += 1
        if not action or tried > 2 * num_steps + 1 + MAX_WAITS:
            return half, f"stuck after {worked}"
        result = await env.step(action)
        page = result.observation.text
        worked += [] if result.error else [action]
    return half, ""


def _eval(task: Task) -> object:
    return task.extra["arena"]["eval"]
