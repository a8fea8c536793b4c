"""Plays the episodes of OpenEnv clients, each in an environment borrowed from the server's pool.

API: `Hub(pool, config, size)` is what the sessions of a server share, `Session(hub)` one client's: `await
session.reset(options)`, `await session.step(action_text)`, `session.state`, `await session.park()`. The options of a
reset are `ResetOptions`.

A place is room for one page. A session that has been silent for `idle_timeout_s` keeps its place until another one
waits for it: a training step may take any time on a server that has room.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from anyio import CapacityLimiter, WouldBlock
from pydantic import ValidationError

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import BrowserError, DataError, problem_text
from webrl.rollouts.actions import ActionError, read_answer
from webrl.rollouts.interface import Observation, Pool, StepResult
from webrl.rollouts.sites import site_name
from webrl.rollouts.suite import PAGES, find_suite, seed_tasks, suite_at
from webrl.types import Task
from webrl_serve.openenv.messages import (
    AtCapacity,
    BrowserGymObservation,
    BrowserGymState,
    DetailedObservation,
    NoEpisode,
    ResetOptions,
    Screenshots,
    encode,
)

BORROW_TIMEOUT_S = 30.0
"""Longest wait for an environment: there is one for every place."""
EPISODE_OVER = "the episode is over: nothing was done and no reward given; reset to begin another"
"""`error` of a step after the last one."""
PATIENCE_S = 45.0
"""Longest wait for a place: OpenEnv's clients give up after 60 s, the reset itself included."""
_LOOK_EVERY_S = 0.5
_MAX_SEED = 2**31
SPLITS = ("train", "test")


@dataclass(frozen=True)
class ServerOptions:
    """Options of `webrl serve-env` that are not in the config."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port; 0 takes a free one."""
    idle_timeout_s: float = 1800.0
    """A session that is silent for longer loses its place to one that waits; its next reset takes another."""
    default_site: str = "miniwob.click-test"
    """Task of a reset that names none."""
    token: str | None = None
    """Token that clients must send; None admits everybody, which is possible on loopback only."""
    num_sessions: int | None = None
    """Episodes at once; None: `num_workers * envs_per_worker`."""
    screenshots: Screenshots = "list"
    """Form of the screenshots for clients that do not choose one."""
    viewport: tuple[int, int] | None = None
    """Size of the page for clients that do not choose one; None: the task's own."""


@dataclass
class Hub:
    """What the sessions of one server share: the pool, its places, and the queue for them."""

    pool: Pool
    """Environments, at least as many as there are places."""
    config: RolloutConfig
    """The server's settings: defaults of a reset."""
    size: int
    """Number of places."""
    options: ServerOptions = ServerOptions()
    """Options of the command line."""
    seeds: random.Random = field(default_factory=random.Random)
    """Draws the seeds of resets that name none."""
    run: RunConfig = field(default_factory=RunConfig)
    """Whose tasks the splits list, and whose suite a reset can name next to MiniWoB++."""

    def __post_init__(self) -> None:
        self._places = CapacityLimiter(self.size)
        self._splits: dict[str, list[Task]] = {}

    def tasks(self, split: str) -> list[Task]:
        """Return the tasks of a split: those that a run with the server's config trains on, or is evaluated on.

        Raises:
            DataError: no such split.
            UsageError: the suite cannot make its tasks with these settings.
        """
        if split not in SPLITS:
            raise DataError(f"split {split!r:.100}: expected one of {', '.join(SPLITS)}")
        if split not in self._splits:
            suite = find_suite(self.run.tasks.suite)
            self._splits[split] = seed_tasks(self.run) if split == "train" else suite.eval_tasks(self.run)
        return self._splits[split]

    def task_at(self, split: str, index: int) -> Task:
        """Return one task of a split. Raises as `tasks`; DataError also where the split has no such index."""
        tasks = self.tasks(split)
        if not 0 <= index < len(tasks):
            raise DataError(f"index {index}: the split {split} has {len(tasks)} tasks, from 0")
        return tasks[index]

    @property
    def active(self) -> tuple[Session, ...]:
        """Sessions that have a place."""
        return cast("tuple[Session, ...]", self._places.statistics().borrowers)

    async def admit(self, session: Session, patience_s: float) -> None:
        """Take a place if the session has none; waits in turn. Raises AtCapacity after `patience_s`."""
        self.enter(session)
        if session in self.active:
            return
        parting = asyncio.create_task(self._part_with_silent())
        try:
            async with asyncio.timeout(patience_s):
                await self._places.acquire_on_behalf_of(session)
        except TimeoutError:
            raise AtCapacity(self._places.borrowed_tokens, self.size) from None
        finally:
            parting.cancel()

    def enter(self, session: Session) -> None:
        """Take a place if one is free and no one is waiting for it."""
        with contextlib.suppress(WouldBlock):
            if session not in self.active:
                self._places.acquire_on_behalf_of_nowait(session)

    def release(self, session: Session) -> None:
        """Return a place, if the session has one."""
        if session in self.active:
            self._places.release_on_behalf_of(session)

    async def _part_with_silent(self) -> None:
        """While a session waits, have the one that has been silent for longest return its place, if there is one."""
        while True:
            longest = max(self.active, key=lambda session: session.silent_s)
            if longest.silent_s > 0:
                await asyncio.shield(asyncio.gather(longest.park(), return_exceptions=True))
            await asyncio.sleep(_LOOK_EVERY_S)


@dataclass(frozen=True)
class Start:
    """A reset's options, as a task and settings of an environment."""

    task: Task
    """The task to play."""
    settings: dict[str, Any]
    """Settings of the episode that differ from the server's."""
    config: RolloutConfig
    """All settings of the episode."""
    screenshots: Screenshots
    """Form of the screenshots."""
    details: bool
    """Whether the client is our own."""


def read_options(data: dict[str, Any], hub: Hub) -> Start:
    """Read the options of a reset.

    Raises:
        ValidationError: options that are not those of ResetOptions.
        DataError: no such task, a host that the server does not allow, or a setting out of range.
    """
    options, config = ResetOptions.model_validate(data), hub.config
    if listed := options.model_dump(include={"split", "index"}, exclude_none=True):
        named = {"seed", "task_name", "benchmark", "instruction", "start_url"}
        rest = options.model_dump(include=named, exclude_none=True)
        if len(listed) < 2 or rest:
            wrong = f"leave out {', '.join(rest)}" if rest else f"{next(iter(listed))} alone names none"
            raise DataError(f"reset: split and index name a task and its seed; {wrong}")
        task = hub.task_at(**listed)
    else:
        own = hub.options.default_site.partition(".")[0]
        benchmark = options.benchmark or ("web" if options.start_url and not options.task_name else own)
        site = benchmark if options.start_url else hub.options.default_site
        if options.task_name:
            site = site_name(options.task_name, benchmark)
        elif not options.start_url and benchmark != own:
            raise DataError(f"reset: benchmark {benchmark!r} without task_name; name one of its tasks")
        seed = hub.seeds.randrange(_MAX_SEED) if options.seed is None else options.seed
        task = task_of(site, seed, options, hub)

    if isinstance(options.screenshots, bool):
        screenshots: Screenshots = "png" if options.screenshots else "none"
    else:
        screenshots = options.screenshots or hub.options.screenshots
    # Hosts: those that the server names, and those that its `*` covers.
    allowed = {host.lower() for host in config.allowed_hosts} - {"*"}
    covered = "*" in (*config.allowed_hosts, *config.public_hosts)
    settings: dict[str, Any] = {
        "page_details": not options.details,
        "viewport": options.viewport or (None if options.details else hub.options.viewport),
        "allowed_hosts": [],
        "public_hosts": [],
        "screenshots": screenshots != "none",
    }
    wanted = [("allowed_hosts", host, host.lower()) for host in options.allowed_hosts]
    if options.start_url is not None:
        url = urlsplit(options.start_url)
        wanted.append(("start_url", options.start_url, url.netloc.lower() if url.scheme in ("http", "https") else ""))
    for field_name, text, host in wanted:
        if host in allowed or (host and re.sub(r":[0-9]*$", "", host) in allowed):
            settings["allowed_hosts"].append(host)
        elif host and covered:
            settings["public_hosts"].append(host)
        else:
            raise DataError(f"{field_name} {text!r}: not among the server's rollout.allowed_hosts")
    names = {"observation", "every_element", "dialect", "settle_cap_s", "step_timeout_s"}
    given = options.model_dump(include=names, exclude_none=True)
    deadline_s = min(given.get("step_timeout_s", config.step_timeout_s), config.step_timeout_s)
    cap_s = given.get("settle_cap_s", config.settle_cap_s)
    given |= {"step_timeout_s": deadline_s, "settle_cap_s": cap_s if cap_s < deadline_s else deadline_s / 2}
    settings |= given
    try:
        episode_config = RolloutConfig.model_validate(config.model_dump() | settings)
    except ValidationError as error:
        raise DataError(f"reset: {problem_text(error.errors()[0])}") from None
    return Start(task, settings, episode_config, screenshots, options.details)


def task_of(site: str, seed: int, options: ResetOptions, hub: Hub) -> Task:
    """Return the task that a reset names. Raises DataError if there is none, or it is not served."""
    instruction, start_url = options.instruction, options.start_url
    task = Task(task_id=f"{site}.{seed}", site=site, seed=seed, instruction=instruction, start_url=start_url)
    suite = suite_at(site)
    if suite is PAGES or suite.is_stateless:
        suite.open_site(task)
    elif suite.not_served:
        raise DataError(f"task {site!r}: {suite.not_served}")
    elif suite.name not in ("miniwob", hub.run.tasks.suite):
        raise DataError(f"task {site!r} is not served here: start the server with tasks.suite={suite.name}")
    elif instruction or start_url:
        raise DataError(f"task {site!r} has an instruction and a start page of its own; leave them out of the reset")
    return task


def first_state(hub: Hub) -> BrowserGymState:
    """Return the state before the first reset, which names the server's default task."""
    suite, _, name = hub.options.default_site.partition(".")
    return BrowserGymState(episode_id=None, benchmark=suite, task_name=name)


class Session:
    """The episodes of one client; lives in the server's event loop."""

    def __init__(self, hub: Hub, idle_timeout_s: float | None = None) -> None:
        """A session without a place: its first reset waits for one."""
        self._hub = hub
        self.idle_timeout_s = hub.options.idle_timeout_s if idle_timeout_s is None else idle_timeout_s
        self._lent = contextlib.AsyncExitStack()
        self._env: Any = None
        self._start: Start | None = None
        self._last: StepResult | None = None
        """Result of the episode's last step, or its first page; None while there is none."""
        self._last_action = ""
        self.lock = asyncio.Lock()
        """Held while a request is served; the next one waits."""
        self._served = time.monotonic()
        self.state = first_state(hub)
        """State of the episode."""

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
            await self._give_back()  # the last episode's environment, whose worker may be due for replacement
            try:
                async with asyncio.timeout(BORROW_TIMEOUT_S):
                    self._env = await self._lent.enter_async_context(self._hub.pool.env())
            except TimeoutError:
                raise BrowserError(f"all {self._hub.pool.size} environments are in use") from None
            self._start, self._last, self._last_action = start, None, ""
            first: Observation = await self._env.reset(start.task, start.settings)
            self.state.goal, self.state.current_url = first.goal, first.url
            self._last = StepResult(first, action="", error="", done=False, reward=0.0, agent_done=False)
            return await self._describe(start, self._last)

    async def step(self, action_text: str) -> BrowserGymObservation:
        """Act once; after the end of the episode nothing is done, and the result is its last page with reward 0.

        (OpenEnv's own server passes the action on to BrowserGym, which repeats the episode's reward.)

        Raises:
            NoEpisode: there is none.
            BrowserError: the step failed.
        """
        async with self._busy():
            start, last = self._start, self._last
            if self._env is None or start is None:
                raise NoEpisode(
                    f"no episode: reset first (one idle for {self.idle_timeout_s:g} s ends as soon as another client "
                    "waits for its place)"
                )
            if last is not None and (last.done or last.agent_done):
                return await self._describe(start, dataclasses.replace(last, reward=0.0, error=EPISODE_OVER))
            self._last_action = action_text
            with contextlib.suppress(ActionError):  # the environment reports it
                action = read_answer(action_text, start.config.dialect)
                self._last_action = f"{action.canonical} # {action.note}" if action.note else action.canonical
            result: StepResult = await self._env.step(action_text)
            self._last = result
            self.state.step_count += 1
            self.state.cum_reward += result.reward
            self.state.current_url = result.observation.url
            return await self._describe(start, result)

    async def check_place(self) -> None:
        """Before its first episode: take a place if one can be had at once. Raises AtCapacity."""
        if self._start is None:
            await self._hub.admit(self, 1.0)

    async def park(self) -> None:
        """Return page and place; the next reset takes a place again.

        A page that is left in mid-episode is closed, since it would keep running.
        """
        async with self.lock:
            try:
                # A client that leaves during a reset leaves a page behind as well.
                last = self._last
                await self._give_back(for_good=last is None or not (last.done or last.agent_done))
            finally:
                self._hub.release(self)

    @property
    def silent_s(self) -> float:
        """Seconds since which it has been silent for too long; below 0 while it is not."""
        return -1.0 if self.lock.locked() else time.monotonic() - self._served - self.idle_timeout_s

    @contextlib.asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        """Serve one request at a time, and keep the session from becoming idle meanwhile."""
        async with self.lock:
            try:
                yield
            finally:
                self._served = time.monotonic()

    async def _give_back(self, *, for_good: bool = False) -> None:
        """Return the environment to the pool; a MiniWoB page stays open, and is reset when it is next lent."""
        lent, self._lent = self._lent, contextlib.AsyncExitStack()
        env, self._env = self._env, None
        stays_open = self._start is not None and suite_at(self._start.task.site).is_stateless
        try:
            if env is not None and (for_good or not stays_open):
                await env.close()
        finally:
            await lent.aclose()

    async def _describe(self, start: Start, result: StepResult) -> BrowserGymObservation:
        page = result.observation
        fields: dict[str, Any] = {
            "text": page.text,
            "url": page.url,
            "screenshot": await encode(page.screenshot, start.screenshots),
            "goal": page.goal,
            "error": result.error,
            "last_action_error": bool(result.error),
            "reward": result.reward,
            "done": result.done or result.agent_done,
        }
        if start.details:
            own = {name: getattr(result, name) for name in ("action", "agent_done", "message", "blocked")}
            return DetailedObservation(**fields, **own, page_done=result.done)
        # The page a second time, in the fields of BrowserGym's observation, for the clients that read them.
        if start.config.observation == "html":
            fields["pruned_html"] = page.text
        else:
            fields |= {"axtree_txt": page.text, "pruned_html": page.details.html if page.details else ""}
        # As in OpenEnv's own server: BrowserGym's observation without its large parts. `bbox` holds four numbers as
        # text, because that is how OpenEnv's example reads it.
        elements = {}
        for bid, properties in (page.details.elements if page.details else {}).items():
            box = properties["bbox"]
            elements[bid] = properties | {"bbox": None if box is None else [f"{number:g}" for number in box]}
        observed = {
            "goal": page.goal,
            "url": page.url,
            "last_action": self._last_action,
            "last_action_error": fields["error"],
            "extra_element_properties": elements,
        }
        return BrowserGymObservation(**fields, metadata={"browsergym_obs": observed, "browsergym_info": {}})
