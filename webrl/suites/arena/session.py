"""What a stage needs of the arena around its episodes: that it is up.

API: `async with open_sites(config, tasks):` around a rollout or an evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from webrl.arena.client import Arena, ArenaError
from webrl.config import RunConfig
from webrl.errors import UsageError


@contextlib.asynccontextmanager
async def open_sites(config: RunConfig) -> AsyncIterator[None]:
    """Raises UsageError where no arena runs: no episode is worth starting then."""
    try:
        Arena.running(config.rollout.arena.folder)
    except ArenaError as error:
        raise UsageError(f"tasks.suite=arena: {error}") from None
    yield
