"""Asks TRL's vLLM engine, which the trainer owns, as the model that plays episodes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.tokens import completion_of, encode_chat, refuse_image

Generate = Callable[[list[list[int]]], tuple[Any, ...]]
"""Prompts -> (prompt ids, answers' ids, log-probs [A][1], …): `VLLMGeneration.generate`."""


class TrlVllmModel:
    """TRL's vLLM engine: answers waiting prompts in batches, with the trainer's sampling settings and weights."""

    def __init__(self, name: str, tokenizer: Any, end_ids: Sequence[int], generate: Generate, fingerprint: str) -> None:
        self.name, self.eyes = name, None
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._end_ids = tuple(end_ids)
        self._generate = generate
        self._waiting: list[tuple[list[int], asyncio.Future[tuple[list[int], list[float]]]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,  # noqa: ARG002 - the trainer's
        image: bytes | None = None,
    ) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        refuse_image(self.name, image)
        future: asyncio.Future[tuple[list[int], list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(prompt_ids), future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        ids, logprobs = await future
        return completion_of(self.tokenizer, prompt_ids, ids, logprobs, self._end_ids)

    async def _drain(self) -> None:
        """Answer all prompts that wait, and those that have come meanwhile."""
        while self._waiting:
            await asyncio.sleep(0)  # let others ask who are about to
            batch, self._waiting = self._waiting, []
            answers: Sequence[tuple[list[int], list[float]] | PolicyError]
            try:
                answers = await asyncio.to_thread(self._answer, [prompt for prompt, _ in batch])
                if len(answers) != len(batch):
                    raise PolicyError(f"vLLM gave {len(answers)} answers to {len(batch)} prompts")
            except Exception as error:  # boundary: any exception of the engine becomes the requests' error
                problem = error if isinstance(error, PolicyError) else PolicyError(f"vLLM failed: {error}")
                answers = [problem] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if future.done():
                    continue
                if isinstance(answer, PolicyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]] | PolicyError]:
        """Return ids and the sampled tokens' log-probs of each answer; a missing one is NaN."""
        _, answers, logprobs, *_ = self._generate(prompts)
        return [
            (list(ids), [math.nan if row[0] is None else float(row[0]) for row in rows])
            if ids
            else PolicyError("vLLM gave an empty answer")
            for ids, rows in zip(answers, logprobs, strict=True)
        ]

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Raises ModelError: the trainer's engine samples only."""
        raise ModelError("TRL's vLLM engine scores no choices")

    async def close(self) -> None:
        """Let what is being answered end; the engine is the trainer's."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)
