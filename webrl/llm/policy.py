"""The language model as a policy: builds the prompt, asks the model, gives back exactly what was sampled."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from webrl.config import RunConfig
from webrl.errors import PolicyError, StageError
from webrl.llm.budget import Prompt
from webrl.llm.interface import Completion, LanguageModel, PolicyOutput
from webrl.llm.prompts import build_policy_prompt, policy_messages
from webrl.llm.sampling import check_sampling, policy_sampling
from webrl.types import Step

logger = logging.getLogger(__name__)

_MAX_THREADS = 2
"""A thread builds hundreds of short prompts a second, and each has a copy of the tokenizer."""
_own = threading.local()
"""`tokenizer`: the thread's copy."""


@lru_cache(maxsize=4)
def _prompt_threads(tokenizer: Any) -> ThreadPoolExecutor:
    """Threads that build prompts; kept, because copying a tokenizer of 262,144 tokens takes seconds."""

    def take_copy() -> None:
        _own.tokenizer = copy.deepcopy(tokenizer)

    return ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "prompts", take_copy)


class ModelPolicy:
    """`Policy` over a `LanguageModel`.

    Args:
        temperature: replaces `rollout.temperature` (evaluation).
        training: refuse sampling that biases the recorded log-probs (`check_sampling`).
    """

    def __init__(
        self, model: LanguageModel, config: RunConfig, *, temperature: float | None = None, training: bool = False
    ) -> None:
        rollout = config.rollout
        if temperature is not None:
            rollout = rollout.model_copy(update={"temperature": temperature})
        check_sampling(rollout, training)
        self._model = model
        self._config = config.model_copy(update={"rollout": rollout})
        self._training = training
        self._seeds = random.Random(config.seed)
        self._prompts = _PromptThreads(model.tokenizer, config)
        if training and model.tokenizer is None:
            raise PolicyError(f"{model.name!r} gives no token ids, so its rollouts cannot be trained on")

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.fingerprint

    async def act(
        self,
        instruction: str,
        history: Sequence[Step],
        observation: str,
        *,
        seed: int | None = None,
        screenshot: bytes | None = None,
    ) -> PolicyOutput:
        """Answer one page (`Policy.act`).

        Raises:
            StageError: a screenshot, which this model cannot see.
        """
        if screenshot is not None:
            raise StageError("rollout.image_size: this policy reads text alone; open it with open_policy")
        rollout = self._config.rollout
        sampling = policy_sampling(rollout, self._seeds.getrandbits(63) if seed is None else seed)
        if self._model.tokenizer is None:
            prompt_format = self._config.models.prompt_format
            messages = policy_messages(instruction, history, observation, rollout.dialect, prompt_format)
            return _output(await self._model.chat(messages, sampling), observation)
        prompt = await self._prompts.build(instruction, history, observation)
        if prompt.num_page_tokens_cut or prompt.num_history_cut:
            logger.debug("prompt cut: %d page tokens, %d steps", prompt.num_page_tokens_cut, prompt.num_history_cut)
        return _output(await self._model.generate(prompt.ids, sampling), prompt.observation)


def _output(completion: Completion, observation: str) -> PolicyOutput:
    return PolicyOutput(completion.prompt_ids, completion.ids, completion.logprobs, completion.text, observation)


class _PromptThreads:
    """Builds prompts beside the event loop: a long page takes 20 ms and more, in which no answer would be read.

    Tokenizers are not safe to share between threads, so each thread has its own copy.
    """

    def __init__(self, tokenizer: Any, config: RunConfig) -> None:
        self._config = config
        self._threads = _prompt_threads(tokenizer)

    async def build(self, instruction: str, history: Sequence[Step], observation: str) -> Prompt:
        """`build_policy_prompt` with the run's settings."""
        past = tuple(history)  # the episode goes on appending to its own
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._build, instruction, past, observation)

    def _build(self, instruction: str, history: Sequence[Step], observation: str) -> Prompt:
        return build_policy_prompt(
            _own.tokenizer,
            instruction,
            history,
            observation,
            max_tokens=self._config.models.max_prompt_tokens,
            max_chars=self._config.models.max_prompt_chars,
            prompt_format=self._config.models.prompt_format,
            dialect=self._config.rollout.dialect,
            thinking=self._config.models.enable_thinking,
        )
