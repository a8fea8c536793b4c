"""vLLM servers of our own as a language model: watched, fed new weights, stopped with everything they started."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import config_of, load_tokenizer, model_fingerprint
from webrl.llm.servers.openai import OpenAIModel, parse_seen, sampling_options
from webrl.llm.servers.vllm_command import VISION_OPTIONS, Weights
from webrl.llm.servers.vllm_fleet import Fleet, borrow, give_back
from webrl.llm.tokens import completion_of
from webrl.llm.turns import end_token_ids
from webrl.runs.clock import spent_on
from webrl.runs.machine import free_gpu_cache

logger = logging.getLogger(__name__)
T = TypeVar("T")

if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes

_WATCH_S = 1.0
PROVEN = frozenset(("idefics3",))
"""Model types whose log-probabilities from vLLM, with images, are the trainer's (docs/eyes.md says how far)."""
_VISION_PATH = "/../inference/v1/generate"
"""Next to `/v1`, not below it."""


class VllmModel:
    """`LanguageModel` over a `Fleet`. After `load_weights`, check with `verify_logprobs`."""

    def __init__(
        self, name: str, fleet: Fleet, engine: EngineConfig, models: ModelsConfig, eyes: Eyes | None = None
    ) -> None:
        self.name, self.eyes = name, eyes
        self.fingerprint = model_fingerprint(name)
        self.tokenizer: Any = eyes.tokenizer if eyes else load_tokenizer(name)
        self.fleet = fleet
        self._engine = engine
        self._models = models
        self._client: OpenAIModel | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._failure: ModelError | PolicyError | None = None

    @classmethod
    async def start(cls, name: str, engine: EngineConfig, models: ModelsConfig, *, sees: bool = False) -> VllmModel:
        """Start the servers, or borrow them from `keep_servers`, and wait until all are healthy.

        Raises:
            ModelError: no vLLM, unusable folder, too few GPUs, a server that does not start (its log is quoted), or a
                vision-language model that cannot see or whose family has not been proven.
        """
        eyes = None
        if sees:
            from webrl.llm.eyes import Eyes

            family = config_of(name).model_type
            if family not in PROVEN:
                raise ModelError(
                    f"model {name!r} is of type {family!r}, whose answers from vLLM to screenshots have not been "
                    f"checked against the trainer; those that have: {', '.join(sorted(PROVEN))}. Set "
                    "rollout.engine.kind=transformers"
                )
            eyes = Eyes(name)
            engine = engine.model_copy(update={"extra_args": (*VISION_OPTIONS, *engine.extra_args)})
        fleet = await borrow(name, engine, models)
        try:
            model = cls(name, fleet, engine, models, eyes)
            await model._open()
        except BaseException:
            await fleet.stop()
            raise
        return model

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids (`LanguageModel.generate`).

        With vision the servers receive the prompt with one placeholder, and the image; they insert the image's tokens
        there with the model's own processor. An answer counts only if the prompt that it continues is, token for
        token, the one that is saved and trained on. What ends an answer is as in `LocalModel`.

        Raises:
            ModelError: an image for a text model or none for one that sees, or servers whose image tokens differ
                from the trainer's processor.
        """
        if self.eyes is None:
            return await self.ask(lambda client: client.generate(prompt_ids, sampling, image))
        png = self.eyes.needed(image)
        prompt, end_ids = list(prompt_ids), end_token_ids(self.name, self.tokenizer)
        body = {
            "token_ids": self.eyes.fold(prompt, self.eyes.look(png)),
            "content_parts": [{"type": "image_url", "url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}],
            "sampling_params": sampling_options(sampling)
            | {"logprobs": 1, "detokenize": False, "stop_token_ids": sorted({*end_ids, *self.eyes.picture_ids})},
            "return_token_ids": True,
        }

        def ask(client: OpenAIModel) -> Any:
            named = body | {"model": client.served_name}
            return client.ask(_VISION_PATH, named, lambda answer: parse_seen(answer, prompt, self.name))

        with spent_on("sampling"):
            ids, logprobs = await self.ask(ask)
        return completion_of(self.tokenizer, prompt, ids, logprobs, end_ids)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        self._refuse_blind()
        return await self.ask(lambda client: client.chat(messages, sampling))

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`)."""
        self._refuse_blind()
        return await self.ask(lambda client: client.choice_logprobs(prompt_ids, token_ids))

    def _refuse_blind(self) -> None:
        if self.eyes:
            self.eyes.needed(None)

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
