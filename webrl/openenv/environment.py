"""One OpenEnv session: an environment of the server's pool, borrowed anew for each episode.

API: `Hub(pool, config, default_site)` is what all sessions of a server share; `Session(hub)` is one client's:
`await session.reset(options)`, `await session.step(action_text)`, `session.state`, `await session.close()`.
What a reset may say stands in `ResetOptions`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError, UsageError, problem_text
from webrl.openenv.models import BrowserGymObservation, BrowserGymState, DetailedObservation, ResetOptions
from webrl.rollouts.env import Observation, StepResult
from webrl.rollouts.sites import open_site
from webrl.rollouts.suite import Pool
from webrl.types import Task

BORROW_TIMEOUT_S = 30.0
"""Longest wait for an environment; only sessions that come back from idleness ever wait."""
_MAX_SEED = 2**31


@dataclass
class Hub:
    """What the sessions of one server share."""

    pool: Pool
    """Where environments come from."""
    config: RolloutConfig
    """The server's settings; what a reset does not say."""
    default_site: str = "miniwob.click-test"
    """Task of a reset that names none."""
    idle_timeout_s: float = 1800.0
    """A session that is silent for longer gives its environment back."""
    seeds: random.Random = field(default_factory=random.Random)
    """Seeds of the resets that name none."""
    active: set[Session] = field(default_factory=set)
    """Sessions that have not been silent for too long; there are at most as many as environments."""

    @property
    def num_active(self) -> int:
        """How many places of the pool are taken."""
        return len(self.active)


class Session:
    """See the module docstring; lives in the server's event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._lent = contextlib.AsyncExitStack()
        self._env: Any = None
        self._config = hub.config
        self._details = False
        self._over = True
        self._idle: asyncio.TimerHandle | None = None
        self._parking: asyncio.Task[None] | None = None
        self.state = BrowserGymState(episode_id=None)
        """Where the episode stands."""
        self._stay()

    async def reset(self, data: dict[str, Any]) -> BrowserGymObservation:
        """Start an episode.

        Raises:
            ValidationError: options that are not those of ResetOptions.
            DataError: no such task, a host that is not allowed, or a setting out of range.
            BrowserError: page or browser failed, or all environments are in use.
        """
        options = ResetOptions.model_validate(data)
        hub = self._hub
        named = options.task_name or options.start_url
        site = _site(options.task_name, options.benchmark) if named else hub.default_site
        seed = hub.seeds.randrange(_MAX_SEED) if options.seed is None else options.seed
        task = _task(site, seed, options.instruction, options.start_url)
        settings = _settings(options, hub.config)
        async with self._busy():
            self._config = _configure(hub.config, settings)
            self._details = options.details
            suite, _, name = site.partition(".")
            episode = options.episode_id or uuid.uuid4().hex
            self.state = BrowserGymState(episode_id=episode, benchmark=suite, task_name=name)
            await self._borrow()
            self._over = False  # a client that goes meanwhile leaves a page behind as well
            first: Observation = await self._env.reset(task, settings)
            self.state.goal, self.state.current_url = first.goal, first.url
            return self._describe(first, None)

    async def step(self, action_text: str) -> BrowserGymObservation:
        """Act once. Raises BrowserError."""
        async with self._busy():
            if self._env is None:
                raise BrowserError(
                    f"no episode: reset first (one that is left alone for {self._hub.idle_timeout_s:g} s is ended)"
                )
            result: StepResult = await self._env.step(action_text)
            self._over = result.done or result.agent_done
            self.state.step_count += 1
            self.state.cum_reward += result.reward
            self.state.current_url = result.observation.url
            return self._describe(result.observation, result)

    async def close(self) -> None:
        """End the session; a page that is left in mid-episode, which would go on running, is closed."""
        if self._idle is not None:
            self._idle.cancel()
        if self._parking is not None:
            await asyncio.gather(self._parking, return_exceptions=True)
        await self._leave()

    @contextlib.asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """While a request is served the session is not idle."""
        if self._parking is not None:
            await asyncio.gather(self._parking, return_exceptions=True)
        if self._idle is not None:
            self._idle.cancel()
        self._hub.active.add(self)
        try:
            yield
        finally:
            self._stay()

    def _stay(self) -> None:
        """Take a place, and give it up again if nothing is heard for too long."""
        self._hub.active.add(self)
        self._idle = asyncio.get_running_loop().call_later(self._hub.idle_timeout_s, self._park)

    def _park(self) -> None:
        self._parking = asyncio.create_task(self._leave())

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
            if self._env is not None and not self._over:
                await self._env.close()
        finally:
            await self._give_back()
            self._hub.active.discard(self)

    async def _give_back(self) -> None:
        """Let another session have the environment; its page is kept, and reset when it is next lent."""
        lent, self._lent = self._lent, contextlib.AsyncExitStack()
        self._env, self._over = None, True
        await lent.aclose()

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


def _task(site: str, seed: int, instruction: str | None, start_url: str | None) -> Task:
    """The task that a reset asks for. Raises DataError if there is none, or it is not served."""
    if site.startswith(("webarena", "visualwebarena")):
        raise DataError(f"task {site!r}: WebArena tasks are not served over OpenEnv; use rollout.env=browser")
    task = Task(task_id=f"{site}.{seed}", site=site, seed=seed, instruction=instruction, start_url=start_url)
    open_site(task)
    return task


def _hosts(start_url: str | None, asked: Sequence[str], config: RolloutConfig) -> dict[str, list[str]]:
    """The settings that admit the hosts of a reset: those that the server names, and those that its `*` covers.

    Raises:
        DataError: a host that the server does not allow, or no web address.
    """
    named = {host.lower() for host in config.allowed_hosts} - {"*"}
    covered = "*" in (*config.allowed_hosts, *config.public_hosts)
    settings: dict[str, list[str]] = {"allowed_hosts": [], "public_hosts": []}
    wanted = [("allowed_hosts", host, host.lower()) for host in asked]
    if start_url is not None:
        url = urlsplit(start_url)
        wanted.append(("start_url", start_url, url.netloc.lower() if url.scheme in ("http", "https") else ""))
    for field_name, given, host in wanted:
        if host in named or (host and re.sub(r":[0-9]*$", "", host) in named):
            settings["allowed_hosts"].append(host)
        elif host and covered:
            settings["public_hosts"].append(host)
        else:
            raise DataError(f"{field_name} {given!r}: not among the server's rollout.allowed_hosts")
    return settings


def _settings(options: ResetOptions, config: RolloutConfig) -> dict[str, Any]:
    """What this episode's settings differ in from the server's. Raises DataError."""
    settings: dict[str, Any] = {"screenshots": options.screenshots}
    settings |= _hosts(options.start_url, options.allowed_hosts, config)
    asked = options.model_dump(include={"observation", "dialect", "settle_cap_s", "step_timeout_s"})
    settings |= {name: value for name, value in asked.items() if value is not None}
    for name in ("settle_cap_s", "step_timeout_s"):
        if name in settings:
            settings[name] = min(settings[name], config.step_timeout_s)
    return settings


def _configure(config: RolloutConfig, settings: dict[str, Any]) -> RolloutConfig:
    try:
        return RolloutConfig.model_validate(config.model_dump() | settings)
    except ValidationError as error:
        raise DataError(f"reset: {problem_text(error.errors()[0])}") from None


def check_default(hub: Hub) -> None:
    """Raises UsageError if the server's own default task does not exist."""
    try:
        open_site(Task(task_id="default", site=hub.default_site))
    except DataError as error:
        raise UsageError(str(error)) from None
