"""vLLM servers of our own as a language model: watched, fed new weights, stopped with everything they started."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import load_tokenizer, model_fingerprint
from webrl.llm.servers.openai import OpenAIModel
from webrl.llm.servers.vllm_command import Weights
from webrl.llm.servers.vllm_fleet import Fleet, borrow, give_back
from webrl.runs.machine import free_gpu_cache

logger = logging.getLogger(__name__)
T = TypeVar("T")

_WATCH_S = 1.0


class VllmModel:
    """`LanguageModel` over a `Fleet`. After `load_weights`, check with `verify_logprobs`."""

    def __init__(self, name: str, fleet: Fleet, engine: EngineConfig, models: ModelsConfig) -> None:
        self.name, self.eyes = name, None
        self.fingerprint = model_fingerprint(name)
        self.tokenizer: Any = load_tokenizer(name)
        self.fleet = fleet
        self._engine = engine
        self._models = models
        self._client: OpenAIModel | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._failure: ModelError | PolicyError | None = None

    @classmethod
    async def start(cls, name: str, engine: EngineConfig, models: ModelsConfig) -> VllmModel:
        """Start the servers, or borrow them from `keep_servers`, and wait until all are healthy.

        Raises:
            ModelError: no vLLM, unusable folder, too few GPUs, or a server that does not start (its log is quoted).
        """
        fleet = await borrow(name, engine, models)
        try:
            model = cls(name, fleet, engine, models)
            await model._open()
        except BaseException:
            await fleet.stop()
            raise
        return model

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        return await self.ask(lambda client: client.generate(prompt_ids, sampling, image))

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.ask(lambda client: client.chat(messages, sampling))

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`)."""
        return await self.ask(lambda client: client.choice_logprobs(prompt_ids, token_ids))

    async def load_weights(self, folder: Path) -> None:
        """Answer with other weights from now on; call it when no answer is pending."""
        new, fingerprint = Weights.of(str(folder)), model_fingerprint(str(folder))
        await self._shut(None)
        try:
            await self.fleet.change_weights(new)
            self.name, self.fingerprint = str(folder), fingerprint
            await self._open()
        except ModelError as error:
            self._fail(error)
            raise

    async def close(self) -> None:
        """Stop the servers, or return them to `keep_servers`."""
        await self._shut(PolicyError(f"the model {self.name!r} is closed"))
        await give_back(self.fleet)

    @contextlib.asynccontextmanager
    async def asleep(self) -> AsyncIterator[None]:
        """Free the GPUs for other work within the block; call it when no answer is pending.

        Raises:
            ModelError: the servers do not come back.
        """
        await self._shut(None)
        await self.fleet.sleep()
        try:
            yield
        finally:
            try:
                free_gpu_cache()
                await self.fleet.wake()
                await self._open()
            except ModelError as error:
                self._fail(error)
                raise

    async def _open(self) -> None:
        """Connect to the servers and watch them."""
        engine = self._engine.model_copy(update={"model_name": self.fleet.served_name})
        try:
            client = await OpenAIModel.connect(
                self.name,
                engine,
                urls=self.fleet.urls,
                api_key=self.fleet.api_key,
                thinking=self._models.enable_thinking,
            )
        except ModelError as error:
            dead = [server.log_tail() for server in self.fleet.servers if not server.alive]
            raise ModelError("\n".join([str(error), *dead])) from error
        if client.tokenizer is None:
            await client.close()
            raise ModelError(
                f"the vLLM server of {self.name!r} gives no token ids; its log: {self.fleet.servers[0].log}"
            )
        self._client, self._failure = client, None
        self._ready.set()
        self._watcher = asyncio.create_task(self._watch())

    async def _shut(self, failure: PolicyError | None) -> None:
        """Disconnect; requests fail with `failure`, or wait for the next `_open` if it is None."""
        self._ready.clear()
        if failure is not None:
            self._fail(failure)
        if self._watcher is not None and self._watcher is not asyncio.current_task():
            self._watcher.cancel()
        self._watcher = None
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _fail(self, error: ModelError | PolicyError) -> None:
        self._failure = error
        self._ready.set()

    async def ask(self, call: Callable[[OpenAIModel], Awaitable[T]]) -> T:
        """Send the request; if a server dies before it answers, retry once when the server is back."""
        try:
            return await call(await self._connected())
        except PolicyError as error:
            if self._failure is not None:
                raise self._failure from error
            if self._ready.is_set() and self.fleet.alive:
                raise
            # The watcher sees the death at its next check.
            await asyncio.sleep(2 * _WATCH_S)
            return await call(await self._connected())

    async def _connected(self) -> OpenAIModel:
        await self._ready.wait()
        if self._failure is not None:
            raise self._failure
        assert self._client is not None
        return self._client

    async def _watch(self) -> None:
        """Start a server that died again, once; a second death breaks the model."""
        while self.fleet.alive:  # noqa: ASYNC110 - a process is polled
            await asyncio.sleep(_WATCH_S)
        await self._shut(None)
        try:
            await self.fleet.revive()
            await self._open()
        except ModelError as error:
            logger.error("%s", error)
            self._fail(error)
