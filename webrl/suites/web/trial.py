"""One episode of an agent that does nothing: does the site open, what is seen, and is doing nothing no success.

API: `await try_site(config) -> Trial`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from webrl.config import RunConfig
from webrl.errors import BrowserError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.browser import Browser
from webrl.rollouts.episode import run_episode
from webrl.suites.web.env import WebEnv
from webrl.suites.web.suite import OwnSite
from webrl.suites.web.tasks import heldout_tasks, training_tasks

_ELEMENT = re.compile(
    r"\[[a-zA-Z]*\d+\] (?:button|link|checkbox|radio|textbox|searchbox|combobox|tab|menuitem|switch|"
    r"generic .*(?:clickable|editable)|generic, (?:clickable|editable))"
)


@dataclass(frozen=True)
class Trial:
    """What came of it."""

    task_id: str
    """Which instruction."""
    instruction: str
    """Its text."""
    text: str
    """The first page, as the agent sees it."""
    reward: float | None
    """By the instruction's checks."""

    @property
    def num_chars(self) -> int:
        """Size of the page."""
        return len(self.text)

    @property
    def num_elements(self) -> int:
        """Elements of it that can be acted on (in the axtree form)."""
        return len(_ELEMENT.findall(self.text))

    @property
    def verdict(self) -> str:
        """The reward in words."""
        if self.reward is None:
            return "no reward: the instruction has no checks, the outcome model judges"
        return "reward 0, as it should" if self.reward == 0 else "reward 1: these checks hold at once, mend them"


class Idle:
    """Waits, then says that it is done."""

    fingerprint = "idle"

    async def act(self, turn: Turn) -> PolicyOutput:
        """The same answers for any page."""
        return PolicyOutput((), (), (), "send_msg_to_user('done')" if turn.history else "noop()", turn.observation)


async def try_site(config: RunConfig) -> Trial:
    """Play the first instruction without doing anything.

    Raises:
        BrowserError: the episode failed, with its error.
    """
    task = [*training_tasks(config), *heldout_tasks(config)][0]
    suite = OwnSite()
    suite.check(task, config.rollout)
    async with Browser() as browser:
        env = WebEnv(browser, config.rollout)
        try:
            trajectory = await run_episode(env, Idle(), task, config.rollout, trajectory_id="trial")
            trajectory = await suite.finish(env, trajectory)
        finally:
            await env.close()
    if not trajectory.status.finished:
        raise BrowserError(f"{task.task_id}: {trajectory.status}: {trajectory.message}")
    first = trajectory.steps[0].observation
    return Trial(task.task_id, trajectory.instruction, first, trajectory.env_reward)
