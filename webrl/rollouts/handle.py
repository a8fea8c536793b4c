"""The controller's end of a worker, whatever the worker runs in: requests with deadlines, and whether it may be used.

API: `WorkerHandle` (start, request, kill, close); `WorkerProcess` in `pool.py` and `RayWorker` in `ray_workers.py`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from webrl import errors
from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.suite import suite_of
from webrl.runs.clock import spent_on
from webrl.types import Task

GRACE_S = 15.0
"""A worker that has not answered this long after its own deadline is killed."""
START_TIMEOUT_S = 60.0
"""The first reset on a worker also starts Chromium."""
VALIDATION_TIMEOUT_S = 300.0
"""Scoring an episode may ask a language model."""


class WorkerHandle(ABC):
    """One worker; environments are numbered by the pool and made by the worker at their first reset."""

    def __init__(self, config: RolloutConfig) -> None:
        self._config = config
        self._active = 0
        self.idle = asyncio.Event()
        """Set while no environment is in use."""
        self.episodes = 0
        """Episodes started so far."""
        self.failed = False
        """True once it must not be used again."""

    @property
    def pid(self) -> int | None:
        """Process id, if the worker is a process of this machine."""
        return None

    @abstractmethod
    async def start(self) -> None:
        """Launch the worker; Chromium follows, at the first reset at the latest."""

    @abstractmethod
    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        """Send a request and wait for the answer; may wait for ever. Raises what the worker reports."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once; its Chromium ends with it."""

    @abstractmethod
    async def close(self) -> None:
        """Let it end in order, or kill it after a few seconds."""

    def enter(self) -> None:
        """An environment is taken into use."""
        self._active += 1
        self.idle.clear()

    def leave(self) -> None:
        """An environment is given back."""
        self._active -= 1
        if not self._active:
            self.idle.set()

    async def request(self, env_id: int, op: str, arg: Any = None) -> Any:
        """Ask and wait for the answer. Raises the error the worker reports, BrowserError if it is gone or hangs."""
        if self.failed:
            raise BrowserError("the browser worker has ended")
        allowed = self._config.step_timeout_s + GRACE_S + self._extra_time(op, arg)
        try:
            with spent_on("browsers"):
                async with asyncio.timeout(allowed):
                    return await self._ask(env_id, op, arg)
        except TimeoutError:
            self.kill()
            raise BrowserError(f"the browser worker did not answer {op!r} in {allowed:g} s; killed") from None

    def _extra_time(self, op: str, arg: Any) -> float:
        """What a request may take beyond a step's deadline."""
        if op == "finish":
            return VALIDATION_TIMEOUT_S
        if op != "reset":
            return 0.0
        suite = suite_of(Task.from_json(arg["task"]))
        return START_TIMEOUT_S + suite.reset_allowance_s(self._config)


def error_of(reply: dict[str, Any]) -> Exception:
    """The error that a worker's reply reports."""
    kind = getattr(errors, reply["kind"], BrowserError)
    error: Exception = kind(reply["error"])
    return error
