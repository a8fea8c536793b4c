"""The actor of a run that sees (`rollout.image_size`): the prompts of text models, with the page's screenshot in them.

API: `open_screenshot_policy(name, config, …)` is a `Policy` over a vision-language model, in this process or by vLLM;
`build_screenshot_prompt` is its prompt, which demonstrations are encoded with too; `by_coordinates(messages)` tells a
model that is shown no text how to point.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from webrl.config import RunConfig
from webrl.errors import PolicyError, StageError
from webrl.llm.budget import Prompt, cut_lines, fit_prompt
from webrl.llm.eyes import Eyes
from webrl.llm.interface import Message, PolicyOutput, Turn
from webrl.llm.loading import load_seeing_lm, model_fingerprint, pick_device, pick_dtype
from webrl.llm.prompts import policy_messages
from webrl.llm.sampling import policy_config, policy_sampling
from webrl.llm.seeing import SeeingModel
from webrl.llm.trained_prompt import prompt_of
from webrl.types import Step

if TYPE_CHECKING:
    from webrl.llm.servers.vllm_seeing import SeeingVllm

_COORDINATES = (
    "You are shown a screenshot, and no ids. mouse_click(x, y) clicks a point of it, "
    "mouse_drag_and_drop(from_x, from_y, to_x, to_y) drags: pixels from its left and its top edge. "
    "keyboard_type('text') types, keyboard_press('Enter') presses a key."
)
"""Beside what text models are told, where there is no text."""


def by_coordinates(messages: Sequence[Message]) -> list[Message]:
    """A chat whose system message also says how to act on a screenshot without text."""
    return [Message("system", f"{messages[0].content}\n\n{_COORDINATES}"), *messages[1:]]


def build_screenshot_prompt(
    eyes: Eyes,
    png: bytes,
    instruction: str,
    history: Sequence[Step],
    observation: str,
    config: RunConfig,
) -> Prompt:
    """The policy's prompt with the picture, at most `models.max_prompt_tokens` long; the page's text gives way.

    With `rollout.show_text=false` there is none of it.

    Raises:
        StageError: the picture is larger than `rollout.image_size`, or leaves no room for the rest.
        PolicyError: the instruction alone does not fit.
    """
    models, dialect, image_size = config.models, config.rollout.dialect, config.rollout.image_size or 0
    look = eyes.look(png)
    if 0 < image_size < max(look.size):
        raise StageError(
            f"a screenshot of {look.size[0]}x{look.size[1]} pixels is larger than rollout.image_size={image_size}: "
            "show it, and record demonstrations, in that size"
        )

    name = prompt_of(eyes.tokenizer, models.prompt) if config.rollout.show_text else "brief"

    def encode(start: int, page: str) -> list[int]:
        messages = policy_messages(instruction, history[start:], page, dialect, models.prompt_format, name)
        return eyes.encode(messages if config.rollout.show_text else by_coordinates(messages), look)

    if look.num_tokens >= models.max_prompt_tokens:
        raise StageError(
            f"a screenshot of {look.size[0]}x{look.size[1]} pixels is {look.num_tokens} tokens of model {eyes.name!r}, "
            f"and models.max_prompt_tokens is {models.max_prompt_tokens}: lower rollout.image_size, or raise it"
        )
    shown = observation if config.rollout.show_text else ""
    return fit_prompt(eyes.tokenizer, encode, shown, len(history), models.max_prompt_tokens, cut_lines)


class ScreenshotPolicy:
    """`Policy` over a model that sees."""

    def __init__(self, model: SeeingModel | SeeingVllm, config: RunConfig) -> None:
        self._model, self._config = model, config
        self._seeds = random.Random(config.seed)

    @property
    def fingerprint(self) -> str:
        """The model's."""
        return self._model.fingerprint

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page (`Policy.act`).

        Raises:
            StageError: there is no screenshot of it, or it leaves no room.
        """
        rollout = self._config.rollout
        if turn.screenshot is None:
            raise StageError(f"step {len(turn.history)}: there is no screenshot, which rollout.image_size asks for")
        prompt = build_screenshot_prompt(
            self._model.eyes, turn.screenshot, turn.instruction, turn.history, turn.observation, self._config
        )
        positions = self._model.max_positions
        if 0 < positions < len(prompt.ids) + rollout.max_new_tokens:
            raise PolicyError(
                f"prompt of {len(prompt.ids)} + {rollout.max_new_tokens} new tokens exceeds the {positions} "
                f"positions of {self._model.name!r}; lower models.max_prompt_tokens or rollout.max_new_tokens"
            )
        sampling = policy_sampling(rollout, self._seeds.getrandbits(63) if turn.seed is None else turn.seed)
        answer = await self._model.generate(prompt.ids, turn.screenshot, sampling)
        return PolicyOutput.of(answer, prompt.observation)


@asynccontextmanager
async def open_screenshot_policy(
    name: str, config: RunConfig, *, temperature: float | None = None, training: bool = False
) -> AsyncIterator[ScreenshotPolicy]:
    """Load a vision-language model, free it at the end of the block; arguments as of `ModelPolicy`.

    Raises:
        ModelError: a model that cannot see, or an unusable folder.
    """
    config = policy_config(config, temperature, training)
    async with _open(name, config) as model:
        yield ScreenshotPolicy(model, config)


def _open(name: str, config: RunConfig) -> AbstractAsyncContextManager[SeeingModel | SeeingVllm]:
    if config.rollout.engine.kind == "transformers":
        return open_seeing_model(name, config)
    from webrl.llm.servers.vllm_seeing import open_seeing_server

    return open_seeing_server(name, config.rollout.engine, config.models)


@asynccontextmanager
async def open_seeing_model(name: str, config: RunConfig) -> AsyncIterator[SeeingModel]:
    """Load a vision-language model, free it at the end of the block; errors as of `open_screenshot_policy`."""
    eyes = Eyes(name)
    device = pick_device(config.models.device)
    module = load_seeing_lm(name, dtype=pick_dtype(config.models.dtype, device), device=device)
    fingerprint = model_fingerprint(name, module)
    model = SeeingModel(eyes, module, max_batch=config.rollout.engine.max_batch, fingerprint=fingerprint)
    try:
        yield model
    finally:
        await model.close()
