"""TRL's vLLM engine as a `LanguageModel`: whoever waits for an answer is answered in one batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.together import Together
from webrl.llm.tokens import completion_of, encode_chat, refuse_image

Generate = Callable[[list[list[int]]], tuple[Any, ...]]
"""Prompts -> (prompt ids, answers' ids, log-probs [A][1], …), as `VLLMGeneration.generate` gives them."""


class TrlVllmModel:
    """Answers through `generate`, whose sampling settings and weights are the trainer's."""

    def __init__(self, name: str, tokenizer: Any, end_ids: Sequence[int], generate: Generate, fingerprint: str) -> None:
        self.name, self.eyes = name, None
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self._end_ids = tuple(end_ids)
        self._generate = generate
        self._together: Together[list[int], tuple[list[int], list[float]]] = Together("vLLM", self._answer)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,  # noqa: ARG002 - the trainer's
        image: bytes | None = None,
    ) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        refuse_image(self.name, image)
        ids, logprobs = await self._together.ask(list(prompt_ids))
        return completion_of(self.tokenizer, prompt_ids, ids, logprobs, self._end_ids)

    def _answer(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float]] | PolicyError]:
        _, answers, logprobs, *_ = self._generate(prompts)
        return [_first(a, p) for a, p in zip(answers, logprobs, strict=True)]

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Not offered: the trainer's engine samples only."""
        raise ModelError("TRL's vLLM engine scores no choices")

    async def close(self) -> None:
        """The engine is the trainer's; only what still waits is given up."""
        await self._together.close()


def _first(
    ids: Sequence[int], logprobs: Sequence[Sequence[float | None]]
) -> tuple[list[int], list[float]] | PolicyError:
    """Ids and the sampled tokens' log-probs of one answer; a missing one is NaN."""
    if not ids:
        return PolicyError("vLLM gave an empty answer")
    return list(ids), [math.nan if row[0] is None else float(row[0]) for row in logprobs]
