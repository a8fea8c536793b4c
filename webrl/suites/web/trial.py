"""Episodes that try what `webrl init-site` writes.

API: `await prove(config, starters)` keeps the instructions that their own answers solve; `await try_site(config)` plays
one without doing anything: does the site open, what is seen (`num_elements(text)`), and is doing nothing no success.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import BrowserError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.browser import Browser
from webrl.rollouts.episode import run_episode
from webrl.suites.web.env import WebEnv
from webrl.suites.web.starter import Starter
from webrl.suites.web.suite import OwnSite
from webrl.suites.web.tasks import heldout_tasks, site_name, task_at, training_tasks
from webrl.types import Trajectory

_ELEMENT = re.compile(
    r"\[[a-zA-Z]*\d+\] (?:button|link|checkbox|radio|textbox|searchbox|combobox|tab|menuitem|switch|"
    r"generic .*(?:clickable|editable)|generic, (?:clickable|editable))"
)


class Idle:
    """Waits, then says that it is done."""

    fingerprint = "idle"

    async def act(self, turn: Turn) -> PolicyOutput:
        """The same answers for any page."""
        return PolicyOutput((), (), (), "send_msg_to_user('done')" if turn.history else "noop()", turn.observation)


class _Solver:
    """Opens a starter's page and says its answer, if the page shows it."""

    fingerprint = "solver"

    def __init__(self, starter: Starter) -> None:
        self._starter = starter

    async def act(self, turn: Turn) -> PolicyOutput:
        """The link's address first, then what is to be said."""
        answer = self._starter.answer
        said = answer if not answer or f" {answer!r}" in turn.observation else "The page does not show it."
        action = f"send_msg_to_user({said or 'done'!r})" if turn.history else "noop()"
        if not turn.history and self._starter.page.target:
            action = f"goto({self._starter.page.target!r})"
        return PolicyOutput((), (), (), action, turn.observation)


async def prove(config: RolloutConfig, starters: Sequence[Starter]) -> tuple[list[Starter], list[str]]:
    """The instructions that are solved by their own answers, and why the others are not.

    The instructions of one page are played together, its last one left out until the rest is solved.
    """
    kept: list[Starter] = []
    dropped: list[str] = []
    async with Browser(max_page_mb=config.max_page_mb) as browser:
        env = WebEnv(browser, config)
        try:
            for _, group in groupby(starters, lambda starter: starter.page.url):
                together = list(group)
                while together and (why := await _problem(env, config, together)):
                    dropped.append(f"{together.pop().entry['instruction']} {why}")
                kept += together
        finally:
            await env.close()
    return kept, dropped


async def _problem(env: WebEnv, config: RolloutConfig, together: Sequence[Starter]) -> str:
    last = together[-1]
    task = task_at(config, f"{site_name(config)}.{last.entry['id']}", config.web.start_urls[0], "prove")
    task = replace(task, extra={"checks": [check for starter in together for check in starter.entry["checks"]]})
    trajectory = await run_episode(env, _Solver(last), task, config, trajectory_id="proof")
    if not trajectory.status.finished:
        return f"{trajectory.status}: {trajectory.message}"
    return (await env.finish()).note


async def try_site(config: RunConfig) -> Trajectory:
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
    return trajectory


def num_elements(text: str) -> int:
    """Elements of a page's text that can be acted on (in the axtree form)."""
    return len(_ELEMENT.findall(text))
