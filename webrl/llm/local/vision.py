"""A vision-language model in this process: prompts with an image each, in batches of transformers' `generate`.

`generate` knows each family's positions, masks and caches; what it draws is ours (`draw_tokens`), so that
answers are reproducible by `Sampling.seed` and their log-probabilities follow the convention of
`webrl/llm/interface.py`. Nothing of the model's own generation_config (penalties, top-k, …) takes part.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import load_seeing_lm, model_fingerprint, pick_device, pick_dtype
from webrl.llm.local.runner import draw_tokens
from webrl.llm.tokens import completion_of
from webrl.llm.turns import end_token_ids
from webrl.runs.clock import spent_on

Q = TypeVar("Q")
A = TypeVar("A")


class Together(Generic[Q, A]):
    """Collects questions while a batch is being answered.

    Args:
        name: of who answers, for errors.
        answer: answers a batch: one answer a question, or the error that its asker gets.
        max_batch: questions a batch; 0: all.
    """

    def __init__(self, name: str, answer: Callable[[list[Q]], Sequence[A | PolicyError]], max_batch: int = 0) -> None:
        self._name = name
        self._answer = answer
        self._max_batch = max_batch
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._draining: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        """Wait for the answer.

        Raises:
            PolicyError: whatever `answer` has raised or given.
        """
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._draining is None or self._draining.done():
            self._draining = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        """Answer all who wait, and those who have come meanwhile."""
        while self._waiting:
            await asyncio.sleep(0)  # let others ask who are about to
            size = self._max_batch or len(self._waiting)
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            taken: Sequence[A | PolicyError]
            try:
                taken = await asyncio.to_thread(self._answer, [question for question, _ in batch])
                if len(taken) != len(batch):
                    raise PolicyError(f"{self._name} gave {len(taken)} answers to {len(batch)} prompts")
            except Exception as error:  # boundary: whatever the engine raised becomes the requests' error
                problem = error if isinstance(error, PolicyError) else PolicyError(f"{self._name} failed: {error}")
                taken = [problem] * len(batch)
            for (_, future), answer in zip(batch, taken, strict=True):
                if future.done():
                    continue
                if isinstance(answer, PolicyError):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    async def close(self) -> None:
        """Let what is being answered end."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)


_Drawn = tuple[list[int], list[float]]
"""Ids and log-probs of an answer."""


@dataclass(frozen=True)
class _Question:
    ids: tuple[int, ...]
    png: bytes
    sampling: Sampling


class VisionModel:
    """`LanguageModel` whose prompts have an image each.

    Args:
        module: the model itself; it answers with the weights that it has then.
        max_batch: prompts that are answered at once.

    Raises:
        ModelError: a model without end token.
    """

    def __init__(self, eyes: Eyes, module: Any, *, max_batch: int, fingerprint: str = "") -> None:
        self.name = eyes.name
        self.eyes = eyes
        self.tokenizer: Any = eyes.tokenizer
        self.fingerprint = fingerprint or eyes.name
        self._module = module
        self._end_ids = end_token_ids(eyes.name, eyes.tokenizer)
        if not self._end_ids:
            raise ModelError(f"model {eyes.name!r} names no end token (eos_token_id): answers would never stop")
        self._together: Together[_Question, _Drawn] = Together(f"model {eyes.name!r}", self._answer, max_batch)

    @classmethod
    def load(cls, name: str, engine: EngineConfig, models: ModelsConfig) -> VisionModel:
        """Load processor and weights.

        Raises:
            ModelError: a model that cannot see, or an unusable folder.
        """
        eyes, device = Eyes(name), pick_device(models.device)
        module = load_seeing_lm(name, dtype=pick_dtype(models.dtype, device), device=device)
        return cls(eyes, module, max_batch=engine.max_batch, fingerprint=model_fingerprint(name, module))

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue a prompt (`Eyes.encode`) with its image.

        An answer also ends with a token that stands for an image (`Eyes.picture_ids`): there is none to be seen.

        Raises:
            PolicyError: no answer, or more tokens than the model has positions for.
            ModelError: there is no image.
        """
        png = self.eyes.check_prompt(len(prompt_ids), sampling.max_new_tokens, image)
        with spent_on("sampling"):
            ids, logprobs = await self._together.ask(_Question(tuple(prompt_ids), png, sampling))
        return completion_of(self.tokenizer, prompt_ids, ids, logprobs, self._end_ids)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:  # noqa: ARG002
        """Raise ModelError: a chat has no image (`generate`)."""
        return await self.generate((), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:  # noqa: ARG002
        """Raise ModelError: such a prompt has no image."""
        await self.generate(prompt_ids, Sampling())
        return []

    async def close(self) -> None:
        """Let what is being answered end; the module is its owner's."""
        await self._together.close()

    @torch.no_grad()
    def _answer(self, questions: list[_Question]) -> list[_Drawn | PolicyError]:
        draw = _Draw([q.sampling for q in questions])
        ends = {*self._end_ids, *self.eyes.picture_ids}
        pad_id = int(self._end_ids[0] if self.tokenizer.pad_token_id is None else self.tokenizer.pad_token_id)
        config = GenerationConfig(
            max_new_tokens=max(q.sampling.max_new_tokens for q in questions),
            eos_token_id=sorted(ends),
            pad_token_id=pad_id,
            do_sample=False,
        )
        ids, mask = pad_left([q.ids for q in questions], pad_id, self._module.device)
        own = self._module.generation_config
        # `generate` would take from the model's own whatever the given one leaves open.
        self._module.generation_config = GenerationConfig()
        try:
            self._module.generate(
                input_ids=ids,
                attention_mask=mask,
                **self.eyes.inputs(ids, [q.png for q in questions]),
                generation_config=config,
                logits_processor=LogitsProcessorList([draw]),
            )
        finally:
            self._module.generation_config = own
        answers: list[_Drawn | PolicyError] = []
        for row, question in enumerate(questions):
            # what the row has drawn up to its end token, and at most as much as was asked for
            steps = draw.steps[: question.sampling.max_new_tokens]
            ids_drawn = [tokens[row] for tokens, _ in steps]
            length = next((i + 1 for i, token in enumerate(ids_drawn) if token in ends), len(ids_drawn))
            drawn = ids_drawn[:length], [logprobs[row] for _, logprobs in steps[:length]]
            if any(math.isnan(logprob) for logprob in drawn[1]):
                problem = "the folder is damaged, or its training diverged (lower lr)"
                answers.append(PolicyError(f"the log-probabilities of model {self.name!r} are nan: {problem}"))
            else:
                answers.append(drawn)
        return answers


class _Draw(LogitsProcessor):
    """Draws each row's next token from its raw logits, and leaves `generate` no other choice."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self._samplings = list(samplings)
        self._generators = [random.Random(s.seed) for s in samplings]
        self.steps: list[tuple[list[int], list[float]]] = []
        """Tokens and log-probabilities of all rows, one pair a step."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - transformers' signature
        tokens, logprobs = draw_tokens(scores, self._samplings, self._generators)
        self.steps.append((tokens, logprobs))
        chosen = torch.full_like(scores, -torch.inf)
        chosen[range(len(tokens)), tokens] = 0.0
        return chosen


def pad_left(rows: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """[B, T] ids padded on the left, and the mask of tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask
