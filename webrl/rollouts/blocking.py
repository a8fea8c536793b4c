"""Environments for programs without asyncio: one event loop in its own thread, one Chromium for all of them.

Any number of environments may be open, in any threads; Chromium ends with the last one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, Self, TypeVar

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.types import Task

T = TypeVar("T")


class _Process:
    """What belongs to one process: a fork has neither the thread nor the pipes of its parent."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.changing = asyncio.Lock()
        """Held while environments and browsers are opened and closed."""
        self.users: Counter[Browser] = Counter()
        """Environments of each browser."""
        # A daemon: what a program leaves open at its end goes with the pipes of Chromium's driver.
        self.thread = threading.Thread(target=self.loop.run_forever, name="webrl", daemon=True)
        self.thread.start()


_lock = threading.Lock()
_process = cache(lambda _pid: _Process())


def _this_process() -> _Process:
    with _lock:
        return _process(os.getpid())


def call(work: Coroutine[Any, Any, T]) -> T:
    """Result of a coroutine on the loop of this process's environments; ended if the caller is interrupted. Raises
    BrowserError on that loop itself, which it would wait for.
    """
    process = _this_process()
    if process.thread is threading.current_thread():
        work.close()
        raise BrowserError("this would block the event loop that it runs on; await the asynchronous methods here")
    future = asyncio.run_coroutine_threadsafe(work, process.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class BlockingEnv:
    """An environment whose methods return when they are done; a context manager. Raises what `BrowserEnv` raises, from
    the first reset BrowserMissing and BrowserError too, where Chromium does not start.
    """

    def __init__(self, make: Callable[[Task, Browser, RolloutConfig], BrowserEnv], config: RolloutConfig) -> None:
        """Set up; nothing starts before the first reset, which has `make` return an environment for its task."""
        self._make = make
        self._config = config
        self._pid = os.getpid()
        self._browser: Browser | None = None
        self._env: BrowserEnv | None = None

    def reset(self, task: Task) -> Observation:
        """Start an episode."""
        return self._call(self._call(self.ready(task)).reset(task))

    def step(self, action_text: str) -> StepResult:
        """Carry out one action and look at the page."""
        return self._call(self._opened().step(action_text))

    def finish(self) -> Score:
        """Return the episode's score so far, if a suite has one."""
        return self._call(self._opened().finish())

    def close(self) -> None:
        """Close the pages, and Chromium if nothing else uses it."""

        async def work() -> None:
            async with _this_process().changing:
                await self._release()

        if self._browser is not None and self._pid == os.getpid():
            call(work())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _opened(self) -> BrowserEnv:
        if self._env is None:
            raise BrowserError("no episode: call reset() first")
        return self._env

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._pid != os.getpid():
            work.close()
            raise BrowserError("this environment belongs to the process that created it; create one in each process")
        return call(work)

    async def ready(self, task: Task) -> BrowserEnv:
        """The environment itself, to be used on the loop of `call`; made for `task` if there is none yet."""
        process, limit = _this_process(), self._config.max_page_mb
        async with process.changing:
            if self._browser is not None and not self._browser.alive:
                await self._release()
            if self._browser is None:
                shared = next((b for b in process.users if b.alive and b.max_page_mb == limit), None)
                self._browser = shared or await Browser(max_page_mb=limit).start()
                process.users[self._browser] += 1
            if self._env is None:
                self._env = self._make(task, self._browser, self._config)
            return self._env

    async def _release(self) -> None:
        users, env, browser = _this_process().users, self._env, self._browser
        self._env = self._browser = None
        if browser is None:
            return
        try:
            if env is not None:
                await env.close()
        finally:
            users[browser] -= 1
            if not users[browser]:
                del users[browser]
                await browser.close()
