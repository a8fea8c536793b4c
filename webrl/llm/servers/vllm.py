"""vLLM servers of our own as a language model: started again once, fed new weights, stopped with all they started; and
the check that sampler and trainer have the same weights, by the log-probs of the same token ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.llm.loading import load_tokenizer, model_fingerprint
from webrl.llm.pictures import Example
from webrl.llm.servers.openai import OpenAIModel
from webrl.llm.servers.vllm_fleet import Fleet, Weights, borrow, give_back
from webrl.llm.tokens import encode_plain
from webrl.runs.machine import free_gpu_cache

logger = logging.getLogger(__name__)


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


_PROMPTS = ("RootWebArea 'Shop', focused\n[12] button 'Add to cart'", "Goal: Click on the link.", "1 2 3 4 5 6 7 8 9")


async def verify_logprobs(
    model: LanguageModel,
    reference_logprobs: Callable[[Sequence[Example]], Sequence[Sequence[float]]],
    tolerance: float,
    *,
    prompt_tokens: int = 0,
    asleep: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> list[float]:
    """Sample a few answers and have the trainer score the same ids; run it after every change of weights.

    A server may keep part of the old weights after a reload (vLLM keeps a prepacked copy of a tied head).

    Args:
        model: the engine that samples.
        reference_logprobs: the trainer's log-probabilities of the action ids, with the weights that the engine should
            have; one list a sample.
        tolerance: largest accepted mean absolute difference of a token's log-prob; the rollout stage takes 1e-3
            for float32 and 0.1 for bfloat16 (rounding alone stays below 0.05).
        prompt_tokens: length of one further prompt, as long as the run's own: what differs only beyond a window, or
            past a rotary table's switch, does not show after a few words.
        asleep: entered while the trainer scores, e.g. to free the engine's GPU for it.

    Returns:
        The absolute difference of each token.

    Raises:
        ModelError: the mean difference is larger, so the engine does not have these weights.
    """
    text = " ".join(_PROMPTS)
    long = " ".join([text] * (prompt_tokens // len(text.split()) + 1))
    prompts = [encode_plain(model.tokenizer, short) for short in _PROMPTS] * 2
    if prompt_tokens:
        prompts.append(encode_plain(model.tokenizer, long)[:prompt_tokens])
    answers = await asyncio.gather(
        *(model.generate(prompt, Sampling(max_new_tokens=16, seed=n)) for n, prompt in enumerate(prompts))
    )
    samples = [Example(answer.prompt_ids, answer.ids) for answer in answers]
    async with asleep():
        references = await asyncio.to_thread(reference_logprobs, samples)
    differences = [
        abs(a - b)
        for answer, reference in zip(answers, references, strict=True)
        for a, b in zip(answer.logprobs, reference, strict=True)
    ]
    mean, largest = sum(differences) / len(differences), max(differences)
    if not mean <= tolerance:  # also catches NaN
        raise ModelError(
            f"the engine's log-probs differ from the trainer's by {mean:.4g} on average (largest {largest:.4g}, "
            f"{len(differences)} tokens, tolerance {tolerance:g}): {model.name!r} does not answer with these weights; "
            "use engine.weight_update=restart"
        )
    logger.info("log-probs match: mean difference %.2g over %d tokens", mean, len(differences))
    return differences
