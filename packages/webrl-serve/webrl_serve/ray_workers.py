"""Browser workers on a Ray cluster (`rollout.backend=ray`)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

from webrl.config import RolloutConfig
from webrl.config.extras import require
from webrl.config.redaction import guard_output, revealed
from webrl.errors import BrowserError, UsageError
from webrl.rollouts.browser import first_line
from webrl.rollouts.pool import CLOSE_TIMEOUT_S, WorkerHandle
from webrl.rollouts.worker import Worker

logger = logging.getLogger(__name__)


class RayWorker(WorkerHandle):
    """A worker in a Ray actor, on any host of the cluster with room; each needs webrl, webrl-serve and a Chromium."""

    async def start(self) -> None:
        """Ask Ray for the actor; requests wait until it has been placed."""
        import ray

        placed: Any = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0)(_RayActor)
        self._actor: Any = placed.remote(revealed(self._config))

    async def _ask(self, env_id: int, op: str, arg: Any) -> Any:
        from ray.exceptions import RayError

        try:
            return await self._actor.answer.remote(env_id, op, arg)
        except RayError as error:
            self.failed = True
            return BrowserError(f"the browser worker's Ray actor has ended: {first_line(error)}")

    def kill(self) -> None:
        """End the actor, or give up waiting for it to be placed."""
        import ray

        self.failed = True
        logger.warning("a browser worker on Ray is replaced; does the cluster have a free CPU for each?")
        ray.kill(self._actor)

    async def close(self) -> None:
        """End the browser, then the actor."""
        import ray
        from ray.exceptions import RayError

        alive, self.failed = not self.failed, True
        if alive:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._actor.close.remote(), CLOSE_TIMEOUT_S)
        ray.kill(self._actor)


class _RayActor(Worker):
    """What runs on the cluster."""

    def __init__(self, config: dict[str, Any]) -> None:
        guard_output()
        super().__init__(RolloutConfig.model_validate(config))


@contextlib.contextmanager
def ray_workers() -> Iterator[type[RayWorker]]:
    """Connect to a cluster: the one of this process, that of RAY_ADDRESS, a running local one, or one of our own.
    Yields what makes the workers of an `EnvPool`. Raises UsageError: no Ray, or the cluster cannot be reached.
    """
    require("ray", "rollout.backend=ray")
    import ray

    if ray.is_initialized():
        yield RayWorker
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(logging_level=logging.WARNING, configure_logging=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        address = os.environ.get("RAY_ADDRESS", "")
        raise UsageError(f"no Ray cluster (RAY_ADDRESS={address!r}): {first_line(error)}") from None
    logger.info("Ray: %g CPUs", ray.cluster_resources().get("CPU", 0))
    try:
        yield RayWorker
    finally:
        ray.shutdown()
