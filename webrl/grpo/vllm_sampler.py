"""TRL's vLLM engine as a `LanguageModel`: whoever waits for an answer is answered in one batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.tokens import decode_action, encode_chat

Generate = Callable[[list[list[int]]], tuple[Any, ...]]
"""Prompts -> (prompt ids, answers' ids, log-probs [A][1], …), as `VLLMGeneration.generate` gives them."""


class TrlVllmModel:
    """Answers through `generate`, whose sampling settings and weights are the trainer's."""

    def __init__(self, name: str, tokenizer: Any, end_ids: Sequence[int], generate: Generate, fingerprint: str) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._end_ids = tuple(end_ids)
        self._generate = generate
        self._waiting: list[tuple[list[int], asyncio.Future[tuple[list[int], list[float]]]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:  # noqa: ARG002 - trainer's
        """Continue token ids (`LanguageModel.generate`)."""
        future: asyncio.Future[tuple[list[int], list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(prompt_ids), future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        ids, logprobs = await future
        return Completion(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            text=decode_action(self.tokenizer, ids, self._end_ids),
            finish_reason="stop" if ids[-1] in self._end_ids else "length",
            prompt_ids=tuple(prompt_ids),
        )

    async def _drain(self) -> None:
        """Answer all who wait, and those who have come meanwhile."""
        while self._waiting:
            await asyncio.sleep(0)  # whoever is about to ask
            batch, self._waiting = self._waiting, []
            try:
                _, answers, logprobs, *_ = await asyncio.to_thread(self._generate, [prompt for prompt, _ in batch])
                taken = [_first(a, p) for a, p in zip(answers, logprobs, strict=True)]
                if len(taken) != len(batch):
                    raise PolicyError(f"vLLM gave {len(taken)} answers to {len(batch)} prompts")
            except Exception as error:  # boundary: whatever vLLM raised becomes the requests' error
                problem = error if isinstance(error, PolicyError) else PolicyError(f"vLLM failed: {error}")
                taken = [problem] * len(batch)
            for (_, future), answer in zip(batch, taken, strict=True):
                if future.done():
                    continue
                if isinstance(answer, PolicyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Not offered: the trainer's engine samples only."""
        raise ModelError("TRL's vLLM engine scores no choices")

    async def load_weights(self, folder: Path) -> None:  # noqa: ARG002
        """Not offered: the trainer hands its weights over itself."""
        raise ModelError("TRL's vLLM engine takes its weights from the trainer")

    async def close(self) -> None:
        """The engine is the trainer's; only what still waits is given up."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)


def _first(
    ids: Sequence[int], logprobs: Sequence[Sequence[float | None]]
) -> tuple[list[int], list[float]] | PolicyError:
    """Ids and the sampled tokens' log-probs of one answer; a missing one is NaN."""
    if not ids:
        return PolicyError("vLLM gave an empty answer")
    return list(ids), [math.nan if row[0] is None else float(row[0]) for row in logprobs]
