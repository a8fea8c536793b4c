"""Opens a model on the engine that the config names; as a policy it builds the prompt, asks, and returns what was
sampled exactly.
"""

from __future__ import annotations

import asyncio
import copy
import os
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, TypeVar

from webrl.config import EngineConfig, ModelsConfig, RolloutConfig, RunConfig
from webrl.errors import ModelError, PolicyError, StageError, UsageError
from webrl.llm.interface import LanguageModel, Policy, PolicyOutput, Sampling, Turn
from webrl.llm.loading import prompt_of
from webrl.llm.prompts import Prompt, build_policy_prompt, policy_messages


def check_sampling(config: RolloutConfig) -> None:
    """Raise UsageError for training rollouts whose recorded log-probs are not those of the sampled distribution.

    They are the model's own (temperature 1), so any other temperature biases a policy gradient that takes them for the
    behaviour policy's.
    """
    if config.temperature != 1.0:
        raise UsageError(
            f"rollout.temperature={config.temperature:g}: training rollouts need temperature 1, because otherwise the "
            "recorded log-probs are not those of the sampled distribution; leave it out"
        )


class ModelPolicy:
    """`Policy` over a `LanguageModel`.

    Args:
        temperature: replaces `rollout.temperature` (evaluation).
        training: refuse sampling that biases the recorded log-probs; errors as of `check_sampling`.
        sampling: returns how an answer is drawn with a seed; None: as the config says.
    """

    def __init__(
        self,
        model: LanguageModel,
        config: RunConfig,
        *,
        temperature: float | None = None,
        training: bool = False,
        sampling: Callable[[int], Sampling] | None = None,
    ) -> None:
        self._model = model
        rollout = config.rollout
        if temperature is not None:
            rollout = rollout.model_copy(update={"temperature": temperature})
        if training:
            check_sampling(rollout)
        self._config = config.model_copy(update={"rollout": rollout})
        self._sampling = sampling or (
            lambda seed: Sampling(temperature=rollout.temperature, max_new_tokens=rollout.max_new_tokens, seed=seed)
        )
        self._seeds = random.Random(config.seed)
        if training and model.tokenizer is None:
            raise PolicyError(f"{model.name!r} returns no token ids, so its rollouts cannot be trained on")

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.fingerprint

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`).

        Raises:
            StageError: a vision-language model without a screenshot, a text model with one, or a screenshot that
                leaves no room.
        """
        models, rollout, eyes = self._config.models, self._config.rollout, self._model.eyes
        if eyes is None and turn.screenshot is not None:
            raise StageError("rollout.image_size: this policy reads text only; open it with open_policy")
        if eyes is not None and turn.screenshot is None:
            raise StageError(f"step {len(turn.history)}: there is no screenshot, which rollout.image_size asks for")
        goal, past, page = turn.instruction, turn.history, turn.observation
        sampling = self._sampling(self._seeds.getrandbits(63) if turn.seed is None else turn.seed)
        if self._model.tokenizer is None:
            prompt = prompt_of(None, models.prompt)
            messages = policy_messages(goal, past, page, rollout.dialect, models.prompt_format, prompt)
            return PolicyOutput.of(await self._model.chat(messages, sampling), page)

        def build(tokenizer: Any) -> Prompt:
            return build_policy_prompt(tokenizer, goal, past, page, self._config, eyes=eyes, image=turn.screenshot)

        # an image processor has its own tokenizer, which no other thread may use
        built = build(eyes.tokenizer) if eyes else await with_tokenizer(self._model.tokenizer, build)
        return PolicyOutput.of(await self._model.generate(built.ids, sampling, built.image), built.observation)


T = TypeVar("T")

_MAX_THREADS = 2
"""A thread builds hundreds of short prompts a second, and each has a copy of the tokenizer."""
_own = threading.local()
"""`tokenizer`: the thread's copy."""


async def with_tokenizer(tokenizer: Any, work: Callable[[Any], T]) -> T:
    """`work(tokenizer)` in a thread, with the thread's own copy: tokenizers are not safe to share between threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads(tokenizer), lambda: work(_own.tokenizer))


@lru_cache(maxsize=4)
def _threads(tokenizer: Any) -> ThreadPoolExecutor:
    """Kept, because copying a tokenizer of 262,144 tokens takes seconds."""
    size = min(_MAX_THREADS, os.cpu_count() or 1)
    return ThreadPoolExecutor(size, "prompts", lambda: setattr(_own, "tokenizer", copy.deepcopy(tokenizer)))


@asynccontextmanager
async def open_model(
    name: str, engine: EngineConfig, models: ModelsConfig, *, sees: bool = False
) -> AsyncIterator[LanguageModel]:
    """Load or reach a model, close it (threads, memory, server processes) at the end of the block.

    Example: `async with open_model("data/tiny/actor", config.rollout.engine, config.models) as model: …`

    Args:
        sees: open it as a vision-language model, whose prompts have an image each.

    Raises:
        ModelError: unusable folder, architecture or server, or a model that cannot see.
    """
    # Engines are imported here: torch, httpx and process handling are wanted by the one that is used.
    model: LanguageModel
    if engine.kind == "transformers":
        from webrl.llm.eyes import Eyes
        from webrl.llm.local.model import LocalModel

        model = LocalModel(name, engine, models, eyes=Eyes(name) if sees else None)
    elif sees:
        raise ModelError(f"engine.kind={engine.kind}: screenshots are not supported yet; use transformers")
    elif engine.kind == "openai":
        from webrl.llm.servers.openai import OpenAIModel

        model = await OpenAIModel.connect(name, engine, thinking=models.enable_thinking)
    else:
        from webrl.llm.servers.vllm import VllmModel

        model = await VllmModel.start(name, engine, models)
    try:
        yield model
    finally:
        await model.close()


@asynccontextmanager
async def open_policy(
    name: str,
    config: RunConfig,
    *,
    temperature: float | None = None,
    training: bool = False,
    verify: Callable[[LanguageModel], Awaitable[None]] | None = None,
) -> AsyncIterator[Policy]:
    """Open a model on `rollout.engine` as the policy of a run, with vision if `rollout.image_size` is set.

    Args:
        temperature, training: as of `ModelPolicy`.
        verify: called with the model before it is used.

    Raises:
        ModelError: unusable folder, architecture or server, or a model that cannot see.
        UsageError: sampling that a training rollout may not use.
    """
    async with open_model(name, config.rollout.engine, config.models, sees=config.rollout.sees) as model:
        if verify is not None:
            await verify(model)
        yield ModelPolicy(model, config, temperature=temperature, training=training)
