"""vLLM servers of our own as a language model: started again once, fed new weights, stopped with all they started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import PolicyError
from webrl.llm.loading import load_tokenizer, model_fingerprint
from webrl.llm.servers.openai import OpenAIModel
from webrl.llm.servers.vllm_command import Weights
from webrl.llm.servers.vllm_fleet import Fleet, borrow, give_back
from webrl.runs.machine import free_gpu_cache


class VllmModel(OpenAIModel):
    """`LanguageModel` over a `Fleet`. After `load_weights`, check with `verify_logprobs`.

    Methods raise ModelError if servers do not start, not even again (the log is quoted).
    """

    def __init__(self, name: str, fleet: Fleet, models: ModelsConfig) -> None:
        super().__init__(name, fleet.connect(), fleet.served_name, load_tokenizer(name), models.enable_thinking)
        self.fingerprint = model_fingerprint(name)
        self.fleet = fleet
        self._revival: asyncio.Task[None] | None = None
        self._is_closed = False

    @classmethod
    async def start(cls, name: str, engine: EngineConfig, models: ModelsConfig) -> VllmModel:
        """Start the servers, or borrow them from `keep_servers`, and wait until all are healthy. Raises as `borrow`."""
        fleet = await borrow(name, engine, models)
        try:
            return cls(name, fleet, models)
        except BaseException:
            await fleet.stop()
            raise

    async def ask(self, path: str, body: dict[str, Any], parse: Any) -> Any:
        """Send a request (`OpenAIModel.ask`), once more if a server died before it answered."""
        pool = self._pool
        try:
            if not (self.fleet.alive or self._is_closed):  # of several, the others would answer
                raise PolicyError("a vLLM server died")
            return await super().ask(path, body, parse)
        except PolicyError:
            if self._revival is None and pool is self._pool:
                if self.fleet.alive or self._is_closed:
                    raise
                self._revival = asyncio.create_task(self._connect(self.fleet.revive()))
            if self._revival is not None:
                await asyncio.shield(self._revival)  # where this request is given up, others wait for it
        return await super().ask(path, body | {"model": self.served_name}, parse)

    async def load_weights(self, folder: Path) -> None:
        """Answer with other weights from now on; call it when no answer is pending."""
        new, fingerprint = Weights.of(str(folder)), model_fingerprint(str(folder))
        await self._end_revival()
        await self._connect(self.fleet.change_weights(new))
        self.name, self.fingerprint = str(folder), fingerprint

    async def close(self) -> None:
        """Stop the servers, or return them to `keep_servers`."""
        self._is_closed = True
        await self._end_revival()
        await super().close()
        await give_back(self.fleet)

    @contextlib.asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Free the GPUs for other work within the block; call it when no answer is pending."""
        await self._end_revival()
        await self.fleet.sleep()
        try:
            yield
        finally:
            free_gpu_cache()
            await self._connect(self.fleet.wake())

    async def _connect(self, change: Coroutine[Any, Any, None]) -> None:
        try:
            await change
            await self._pool.close()
            self._pool, self.served_name = self.fleet.connect(), self.fleet.served_name
        finally:
            self._revival = None

    async def _end_revival(self) -> None:
        """Leave none behind of requests that were given up, nor servers that are half-way up."""
        if self._revival is not None:
            self._revival.cancel()
            await asyncio.gather(self._revival, return_exceptions=True)
            await self.fleet.stop()
