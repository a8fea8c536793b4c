"""Keeps vLLM's servers for a run, whose stages borrow them; otherwise they end with the model opened on them.

Within `keep_servers`, closing a model puts its servers to sleep, and opening the next one of the same shape and
settings wakes them: the actor of the next phase, a generator or a judge with the same base model.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.runs.memory import free_gpu_cache

if TYPE_CHECKING:
    from webrl.llm.servers.vllm_command import Weights
    from webrl.llm.servers.vllm_fleet import Fleet

logger = logging.getLogger(__name__)

_idle: ContextVar[list[Fleet] | None] = ContextVar("idle_servers", default=None)
"""Servers that are not in use; None outside `keep_servers`."""


@contextlib.contextmanager
def keep_servers() -> Iterator[None]:
    """Servers that are started within the block live until its end (`engine.keep_running`); nests."""
    if _idle.get() is not None:
        yield
        return
    idle: list[Fleet] = []
    token = _idle.set(idle)
    try:
        yield
    finally:
        _idle.reset(token)
        if idle:
            logger.info("stopping vLLM")

            async def stop() -> None:
                await asyncio.gather(*[fleet.stop() for fleet in idle])

            asyncio.run(stop())


async def borrow(name: str, engine: EngineConfig, models: ModelsConfig) -> Fleet:
    """Servers that answer with a model's weights: kept ones where there are some of its shape, else new ones.

    Raises:
        ModelError: no vLLM, unusable folder, too few GPUs or too little memory, or a server that does not start.
    """
    from webrl.llm.servers.vllm_command import Weights
    from webrl.llm.servers.vllm_fleet import Fleet

    weights = Weights.of(name)
    fleet = _take(weights, engine, models) or Fleet(name, engine, models)
    free_gpu_cache()
    try:
        await fleet.serve(weights)
    except BaseException:
        await fleet.stop()
        raise
    return fleet


async def give_back(fleet: Fleet) -> None:
    """Put the servers to sleep for the next borrower; stop them where none can come."""
    idle = _idle.get()
    if idle is not None and fleet.engine.keep_running and fleet.alive:
        await fleet.sleep()
        idle.append(fleet)
    else:
        await fleet.stop()


def _take(weights: Weights, engine: EngineConfig, models: ModelsConfig) -> Fleet | None:
    """Return idle servers of this shape and these settings, preferably with these weights already loaded."""
    idle = _idle.get() or []
    fitting = [
        fleet
        for fleet in idle
        if fleet.weights.shape == weights.shape and _settings(fleet.engine, fleet.models) == _settings(engine, models)
    ]
    fleet = next((fleet for fleet in fitting if fleet.weights.answers_as(weights)), next(iter(fitting), None))
    if fleet is not None:
        idle.remove(fleet)
        fleet.engine = engine
    return fleet


def _settings(engine: EngineConfig, models: ModelsConfig) -> tuple[Any, ...]:
    """Return what a server is started with, apart from its weights."""
    return (
        engine.vllm_python,
        engine.gpu_memory_utilization,
        engine.tensor_parallel,
        engine.extra_args,
        engine.keep_running,
        models.dtype,
        models.max_prompt_tokens,
    )
