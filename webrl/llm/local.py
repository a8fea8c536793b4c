"""A transformers model in this process, batched across everybody who waits for it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError, PolicyError
from webrl.llm.batcher import Answer, Batcher, Request
from webrl.llm.interface import Completion, Message, Sampling
from webrl.llm.llama_cpu import LlamaCpuRunner
from webrl.llm.loading import load_causal_lm, load_tokenizer, model_fingerprint, pick_device
from webrl.llm.runner import GenericRunner
from webrl.llm.slots import SlotCache
from webrl.llm.tokens import decode_action, encode_chat, end_token_ids

logger = logging.getLogger(__name__)

_SMALL_MODEL_PARAMETERS = 50_000_000
"""Below this a second thread gains less than it takes from the browsers beside it."""


class LocalModel:
    """`LanguageModel` over a causal transformers model.

    Answers are reproducible given `Sampling.seed`, whatever else is in the batch, up to the floating-point noise of
    differently shaped matrix products (about 1e-6 in fp32; it can flip a draw only at a tie of that size).
    """

    def __init__(self, name: str, engine: EngineConfig, models: ModelsConfig) -> None:
        """Load tokenizer and weights.

        Raises:
            ModelError: the folder is unusable, or the architecture needs another engine.
        """
        self.name = name
        self._dtype = models.dtype
        self.tokenizer: Any = load_tokenizer(name)
        self._model = load_causal_lm(name, dtype=models.dtype, device=pick_device(models.device))
        _check_architecture(name, self._model)
        self.fingerprint = model_fingerprint(name, self._model)
        self.end_ids = end_token_ids(self.tokenizer, self._model.generation_config)
        if not self.end_ids:
            raise ModelError(f"model {name!r} names no end token (eos_token_id): answers would never stop")
        small = sum(p.numel() for p in self._model.parameters()) < _SMALL_MODEL_PARAMETERS
        num_threads = engine.num_threads or (1 if small else 0)
        self._fast = LlamaCpuRunner(self._model) if small and LlamaCpuRunner.supports(self._model) else None
        self._batcher = Batcher(
            self._fast or GenericRunner(self._model),
            partial(_new_cache, self._model, engine.max_batch),
            self.end_ids,
            engine.max_batch,
            num_threads,
        )

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """Continue token ids (`LanguageModel.generate`)."""
        prompt = self._checked(prompt_ids, sampling.max_new_tokens)
        ids, logprobs = await self._ask(Request(prompt, sampling, generator=_generator(sampling.seed)))
        return Completion(
            ids=tuple(ids),
            logprobs=tuple(logprobs),
            text=decode_action(self.tokenizer, ids, self.end_ids),
            finish_reason="stop" if ids[-1] in self.end_ids else "length",
            prompt_ids=tuple(prompt),
        )

    async def chat(self, messages: Sequence[Message], sampling: Sampling) -> Completion:
        """Answer chat messages (`LanguageModel.chat`)."""
        return await self.generate(encode_chat(self.tokenizer, messages), sampling)

    async def choice_logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probabilities of some tokens at the first answer position (`LanguageModel.choice_logprobs`)."""
        prompt = self._checked(prompt_ids, 1)
        _, logprobs = await self._ask(Request(prompt, Sampling(), choices=list(token_ids)))
        return logprobs

    async def load_weights(self, folder: Path) -> None:
        """Copy another checkpoint of the same shape (or base + LoRA adapter) into the model, between answers."""
        fingerprint = model_fingerprint(str(folder))

        def swap() -> None:
            source = load_causal_lm(str(folder), dtype=self._dtype)
            try:
                self._model.load_state_dict(source.state_dict())
            except RuntimeError as error:
                raise ModelError(f"{str(folder)!r} does not fit the model {self.name!r}: {error}") from error
            finally:
                if self._fast:
                    self._fast.refresh()

        await asyncio.wrap_future(self._batcher.call(swap))
        self.name, self.fingerprint = str(folder), fingerprint

    async def close(self) -> None:
        """Stop the thread; open requests fail with PolicyError."""
        await asyncio.to_thread(self._batcher.close)

    async def _ask(self, request: Request) -> Answer:
        future = self._batcher.submit(request)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            request.abandoned = True
            raise

    def _checked(self, prompt_ids: Sequence[int], num_new: int) -> list[int]:
        prompt = list(prompt_ids)
        if not prompt:
            raise PolicyError("empty prompt")
        config = self._model.config.get_text_config()
        size, limit = int(config.vocab_size), int(getattr(config, "max_position_embeddings", 0))
        if not 0 <= min(prompt) <= max(prompt) < size:
            raise PolicyError(f"prompt holds a token id outside the vocabulary of {self.name!r} (0 … {size - 1})")
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


def _check_architecture(name: str, model: Any) -> None:
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    sliding = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or (sliding and not getattr(config, "layer_types", None)):
        raise ModelError(
            f"model {name!r} has layers other than full attention ({', '.join(sorted(kinds))}), which the in-process "
            "engine does not cache; use engine.kind=vllm"
        )
