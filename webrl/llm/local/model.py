"""A transformers model in this process, batched across everybody who waits for it."""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.loading import load_causal_lm, load_tokenizer, model_fingerprint, pick_device, pick_dtype
from webrl.llm.local.batcher import Answer, Batcher, Request
from webrl.llm.local.llama_cpu import LlamaCpuRunner
from webrl.llm.local.own_cache import OwnCacheRunner, OwnRows
from webrl.llm.local.runner import GenericRunner, Runner, SlotCache
from webrl.llm.tokens import completion_of, encode_chat, refuse_image
from webrl.llm.turns import end_token_ids
from webrl.runs.clock import spent_on

_SMALL_MODEL_PARAMETERS = 50_000_000
"""Below this, each CPU thread runs a batch of its own instead of a share of one matrix product."""
_MAX_SMALL_THREADS = 2
"""Threads of a small model by default: the browsers need the other cores."""


class LocalModel:
    """`LanguageModel` over a causal transformers model.

    Answers are reproducible given `Sampling.seed`, whatever else is in the batch, up to the floating-point noise of
    differently shaped matrix products (about 1e-6 in fp32; it can flip a draw only at a tie of that size).
    """

    def __init__(self, name: str, engine: EngineConfig, models: ModelsConfig, *, module: Any = None) -> None:
        """Load tokenizer and weights.

        Args:
            module: the model itself, where it is loaded already: it answers with the weights that it has then.

        Raises:
            ModelError: the folder is unusable.
        """
        self.name, self.eyes = name, None
        device = pick_device(models.device)
        self._thinking = models.enable_thinking
        self.tokenizer: Any = load_tokenizer(name)
        dtype = pick_dtype(models.dtype, device)
        self._model = load_causal_lm(name, dtype=dtype, device=device) if module is None else module
        self._other_layers = _other_layers(self._model)
        self.fingerprint = model_fingerprint(name, self._model)
        self.end_ids = end_token_ids(name, self.tokenizer)
        if not self.end_ids:
            raise ModelError(f"model {name!r} names no end token (eos_token_id): answers would never stop")
        self._small = self._model.device.type == "cpu" and self._model.num_parameters() < _SMALL_MODEL_PARAMETERS
        # A small model's matrix products are too short to share among threads: each thread has a batch of its own.
        num_batchers = (engine.num_threads or min(_MAX_SMALL_THREADS, os.cpu_count() or 1)) if self._small else 1
        num_threads = 1 if self._small else engine.num_threads
        self._old_num_threads = torch.get_num_threads()
        runner = self._new_runner()
        new_cache: Callable[[], Any] = (
            OwnRows if self._other_layers else partial(_new_cache, self._model, engine.max_batch)
        )
        self._batchers: list[Batcher[Any]] = [  # of the runner's kind of cache, which the model decides
            Batcher(runner, new_cache, self.end_ids, engine.max_batch, num_threads) for _ in range(num_batchers)
        ]

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, image: bytes | None = None) -> Completion:
        """Continue token ids (`LanguageModel.generate`).

        Raises:
            ModelError: its probabilities are not numbers, or an image.
        """
        refuse_image(self.name, image)
        prompt = self._checked(prompt_ids, sampling.max_new_tokens)
        with spent_on("sampling"):
            ids, logprobs = await self._ask(Request(prompt, sampling, generator=_generator(sampling.seed)))
        if any(math.isnan(logprob) for logprob in logprobs):
            raise ModelError(
                f"the log-probabilities of model {self.name!r} are nan: "
                "the folder is damaged, or its training diverged (lower lr)"
            )
        return completion_of(self.tokenizer, prompt, ids, logprobs, self.end_ids)

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages, thinking=self._thinking), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`)."""
        prompt = self._checked(prompt_ids, 1)
        self._checked(token_ids, 0)
        with spent_on("scoring"):
            _, logprobs = await self._ask(Request(prompt, Sampling(), choices=list(token_ids)))
        return logprobs

    async def close(self) -> None:
        """Stop the thread; open requests fail with PolicyError."""
        await asyncio.gather(*[asyncio.to_thread(batcher.close) for batcher in self._batchers])
        torch.set_num_threads(self._old_num_threads)  # training in this process gets its own back

    async def _ask(self, request: Request) -> Answer:
        future = min(self._batchers, key=lambda b: b.num_open).submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            request.abandoned = True
            raise

    def _new_runner(self) -> Runner[Any]:
        if self._other_layers:
            return OwnCacheRunner(self._model, self.name, self._other_layers)
        fast = self._small and LlamaCpuRunner.supports(self._model)
        return LlamaCpuRunner(self._model) if fast else GenericRunner(self._model)

    def _checked(self, prompt_ids: Sequence[int], num_new: int) -> list[int]:
        prompt = list(prompt_ids)
        if not prompt:
            raise PolicyError("empty prompt")
        config = self._model.config.get_text_config()
        size, limit = int(config.vocab_size), int(getattr(config, "max_position_embeddings", 0))
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise PolicyError(f"there is a token id outside the vocabulary of {self.name!r} (0 … {size - 1})")
        if limit and len(prompt) + num_new > limit:
            raise PolicyError(
                f"prompt of {len(prompt)} + {num_new} new tokens exceeds the {limit} positions of {self.name!r}; "
                "lower models.max_prompt_tokens or rollout.max_new_tokens"
            )
        return prompt


def _generator(seed: int | None) -> random.Random:
    return random.Random(seed)


def _new_cache(model: Any, capacity: int) -> SlotCache:
    return SlotCache(model.config.get_text_config().num_hidden_layers, capacity, model.device)


def _other_layers(model: Any) -> str:
    """The kinds of layers that a `SlotCache` does not hold; "" if there are none."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    recurrent = not getattr(config, "num_attention_heads", 0)
    if kinds == {"full_attention"} and not recurrent and not (sliding and not getattr(config, "layer_types", None)):
        return ""
    return ", ".join(sorted(kinds - {"full_attention"})) or ("recurrent" if recurrent else "sliding_attention")
