"""An environment in the arena: `BrowserEnv` in its own session, logged in, and scored at the end.

API: `ArenaEnv(browser, config)`; each episode has its own state of the sites, dropped afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from typing import Any
from urllib.parse import urlsplit

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.guard import NavigationGuard
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.sites import Site
from webrl.types import Task
from webrl_arena.profiles import Profile, ProfilePool
from webrl_arena.scoring import CHECK_TIMEOUT_S, End, score
from webrl_arena.tasks import KEY, eval_of, find_task
from webrl_arena.world.client import Arena, ArenaError, Session
from webrl_arena.world.sites import addresses
from webrl_site.sites import resolve

_ERROR_PAGE = "chrome-error:"
_STEP_CHECK_S = 10.0
"""Deadline of an evaluator after a step: less than what a worker may take beyond its step's."""


class ArenaEnv(BrowserEnv):
    """See the module docstring.

    Raises, besides what `BrowserEnv` raises:
        ArenaError (a BrowserError): the arena is down, or has lost the session.
        UsageError: the shop has no such user.
    """

    imports = False  # its pages are documents

    def __init__(self, browser: Browser, config: RolloutConfig) -> None:
        super().__init__(browser, config)
        self._session: Session | None = None
        self._opened: contextlib.AsyncExitStack | None = None
        self._played: Task | None = None
        self._ended: StepResult | None = None
        self._reused: Profile | None = None

    async def reset(self, task: Task) -> Observation:
        """Open a session, log in, open the start page; a task by name and seed (`find_task`) is looked up first."""
        await self.close()
        if task.start_url is None:
            task = await asyncio.to_thread(find_task, task.site, task.seed)
        login: str | None = task.extra.get(KEY, {}).get("login")
        user = login if login in (None, "staff") else f"customer:{login}"
        async with contextlib.AsyncExitStack() as opened:
            session = await opened.enter_async_context(Arena.running(self._config.arena.folder).new(user))
            self._profile_options: dict[str, Any] = {"storage_state": {"cookies": session.cookies, "origins": []}}
            start = _resolve(task.start_url, session, task)
            observation = await super().reset(dataclasses.replace(task, start_url=start, extra={}))
            await self._require(session, observation)
            # Only now: opening a page closes the old profile, and `close` drops the session.
            self._opened, self._session, self._played = opened.pop_all(), session, task
        return observation

    async def step(self, action_text: str) -> StepResult:
        """As `BrowserEnv.step`; with `score_steps` its reward is the session's as it is then, and ends a solved task.

        Raises:
            ArenaError: the page has gone because the arena has.
            BrowserError: the reward could not be found out twice; an episode that ends so must not count as failed.
        """
        result = await super().step(action_text)
        if self._session is not None:
            await self._require(self._session, result.observation)
        self._ended = result if result.agent_done else None
        if not self._config.arena.score_steps or self._played is None:
            return result
        found = await self.judge(self._played, _STEP_CHECK_S)
        if found.reward is None and found.note:
            found = await self.judge(self._played, _STEP_CHECK_S)
        if found.reward is None:
            if found.note:
                raise BrowserError(f"no score: {found.note}")
            return result
        return dataclasses.replace(result, reward=found.reward, done=result.done or found.reward > 0)

    async def _require(self, session: Session, observation: Observation) -> None:
        """Raise ArenaError if the session is lost; an agent may also open pages that do not load (a blocked host)."""
        lost = observation.url.startswith(_ERROR_PAGE) or not session.database.exists()
        if lost and (problem := await self._problem(session)):
            await self.close()
            raise ArenaError(problem)

    async def _problem(self, session: Session) -> str:
        """Return why the session cannot be used; "" if it can."""
        if not session.database.exists():
            return "the arena has lost the session"
        parts = urlsplit(session.start_url)
        try:
            async with asyncio.timeout(self._config.step_timeout_s):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
        except OSError as error:  # TimeoutError is one
            return f"the arena at {parts.netloc} does not answer: {error or 'no connection in time'}"
        return ""

    async def finish(self) -> Score:
        """Score by the task's `eval`; without one, there is no score."""
        if self._played is None:
            raise BrowserError("finish() before reset()")
        return await self.judge(self._played)

    async def judge(self, task: Task, timeout_s: float = math.inf) -> Score:
        """Score the session in its current state with a task's `eval`, regardless of the task being played.

        Args:
            timeout_s: for each evaluator, where `CHECK_TIMEOUT_S` is longer.
        """
        evaluation, session = eval_of(task), self._session
        if evaluation is None or session is None:
            return Score(None)
        if problem := await self._problem(session):
            return Score(None, problem)
        page = self.page if not self.page.is_closed() else next(iter(self.context.pages), None)
        if page is None:
            return Score(None, "all tabs are closed")
        answer = self._ended.message if self._ended else None
        timeout_s = min(timeout_s, CHECK_TIMEOUT_S)
        end = End(self.context, page, answer, session.database, timeout_s)
        return await score(_resolve(evaluation, session, task), end)

    async def close(self) -> None:
        """Close the pages and drop the session; the profile is emptied for the next episode, or closed."""
        self._played = self._ended = None
        opened, self._opened, self._session = self._opened, None, None
        try:
            await self._release_profile()
            await super().close()
        finally:
            if opened is not None:
                with contextlib.suppress(ArenaError):
                    await opened.aclose()

    async def _open(self, site: Site) -> None:
        """Load the start page; in a reused profile, it starts by clearing what only pages can."""
        await super()._open(site)
        reused, self._reused = self._reused, None
        if reused is not None:
            await reused.stop_clearing()

    async def _new_profile(self, site: Site) -> None:
        """Reuse a profile of an earlier episode, if there is one."""
        pool = ProfilePool.of(self._browser)
        self._reused = profile = await pool.acquire(self._kind(site)) if self._can_reuse_profile else None
        if profile is None:
            await super()._new_profile(site)
            return
        self.context, self._guard, self._tabs = profile.context, profile.guard, {profile.tab.page: profile.tab}
        self.context.on("page", self._activate)
        await self.context.add_cookies(self._profile_options["storage_state"]["cookies"])
        await profile.clear_next_document()

    async def _release_profile(self) -> None:
        """Release the profile to the next episode, unless its state is unknown or it has other tabs."""
        page, context = self._first_page, self.context
        clean, self._clean = self._clean, False
        if (
            not clean
            or not self._can_reuse_profile
            or page is None
            or context.pages != [page]
            or page not in self._tabs
        ):
            return
        self.context = None  # type: ignore[assignment]
        context.remove_listener("page", self._activate)
        parts = urlsplit(self._site.url)
        origin, timeout_s = f"{parts.scheme}://{parts.netloc}", self._config.step_timeout_s / 2
        profile = Profile(context, self._tabs.pop(page), self._guard, origin, timeout_s)
        self._guard = NavigationGuard(())
        await ProfilePool.of(self._browser).release(self._kind(self._site), profile)

    @property
    def _can_reuse_profile(self) -> bool:
        """Whether no outside host is allowed, which might leave something behind, and no observer is attached."""
        return not (self._config.allowed_hosts or self._config.public_hosts or self.observer)

    def _kind(self, site: Site) -> object:
        """Return the key of profiles that are interchangeable."""
        return tuple(site.hosts), self._config.model_dump_json()


def _resolve(data: Any, session: Session, task: Task) -> Any:
    parts = urlsplit(session.start_url)
    urls = addresses(f"{parts.scheme}://{parts.netloc}")
    return resolve(data, urls, f"task {task.task_id!r}", tuple(urls))
