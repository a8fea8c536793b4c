"""A vision-language model behind vLLM servers of our own: token ids and a picture in, token ids and log-probs out.

The servers are sent the prompt with one placeholder, and the picture; they write the picture's tokens in its place by
the model's own processor. An answer counts only if the prompt that it continues is, token for token, the one that is
saved and trained on.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from webrl.config import EngineConfig, ModelsConfig
from webrl.errors import ModelError
from webrl.llm.eyes import Eyes, family_of
from webrl.llm.interface import Completion, Sampling
from webrl.llm.servers.openai import OpenAIModel, sampling_options
from webrl.llm.servers.openai_answers import parse_seen
from webrl.llm.servers.vllm import VllmModel
from webrl.llm.servers.vllm_command import SEEING_OPTIONS
from webrl.llm.tokens import completion_of
from webrl.llm.turns import end_token_ids
from webrl.runs.clock import spent_on

PROVEN = frozenset(("idefics3",))
"""Model types whose log-probabilities from vLLM, with pictures, are the trainer's (docs/eyes.md says how far)."""
_PATH = "/../inference/v1/generate"
"""Beside `/v1`, not below it."""


class SeeingVllm:
    """As `SeeingModel`, over a `VllmModel` whose servers were started with `SEEING_OPTIONS`."""

    def __init__(self, eyes: Eyes, model: VllmModel, max_positions: int) -> None:
        self.eyes = eyes
        self.max_positions = max_positions
        self._model = model
        self._end_ids = end_token_ids(model.name, model.tokenizer)

    @property
    def name(self) -> str:
        """Folder or hub name."""
        return self._model.name

    @property
    def fingerprint(self) -> str:
        """Of the weights that answer."""
        return self._model.fingerprint

    async def load_weights(self, folder: Path) -> None:
        """As of `VllmModel`."""
        await self._model.load_weights(folder)

    async def generate(self, prompt_ids: Sequence[int], png: bytes, sampling: Sampling) -> Completion:
        """Continue a prompt (`Eyes.encode`) with its picture; what ends an answer is as in `SeeingModel`.

        Raises:
            PolicyError: no answer.
            ModelError: the servers write the picture's tokens otherwise than the trainer's processor.
        """
        prompt = list(prompt_ids)
        options = sampling_options(sampling) | {
            "logprobs": 1,
            "detokenize": False,
            "stop_token_ids": sorted({*self._end_ids, *self.eyes.picture_ids}),
        }
        body = {
            "token_ids": self.eyes.fold(prompt, self.eyes.look(png)),
            "content_parts": [{"type": "image_url", "url": f"data:image/png;base64,{base64.b64encode(png).decode()}"}],
            "sampling_params": options,
            "return_token_ids": True,
        }

        def ask(client: OpenAIModel) -> Any:
            named = body | {"model": client.served_name}
            return client.ask(_PATH, named, lambda answer: parse_seen(answer, prompt, self.name))

        with spent_on("sampling"):
            ids, logprobs = await self._model.ask(ask)
        return completion_of(self.eyes.tokenizer, prompt, ids, logprobs, self._end_ids)


@asynccontextmanager
async def open_seeing_server(name: str, engine: EngineConfig, models: ModelsConfig) -> AsyncIterator[SeeingVllm]:
    """Start vLLM servers of a vision-language model, or borrow them; stop them or give them back at the end.

    Raises:
        ModelError: a model that cannot see, a family that has not been proven, or whatever `VllmModel.start` raises.
    """
    family = family_of(name)
    if family not in PROVEN:
        raise ModelError(
            f"model {name!r} is of type {family!r}, whose answers from vLLM to screenshots have not been held against "
            f"the trainer; those that have: {', '.join(sorted(PROVEN))}. Set rollout.engine.kind=transformers"
        )
    eyes = Eyes(name)
    seeing = engine.model_copy(update={"extra_args": (*SEEING_OPTIONS, *engine.extra_args)})
    model = await VllmModel.start(name, seeing, models)
    try:
        yield SeeingVllm(eyes, model, eyes.max_positions)
    finally:
        await model.close()
