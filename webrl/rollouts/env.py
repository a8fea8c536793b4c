"""One environment: a browser profile whose pages an agent acts on, one episode at a time.

API (`interface.py`: what every environment offers, here, pooled or remote):

    env = BrowserEnv(browser, config.rollout)          # browser: webrl.rollouts.browser.Browser, shared
    observation = await env.reset(task)                # Observation(text, url, goal, screenshot)
    result = await env.step("click('12')")             # StepResult(observation, action, error, done, reward, …)
    await env.close()

Raises BrowserError when page or browser have failed or passed `step_timeout_s` (the environment heals itself at
the next reset), DataError for a task that names no page.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.actions import ID, Action, ActionError
from webrl.rollouts.answers import labelled, read_answer
from webrl.rollouts.browser import Browser, first_line
from webrl.rollouts.devtools import REPLACED, ChannelClosed, ChannelError, Tab
from webrl.rollouts.execute import ActionFailed, execute
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.observe import read_page
from webrl.rollouts.profile import BrowserProfile
from webrl.rollouts.sites import Site, Verdict, open_site, require_text
from webrl.rollouts.snapshot import take
from webrl.types import Task

if TYPE_CHECKING:
    from playwright.async_api import Page

logger = logging.getLogger(__name__)

HORIZON_MS = 500
"""Timers and animations due within this after an action are waited for: stock BrowserGym's fixed delay."""
_LOAD_HORIZON_MS = 250
_COLLECT_EVERY = 24
"""Episodes after which a page that is written anew frees its earlier documents (by itself it waits for 50 MB)."""
_MAX_TRIES = 5
_PATIENCE = 0.6
"""Share of the step's deadline after which a page that does not come is given up."""
# What a page says when it was replaced while being looked at; looking again helps.
_TRANSIENT = (*REPLACED, "of undefined")
_HEARD = "__webrl.hear(), "
_MAX_FIRST_ID = 1000
_ID_PARAMETERS = {"bid", "from_bid", "to_bid"}
# Actions that leave a key or button down, or a page in a state that only loading it again clears.
_DIRTY = frozenset(("mouse_down", "keyboard_down", "upload_file", "mouse_upload_file", "go_back", "go_forward"))


class BrowserEnv(BrowserProfile):
    """An environment on a shared browser; see the module docstring."""

    def __init__(self, browser: Browser, config: RolloutConfig, site_of: Callable[[Task], Site] = open_site) -> None:
        """`site_of`: how an episode of a task starts and ends in its page. Raises DataError."""
        super().__init__(browser, config)
        self._site_of = site_of
        self._task: Task | None = None
        self._goal = ""
        self._text = ""
        self._loaded_url = ""
        self._clean = False
        self._restarts = 0
        self._ids: dict[str, str] | None = None
        self._copied: dict[str, str] | None = None

    async def reset(self, task: Task) -> Observation:
        """Start an episode of `task`."""
        site = self._site_of(task)
        async with self._deadline(f"reset of {task.site!r}"):
            self._first_id = self._draw_first_id(task)
            self._copied = None
            goal = await self._restart(site, task.seed)
            self._clean = False
            if goal is None:
                await self._open(site)
                goal = await site.start(await self._use_tab(), task.seed)
            self._task, self._site = task, site
            self.scale = site.scale if self._config.viewport is None else 1.0
            self._goal = require_text(goal or "", task)
            observation, _ = await self._look(_LOAD_HORIZON_MS)
            self._clean = True
            return observation

    async def step(self, action_text: str) -> StepResult:
        """Carry out one action and look at the page."""
        if self._task is None:
            raise BrowserError("step() before reset()")
        blocked = self._guard.blocked
        action: Action | None = None
        error = ""
        clean, self._clean = self._clean, False  # a step that is cancelled half-way leaves a page in doubt
        if not self._is_empty:
            self._notices.downloads = 0  # of earlier steps: no tab waits for one
        async with self._deadline(f"step {action_text!r:.60}"):
            try:
                action = self._parse(action_text)
                for part in (action, *action.rest):
                    clean = clean and part.name not in _DIRTY
                    await self._use_tab()
                    async with self.observer.acting(part) if self.observer else contextlib.nullcontext():
                        await self._act(part)
            except (ActionError, ActionFailed) as problem:
                error = str(problem)
            observation, verdict = await self._look(HORIZON_MS if action else 0)
            self._clean = clean
        says = action is not None and action.name in ("send_msg_to_user", "report_infeasible") and not error
        return StepResult(
            observation=observation,
            action=action.canonical if action else "",
            error=error,
            done=verdict.done,
            reward=verdict.reward,
            agent_done=says,
            message=next(iter(action.arguments.values())) if says and action else "",
            blocked=self._guard.blocked - blocked,
        )

    async def finish(self) -> Score:
        """The score of the episode as it stands; here none, the steps had their rewards."""
        return Score(None)

    async def close(self) -> None:
        """End the episode, and close the profile and its pages."""
        self._task, self._clean = None, False
        await super().close()

    def _parse(self, action_text: str) -> Action:
        """Read what the agent has written. Raises ActionError."""
        return read_answer(action_text, self._config.dialect)

    async def _act(self, action: Action) -> None:
        """Carry out one action on the active tab. Raises ActionFailed."""
        await execute(self._resolve(action), self)

    def _resolve(self, action: Action) -> Action:
        """The action with the ids of the observation replaced by bids, where the observation has ids of its own."""
        for name in action.arguments.keys() & _ID_PARAMETERS:
            bid = action.arguments[name]
            if not ID.fullmatch(bid) and f"[{bid}] " not in self._text:  # a frame has letters alone
                number = next(iter(labelled(self._text, bid)), "18")
                example = dataclasses.replace(action, arguments=action.arguments | {name: number}, written="")
                raise ActionFailed(
                    f"ids are the numbers in square brackets, e.g. {example.canonical:.200}; {bid!r:.100} is none"
                )
        if self._ids is None:
            return action
        arguments = dict(action.arguments)
        for name in arguments.keys() & _ID_PARAMETERS:
            number = arguments[name]
            if number not in self._ids:
                raise ActionFailed(f'ValueError: Could not find element with id "{number}"')
            arguments[name] = self._ids[number]
        return dataclasses.replace(action, arguments=arguments)

    def _draw_first_id(self, task: Task) -> int:
        """Number of the first element, `rollout.random_ids`: the same in all attempts at a task."""
        if not self._config.random_ids or task.split != "train":
            return 0
        return random.Random(f"{task.task_id} {task.seed}").randrange(_MAX_FIRST_ID)

    @contextlib.asynccontextmanager
    async def _deadline(self, what: str) -> AsyncIterator[None]:
        """Turn crashes and hangs into BrowserError and have the profile replaced."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(self._config.step_timeout_s):
                yield
        except TimeoutError:
            await self.close()
            raise BrowserError(f"{what} passed its deadline of {self._config.step_timeout_s:g} s") from None
        except (Error, ChannelError, ChannelClosed, OSError) as error:
            await self.close()
            raise BrowserError(f"{what}: {first_line(error)}") from None
        except Exception:
            await self.close()
            raise

    async def _restart(self, site: Site, seed: int) -> str | None:
        """Start another episode on the page as it is; its goal, or None if the page has to be loaded."""
        page = self._first_page
        if not self._clean or not site.reusable or not self._site.reusable:
            return None
        if (
            page is None
            or page is not self.page
            or page.url.partition("#")[0] != self._loaded_url
            or len(self.context.pages) > 1
        ):
            return None
        tab = await self._use_tab()
        if tab.pointer:
            # So that the next episode does not begin with a hovered element.
            await tab.leave_page()
        goal = await site.start(tab, seed)
        self._restarts += 1
        if self._restarts % _COLLECT_EVERY == 0:
            await tab.channel.send("HeapProfiler.collectGarbage")
        return goal

    async def _open(self, site: Site) -> None:
        """Load the site's page, in a fresh profile unless the old one's page can be loaded again."""
        from playwright.async_api import Error

        keep = self.context is not None and site.reusable and self._site.reusable and len(self.context.pages) == 1
        if not keep:
            await self.close()
            await self._new_profile(site)
        self._site = site
        self._first_page = self.page = self.context.pages[0]
        await self._use_tab()
        try:
            await self.page.goto(site.url, timeout=self._config.step_timeout_s * 1000)
        except Error as error:
            # The second is what later Playwrights say of a download.
            if "net::ERR_ABORTED" not in str(error) and "Download is starting" not in str(error):
                raise
            raise BrowserError(f"{site.url} is no page: a download, or an empty answer ({first_line(error)})") from None
        self._loaded_url = self.page.url

    async def _look(self, horizon_ms: int) -> tuple[Observation, Verdict]:
        """Wait until the active page is quiet, then take it down; again if it is replaced meanwhile."""
        from playwright.async_api import Error

        end = time.monotonic() + self._config.settle_cap_s
        for tries_left in reversed(range(_MAX_TRIES)):
            page = self.page
            try:
                tab = await self._use_tab()
                page = tab.page
                if tries_left and await self._leave_download():
                    continue
                await tab.arrive(end)
                seen = await self._see(tab, "", horizon_ms, end)
                while not seen["popups"] and await tab.has_imported(end):
                    seen = await self._see(tab, _HEARD, HORIZON_MS, end)
                if seen["popups"] and page is self.page:
                    await self._await_popup(page, end)
                if tries_left and await self._leave_download():
                    continue
                if tries_left and (page is not self.page or (tab.channel.leaving and time.monotonic() < end)):
                    continue
                return await self._describe(tab, seen)
            except (Error, ChannelError, ChannelClosed) as error:
                if not tries_left or not await self._recover(page, error):
                    raise
        raise AssertionError("unreachable")

    async def _see(self, tab: Tab, before: str, horizon_ms: int, end: float) -> dict[str, Any]:
        """What `__webrl.look` tells of a page; what was copied on one page can be pasted on the next."""
        cap_ms = max(0.0, end - time.monotonic()) * 1000
        hidden = json.dumps(list(self._site.hidden_ids))
        form = self._config.observation
        how = f"{horizon_ms}, {cap_ms:.0f}, {hidden}, '{form}', {self._first_id}, {json.dumps(self._copied)}"
        seen: dict[str, Any] = await tab.evaluate_or_stop(
            f"{before}__webrl.look({how})", self._config.step_timeout_s * _PATIENCE
        )
        self._copied = seen["copied"] or self._copied
        return seen

    async def _describe(self, tab: Tab, seen: dict[str, Any]) -> tuple[Observation, Verdict]:
        """Observation and verdict of a quiet page that has just been marked."""
        text, self._ids = await read_page(tab, seen, self._config.observation, self._site.hidden_ids)
        self._text = text = self._notices.take() + text
        url = self._address(tab.page, seen["url"])
        verdict = await self._site.judge(tab, tab.page is self._first_page, url, seen["state"])
        screenshot = await self._capture(tab) if self._config.screenshots else None
        details = None
        if self._config.page_details and not seen.get("tooLarge"):
            details = await take(tab, self._site.hidden_ids, self.scale, self._viewport)
        return Observation(text, url, self._goal, screenshot, details), verdict

    def _address(self, page: Page, url: str) -> str:
        """A tab's address; a page that was written over another one has kept that one's."""
        return self._site.url if page is self._first_page and url == self._loaded_url else url

    async def _recover(self, page: Page, error: Exception) -> bool:
        """After an error that a navigation explains: wait for the new document; False if it is something else."""
        from playwright.async_api import Error

        text = str(error)
        if "the page has no __webrl" in text:
            # Documents that run no init script (PDF viewer, error pages) get it now.
            await self._tabs[page].evaluate_in_page(self._page_script)
            return True
        if isinstance(error, ChannelClosed):
            # Playwright hears of a closed page by its own line, a little later.
            await asyncio.sleep(0.1)
        if page.is_closed():
            return bool(self.context.pages)
        if not any(part in text for part in _TRANSIENT):
            return False
        with contextlib.suppress(Error):
            await page.wait_for_load_state("domcontentloaded", timeout=self._config.settle_cap_s * 1000)
        return True
