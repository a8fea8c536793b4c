"""Workers as Ray actors (`rollout.backend: ray`): the same worker, on whichever host of the cluster has room.

API: `with ray_cluster(): EnvPool(config, RayWorker)`. Ray places, starts and buries the actors; which of them are
used, retried or replaced is decided by the pool, as for local processes. Every host needs webrl and a Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import orjson

from webrl.config import RolloutConfig
from webrl.config.extras import require
from webrl.config.redaction import guard_output, revealed
from webrl.errors import BrowserError, UsageError
from webrl.rollouts.browser import first_line
from webrl.rollouts.pool import WorkerHandle, error_of
from webrl.rollouts.worker import Worker
from webrl.runs.text import dump_json

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


class RayWorker(WorkerHandle):
    """A worker in a Ray actor; needs `ray_cluster`."""

    def __init__(self, config: RolloutConfig) -> None:
        super().__init__(config)
        self._actor: Any = None

    async def start(self) -> None:
        """Ask Ray for the actor; requests wait until it has been placed."""
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_restarts": 0}
        self._actor = _actor_class().options(**options).remote(revealed(self._config))

    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        from ray.exceptions import RayError

        try:
            reply = orjson.loads(await self._actor.answer.remote(env_id, op, arg))
        except RayError as error:
            self.failed = True
            raise BrowserError(f"the browser worker's Ray actor has ended: {first_line(error)}") from None
        if "error" in reply:
            raise error_of(reply)
        return reply["result"]

    def kill(self) -> None:
        """End the actor, or give up waiting for it to be placed."""
        import ray

        self.failed = True
        if self._actor is not None:
            logger.warning("a browser worker on Ray is replaced; has the cluster a free CPU for each?")
            ray.kill(self._actor)

    async def close(self) -> None:
        """End the browser, then the actor."""
        import ray
        from ray.exceptions import RayError

        actor, self._actor = self._actor, None
        alive, self.failed = not self.failed, True
        if actor is None:
            return
        if alive:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(actor.close.remote(), _CLOSE_TIMEOUT_S)
        ray.kill(actor)


@contextlib.contextmanager
def ray_cluster() -> Iterator[None]:
    """The cluster this process is connected to; else that of RAY_ADDRESS, a running local one, or one of our own.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be reached.
    """
    require("ray", "rollout.backend=ray")
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(logging_level=logging.WARNING, configure_logging=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS", "")
        raise UsageError(f"no Ray cluster (RAY_ADDRESS={address!r}): {first_line(error)}") from None
    logger.info("Ray: %s", ", ".join(f"{n:g} {kind}" for kind, n in ray.cluster_resources().items() if kind == "CPU"))
    try:
        yield
    finally:
        ray.shutdown()


class _Actor:
    """What runs on the cluster; answers as JSON bytes, like a worker process."""

    def __init__(self, config: dict[str, Any]) -> None:
        guard_output()
        self._worker = Worker(RolloutConfig.model_validate(config))

    async def answer(self, env_id: int, op: str, arg: Any) -> bytes:
        try:
            return dump_json(await self._worker.answer(env_id, op, arg))
        except asyncio.CancelledError:
            return dump_json({"error": f"{op!r} was given up", "kind": "BrowserError"})

    async def close(self) -> None:
        await self._worker.close()


@cache
def _actor_class() -> Any:
    import ray

    return ray.remote(_Actor)
