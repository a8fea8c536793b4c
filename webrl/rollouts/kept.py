"""Reuses browser workers across the stages of a run.

To start a worker, its Chromium and its pages takes five CPU-seconds, and three stages of a phase need them. A pool
belongs to the event loop that it was started on; stages that share one run there, by `run`. A stage that loads a
model first starts them before it, by `start_early`.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from webrl.config import RolloutConfig
from webrl.rollouts.pool import EnvPool

T = TypeVar("T")


class _Kept:
    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.pool: EnvPool | None = None
        self.is_lent = False
        self.is_over = False


_kept: ContextVar[_Kept | None] = ContextVar("kept_browsers", default=None)
"""None outside `keep_browsers`."""


@contextlib.contextmanager
def keep_browsers() -> Iterator[None]:
    """Browsers of this machine that are started within the block live until its end; nests."""
    if _current() is not None:
        yield
        return
    with asyncio.Runner() as runner:
        kept = _Kept(runner)
        token = _kept.set(kept)
        try:
            yield
        finally:
            _kept.reset(token)
            kept.is_over = True
            if kept.pool is not None:
                runner.run(kept.pool.close())


def _current() -> _Kept | None:
    """Return the browsers that this code may use; a context that was copied within a block outlives it."""
    kept = _kept.get()
    return None if kept is None or kept.is_over else kept


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run like `asyncio.run`; within `keep_browsers`, on the loop that its browsers belong to."""
    kept = _current()
    return asyncio.run(work) if kept is None else kept.runner.run(work, context=contextvars.copy_context())


@contextlib.asynccontextmanager
async def borrow(config: RolloutConfig) -> AsyncIterator[EnvPool | None]:
    """Lend the kept environments of these settings, replacing those of others; None if none are kept or free."""
    kept = _current()
    if kept is None or kept.is_lent or asyncio.get_running_loop() is not kept.runner.get_loop():
        yield None
        return
    kept.is_lent = True
    try:
        old = kept.pool
        if old is None or old.config != config:
            kept.pool = EnvPool(config)
            if old is not None:
                await old.close()
        yield kept.pool
    finally:
        kept.is_lent = False


async def start_early(config: RolloutConfig, num_episodes: int) -> None:
    """Launch the browsers that `borrow` would lend for that many episodes, while the caller loads a model."""
    if config.env == "browser" and config.backend != "ray" and num_episodes:
        async with borrow(config) as pool:
            if pool is not None:
                await pool.start(num_episodes)
