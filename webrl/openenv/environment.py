"""One OpenEnv session: an environment of the server's pool, borrowed anew for each episode.

API: `Hub(pool, config, default_site)` is what all sessions of a server share; `WebEnvironment(hub)` is one session,
made by openenv-core for each connection. What a reset may say stands at `WebEnvironment.reset_async`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import EnvironmentMetadata
from pydantic import ValidationError

import webrl
from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError, UsageError
from webrl.openenv.models import BrowserGymAction, BrowserGymObservation, BrowserGymState, DetailedObservation
from webrl.rollouts.browser import NavigationGuard
from webrl.rollouts.collect import Pool
from webrl.rollouts.env import Observation, StepResult
from webrl.rollouts.sites import open_site
from webrl.types import Task

logger = logging.getLogger(__name__)

BORROW_TIMEOUT_S = 30.0
"""Longest wait for an environment: there is one for each session, so only requests outside of sessions wait."""
_MAX_SEED = 2**31


@dataclass
class Hub:
    """What the sessions of one server share; lives in the server's event loop."""

    pool: Pool
    """Where environments come from."""
    config: RolloutConfig
    """The server's settings; what a reset does not say."""
    default_site: str = "miniwob.click-test"
    """Task of a reset that names none."""
    seeds: random.Random = field(default_factory=random.Random)
    """Seeds of the resets that name none."""
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    """The loop that the pool belongs to."""
    closing: set[asyncio.Task[None]] = field(default_factory=set)
    """Sessions that are giving their environment back."""


class WebEnvironment(Environment[BrowserGymAction, BrowserGymObservation, BrowserGymState]):
    """A session; openenv-core calls `reset_async` and `step_async` in the server's loop, `close` from any thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._lent = contextlib.AsyncExitStack()
        self._env: Any = None
        self._config = hub.config
        self._closed = False
        self._details = False
        self._over = True
        self._state = BrowserGymState(episode_id=None)

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        task_name: str | None = None,
        benchmark: str = "miniwob",
        instruction: str | None = None,
        start_url: str | None = None,
        allowed_hosts: Sequence[str] = (),
        screenshots: bool = False,
        observation: Literal["axtree", "dom", "html"] | None = None,
        dialect: Literal["browsergym", "webrl"] | None = None,
        settle_cap_s: float | None = None,
        step_timeout_s: float | None = None,
        details: bool = False,
    ) -> BrowserGymObservation:
        """Start an episode.

        Args:
            seed: of the page's initial state; None draws one.
            task_name: task within `benchmark` (`click-test`), or with it (`miniwob.click-test`).
            instruction: replaces the page's own.
            start_url: first page of a task that is no MiniWoB page; its host must be one the server allows.
            allowed_hosts: further hosts the pages may reach, from among those the server allows.
            screenshots: send a PNG with every observation.
            observation, dialect, settle_cap_s: as in the rollout settings; None: the server's.
            step_timeout_s: deadline of a step, at most the server's.
            details: answer with DetailedObservation.

        Raises:
            DataError: no such task, a host that is not allowed, or a setting out of range.
            BrowserError: page or browser failed, or the session was closed.
        """
        self._require_open()
        site = _site(task_name, benchmark) if task_name or start_url else self._hub.default_site
        if seed is None:
            seed = self._hub.seeds.randrange(_MAX_SEED)
        task = _task(site, seed, instruction, start_url, allowed_hosts, self._hub.config)
        settings: dict[str, Any] = {"screenshots": screenshots, "allowed_hosts": tuple(allowed_hosts)}
        asked = {"observation": observation, "dialect": dialect, "settle_cap_s": settle_cap_s}
        if step_timeout_s is not None:
            asked["step_timeout_s"] = min(step_timeout_s, self._hub.config.step_timeout_s)
        settings |= {name: value for name, value in asked.items() if value is not None}
        self._config = _configure(self._hub.config, settings)
        self._details = details
        suite, _, name = site.partition(".")
        self._state = BrowserGymState(episode_id=episode_id or uuid.uuid4().hex, benchmark=suite, task_name=name)
        await self._borrow()
        first: Observation = await self._env.reset(task, settings)
        self._require_open()
        self._over = False
        self._state.goal, self._state.current_url = first.goal, first.url
        return self._describe(first, None)

    async def step_async(
        self,
        action: BrowserGymAction,
        timeout_s: float | None = None,  # noqa: ARG002 - the deadline is set at reset
    ) -> BrowserGymObservation:
        """Act once. Raises BrowserError."""
        self._require_open()
        if self._env is None:
            raise BrowserError("step before reset; an episode lives in one WebSocket session (/ws)")
        result: StepResult = await self._env.step(action.action_str)
        self._require_open()
        self._over = result.done or result.agent_done
        self._state.step_count += 1
        self._state.cum_reward += result.reward
        self._state.current_url = result.observation.url
        return self._describe(result.observation, result)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> BrowserGymObservation:
        """`reset_async` for callers in other threads than the server's loop."""
        return asyncio.run_coroutine_threadsafe(self.reset_async(seed, episode_id, **options), self._hub.loop).result()

    def step(self, action: BrowserGymAction, timeout_s: float | None = None) -> BrowserGymObservation:
        """`step_async` for callers in other threads than the server's loop."""
        return asyncio.run_coroutine_threadsafe(self.step_async(action, timeout_s), self._hub.loop).result()

    @property
    def state(self) -> BrowserGymState:
        """Where the episode stands."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """What the server says about itself."""
        return EnvironmentMetadata(
            name="browsergym_env",
            description="MiniWoB++ and other web pages in Chromium, as BrowserGym shows and rewards them",
            version=webrl.__version__,
        )

    def close(self) -> None:
        """End the session: the client has gone or was silent too long. Any thread; does not wait."""
        self._closed = True
        with contextlib.suppress(RuntimeError):  # the server's loop has ended, and the pool with it
            self._hub.loop.call_soon_threadsafe(self._start_closing)

    def _start_closing(self) -> None:
        task = asyncio.create_task(self._leave())
        self._hub.closing.add(task)
        task.add_done_callback(self._hub.closing.discard)

    async def _borrow(self) -> None:
        """An environment for the next episode; not the last one's, whose worker may be due for replacement."""
        await self._give_back()
        try:
            async with asyncio.timeout(BORROW_TIMEOUT_S):
                self._env = await self._lent.enter_async_context(self._hub.pool.env())
        except TimeoutError:
            raise BrowserError(f"all {self._hub.pool.size} environments are in use") from None
        if self._closed:
            await self._give_back()
            self._require_open()

    async def _leave(self) -> None:
        """Close a page that is left in mid-episode, which would go on running, then give the environment back."""
        if self._env is not None and not self._over:
            await self._env.close()
        await self._give_back()

    async def _give_back(self) -> None:
        """Let another session have the environment; its page is kept, and reset when it is next lent."""
        lent, self._lent = self._lent, contextlib.AsyncExitStack()
        self._env, self._over = None, True
        await lent.aclose()

    def _require_open(self) -> None:
        if self._closed:
            raise BrowserError("the session was closed after it had been idle for too long; connect again")

    def _describe(self, page: Observation, result: StepResult | None) -> BrowserGymObservation:
        fields: dict[str, Any] = {
            "text": page.text,
            "url": page.url,
            "screenshot": base64.b64encode(page.screenshot).decode() if page.screenshot is not None else None,
            "goal": page.goal,
            "error": result.error if result else "",
            "last_action_error": bool(result and result.error),
            "reward": result.reward if result else 0.0,
            "done": bool(result and (result.done or result.agent_done)),
        }
        if not self._details:
            return BrowserGymObservation(**fields, **_copies(page.text, self._config.observation))
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


def _copies(text: str, form: str) -> dict[str, str]:
    """The field of the BrowserGym observation that carries the text a second time, for the clients that read it."""
    return {"pruned_html" if form == "html" else "axtree_txt": text}


def _site(task_name: str | None, benchmark: str) -> str:
    """Our name of a task, from a BrowserGym id with or without its `browsergym/` and suite."""
    name = (task_name or "").removeprefix("browsergym/").removeprefix(f"{benchmark}.")
    return f"{benchmark}.{name}" if name else benchmark


def _task(
    site: str,
    seed: int,
    instruction: str | None,
    start_url: str | None,
    allowed_hosts: Sequence[str],
    config: RolloutConfig,
) -> Task:
    """The task that a reset asks for. Raises DataError if there is none, or the server does not allow it."""
    if site.startswith(("webarena", "visualwebarena")):
        raise DataError(f"task {site!r}: WebArena tasks are not served over OpenEnv; use rollout.env=browser")
    if start_url is not None:
        url = urlsplit(start_url)
        if url.scheme not in ("http", "https") or not NavigationGuard(config.allowed_hosts).allows(start_url):
            raise DataError(f"start_url {start_url!r}: not among the server's rollout.allowed_hosts")
    refused = sorted(set(allowed_hosts) - set(config.allowed_hosts))
    if refused and "*" not in config.allowed_hosts:
        raise DataError(f"allowed_hosts {refused[0]!r}: not among the server's rollout.allowed_hosts")
    task = Task(task_id=f"{site}.{seed}", site=site, seed=seed, instruction=instruction, start_url=start_url)
    open_site(task)
    return task


def _configure(config: RolloutConfig, settings: dict[str, Any]) -> RolloutConfig:
    try:
        return RolloutConfig.model_validate(config.model_dump() | settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"reset: {'.'.join(map(str, first['loc']))} = {first['input']!r}: {first['msg']}") from None


def check_default(hub: Hub) -> None:
    """Raises UsageError if the server's own default task does not exist."""
    try:
        open_site(Task(task_id="default", site=hub.default_site))
    except DataError as error:
        raise UsageError(str(error)) from None
