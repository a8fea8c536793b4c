"""One OpenEnv session: an environment of the server's pool, borrowed for each episode.

API: `Session(hub)` is one client's: `await session.reset(options)`, `await session.step(action_text)`,
`session.state`, `await session.close()`. What a reset may say stands in `ResetOptions`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from typing import Any

from webrl.errors import BrowserError
from webrl.openenv.hub import PATIENCE_S, Hub, NoEpisode
from webrl.openenv.messages import BrowserGymObservation, BrowserGymState, DetailedObservation
from webrl.openenv.options import Start, read_options
from webrl.openenv.screenshots import encode
from webrl.rollouts.actions import ActionError
from webrl.rollouts.answers import read_answer
from webrl.rollouts.interface import Observation, StepResult

BORROW_TIMEOUT_S = 30.0
"""Longest wait for an environment: there is one for every place."""
EPISODE_OVER = "the episode is over: nothing was done and no reward given; reset to begin another"
"""`error` of a step after the last one."""


class Session:
    """See the module docstring; lives in the server's event loop."""

    def __init__(self, hub: Hub, idle_timeout_s: float | None = None) -> None:
        """A session without a place: its first reset waits for one."""
        self._hub = hub
        self.idle_timeout_s = hub.options.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        self._lent = contextlib.AsyncExitStack()
        self._env: Any = None
        self._start: Start | None = None
        self._over = True
        self._last: StepResult | None = None
        self._last_action = ""
        self._timer: asyncio.TimerHandle | None = None
        self._parking: asyncio.Task[None] | None = None
        self.idle_since: float | None = None
        """Loop time since which it has been silent for too long; None while it is not."""
        self.state = first_state(hub)
        """Where the episode stands."""
        self._rest()

    async def reset(self, data: dict[str, Any], patience_s: float = PATIENCE_S) -> BrowserGymObservation:
        """Start an episode; waits for a place for at most `patience_s`.

        Raises:
            ValidationError: options that are not those of ResetOptions.
            DataError: no such task, a host that is not allowed, or a setting out of range.
            AtCapacity: no place became free.
            BrowserError: page or browser failed.
        """
        start = read_options(data, self._hub)
        async with self._busy():
            await self._hub.admit(self, patience_s)
            suite, _, name = start.task.site.partition(".")
            episode = data.get("episode_id") or uuid.uuid4().hex
            self.state = BrowserGymState(episode_id=episode, benchmark=suite, task_name=name)
            await self._borrow()
            self._start, self._over, self._last, self._last_action = start, False, None, ""
            # A client that goes meanwhile leaves a page behind as well.
            first: Observation = await self._env.reset(start.task, start.settings)
            self.state.goal, self.state.current_url = first.goal, first.url
            return await self._describe(start, first, None)

    async def step(self, action_text: str) -> BrowserGymObservation:
        """Act once; after the end of the episode nothing is done, and the answer is its last page with reward 0.

        (OpenEnv's own server passes the action on to BrowserGym, which gives the episode's reward again.)

        Raises:
            NoEpisode: there is none.
            BrowserError: the step failed.
        """
        async with self._busy():
            if self._env is None or self._start is None:
                raise NoEpisode(
                    f"no episode: reset first (one that is left alone for {self.idle_timeout_s:g} s is ended as soon"
                    " as another client waits for its place)"
                )
            start = self._start
            if self._over and self._last is not None:
                ended = dataclasses.replace(self._last, reward=0.0, error=EPISODE_OVER)
                return await self._describe(start, ended.observation, ended)
            self._last_action = action_text
            with contextlib.suppress(ActionError):  # the environment tells of it
                action = read_answer(action_text, start.config.dialect)
                self._last_action = f"{action.canonical} # {action.note}" if action.note else action.canonical
            result: StepResult = await self._env.step(action_text)
            self._over, self._last = result.done or result.agent_done, result
            self.state.step_count += 1
            self.state.cum_reward += result.reward
            self.state.current_url = result.observation.url
            return await self._describe(start, result.observation, result)

    async def check_place(self) -> None:
        """Before its first episode: take a place if one can be had at once. Raises AtCapacity."""
        if self._start is None:
            await self._hub.admit(self, 1.0)

    async def close(self) -> None:
        """End the session; a page that is left in mid-episode, which would go on running, is closed."""
        self.forget()
        if self._parking is not None:
            await asyncio.gather(self._parking, return_exceptions=True)
        await self._leave()

    def forget(self) -> None:
        """Drop a session that has neither place nor client."""
        if self._timer is not None:
            self._timer.cancel()

    def park(self) -> asyncio.Task[None]:
        """Give page and place to others; the next reset takes a place again."""
        self.idle_since = None
        self._parking = asyncio.create_task(self._leave())
        return self._parking

    @contextlib.asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """While a request is served the session is not idle."""
        self.idle_since = None
        if self._timer is not None:
            self._timer.cancel()
        if self._parking is not None:
            await asyncio.gather(self._parking, return_exceptions=True)
        try:
            yield
        finally:
            self._rest()

    def _rest(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.idle_timeout_s, self._become_idle)

    def _become_idle(self) -> None:
        self.idle_since = asyncio.get_running_loop().time()
        self._hub.wake()

    async def _borrow(self) -> None:
        """An environment for the next episode; not the last one's, whose worker may be due for replacement."""
        await self._give_back()
        try:
            async with asyncio.timeout(BORROW_TIMEOUT_S):
                self._env = await self._lent.enter_async_context(self._hub.pool.env())
        except TimeoutError:
            raise BrowserError(f"all {self._hub.pool.size} environments are in use") from None

    async def _leave(self) -> None:
        """Give environment and place back."""
        try:
            await self._give_back(for_good=not self._over)
        finally:
            self._hub.release(self)

    async def _give_back(self, *, for_good: bool = False) -> None:
        """Let another session have the environment; a MiniWoB page is kept, and reset when it is next lent."""
        lent, self._lent = self._lent, contextlib.AsyncExitStack()
        env, self._env, self._over = self._env, None, True
        try:
            if env is not None and (for_good or not (self._start and self._start.stays_open)):
                await env.close()
        finally:
            await lent.aclose()

    async def _describe(self, start: Start, page: Observation, result: StepResult | None) -> BrowserGymObservation:
        fields: dict[str, Any] = {
            "text": page.text,
            "url": page.url,
            "screenshot": await encode(page.screenshot, start.screenshots),
            "goal": page.goal,
            "error": result.error if result else "",
            "last_action_error": bool(result and result.error),
            "reward": result.reward if result else 0.0,
            "done": bool(result and (result.done or result.agent_done)),
        }
        if not start.details:
            form = start.config.observation
            return BrowserGymObservation(**fields, **_copies(page, form), metadata=self._metadata(page, result))
        if result is None:
            return DetailedObservation(**fields)
        return DetailedObservation(
            **fields,
            action=result.action,
            page_done=result.done,
            agent_done=result.agent_done,
            message=result.message,
            blocked=result.blocked,
        )

    def _metadata(self, page: Observation, result: StepResult | None) -> dict[str, Any]:
        """What OpenEnv's own server has there: BrowserGym's observation without its large parts.

        `bbox` holds four numbers as text, because that is how OpenEnv's example reads it.
        """
        elements = page.details.elements if page.details else {}
        shown = {bid: fields | {"bbox": _as_text(fields["bbox"])} for bid, fields in elements.items()}
        observed = {
            "goal": page.goal,
            "url": page.url,
            "last_action": self._last_action,
            "last_action_error": result.error if result else "",
            "extra_element_properties": shown,
        }
        return {"browsergym_obs": observed, "browsergym_info": {}}


def first_state(hub: Hub) -> BrowserGymState:
    """Before the first reset: the task of one that names none."""
    suite, _, name = hub.options.default_site.partition(".")
    return BrowserGymState(episode_id=None, benchmark=suite, task_name=name)


def _as_text(box: list[float] | None) -> list[str] | None:
    return None if box is None else [f"{number:g}" for number in box]


def _copies(page: Observation, form: str) -> dict[str, str]:
    """The fields of the BrowserGym observation that carry the page a second time, for the clients that read them."""
    if form == "html":
        return {"pruned_html": page.text}
    return {"axtree_txt": page.text, "pruned_html": page.details.html if page.details else ""}
