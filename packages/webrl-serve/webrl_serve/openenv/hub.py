"""Holds what the sessions of one server share: the pool, its places, and the queue for them.

API: `Hub(pool, config, size)`; `await hub.admit(session, patience_s)` takes a place, `hub.release(session)` returns it.

A place is room for one page. A session that has been silent for `idle_timeout_s` keeps its place until another one
waits for it: a training step may take any time on a server that has room.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

from anyio import CapacityLimiter, WouldBlock

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, DataError
from webrl.rollouts.interface import Pool

Screenshots = Literal["list", "png", "none"]
"""How screenshots are sent: lists `[height][width][3]` of 0 to 255, base64 PNG, or not at all."""
MIN_SIDE, MAX_SIDE = 16, 4096
"""Pixels of a page's width and height."""
PATIENCE_S = 45.0
"""Longest wait for a place: OpenEnv's clients give up after 60 s, the reset itself included."""


class PlaceHolder(Protocol):
    """A session, as far as its place is concerned."""

    idle_since: float | None
    """Loop time since which it has been silent for too long; None while it is not."""

    def park(self) -> object:
        """Start to return its place."""
        ...


class AtCapacity(BrowserError):
    """Raised when all places are taken."""

    def __init__(self, num_active: int, size: int) -> None:
        self.num_active, self.size = num_active, size
        super().__init__(
            f"Server at capacity: {num_active}/{size} sessions active; close some, or start the server with"
            " --sessions N (a TRL trainer opens per_device_train_batch_size x gradient_accumulation_steps of them)"
        )


class NoEpisode(DataError):
    """Raised for a step before a reset, or after the episode was ended."""


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
    """See the module docstring; lives in the server's event loop."""

    pool: Pool
    """Environments, at least as many as there are places."""
    config: RolloutConfig
    """The server's settings: defaults of a reset."""
    size: int
    """Number of places."""
    options: ServerOptions = ServerOptions()
    """Options of the command line."""
    benchmarks: tuple[str, ...] = ("miniwob",)
    """Suites whose tasks can be named in a reset."""
    seeds: random.Random = field(default_factory=random.Random)
    """Draws the seeds of resets that name none."""

    def __post_init__(self) -> None:
        self._places = CapacityLimiter(self.size)

    @property
    def active(self) -> tuple[PlaceHolder, ...]:
        """Sessions that have a place."""
        return cast("tuple[PlaceHolder, ...]", self._places.statistics().borrowers)

    async def admit(self, session: PlaceHolder, patience_s: float) -> None:
        """Take a place if the session has none; waits in turn. Raises AtCapacity after `patience_s`."""
        if session in self.active:
            return
        try:
            async with asyncio.timeout(patience_s):
                if not self._places.available_tokens:
                    self._part_with_silent()
                await self._places.acquire_on_behalf_of(session)
        except TimeoutError:
            raise AtCapacity(self._places.borrowed_tokens, self.size) from None

    def enter(self, session: PlaceHolder) -> None:
        """Take a place if one is free and no one is waiting for it."""
        with contextlib.suppress(WouldBlock):
            self._places.acquire_on_behalf_of_nowait(session)

    def release(self, session: PlaceHolder) -> None:
        """Return a place, if the session has one."""
        if session in self.active:
            self._places.release_on_behalf_of(session)

    def note_silence(self) -> None:
        """A session has become idle: the first that waits gets its place."""
        if self._places.statistics().tasks_waiting:
            self._part_with_silent()

    def _part_with_silent(self) -> None:
        """Have the session that has been silent for longest return its place, if there is one."""
        idle = {session: session.idle_since for session in self.active if session.idle_since is not None}
        if idle:
            min(idle, key=lambda session: idle[session]).park()
