"""Token ids for steps that our policy did not sample: demonstrations, imported traces, scripted experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webrl.config import ModelsConfig, RunConfig
from webrl.llm.prompts import Dialect, build_policy_prompt
from webrl.llm.thinking import CLOSE, OPEN, split_thinking
from webrl.llm.tokens import encode_plain, encode_text
from webrl.llm.turns import closing_ids
from webrl.replay.records import EncodedStep, NextPrompt, StepEncoder
from webrl.types import Trajectory


def step_encoder(tokenizer: Any, models: ModelsConfig, dialect: Dialect = "browsergym") -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    Prompt and response are tokenised apart, as they are when the policy acts. The end token is that of the
    prompt format (`closing_ids`).
    """
    end = closing_ids(tokenizer, models.prompt_format)

    def encode(trajectory: Trajectory, index: int) -> EncodedStep:
        step = trajectory.steps[index]
        prompt = _prompt(tokenizer, models, dialect, trajectory, index, step.observation)
        return EncodedStep(prompt, (*encode_response(tokenizer, step.response), *end))

    return encode


def released_next_prompt(config: RunConfig, tokenizer: Any) -> NextPrompt | None:
    """The prompt of the round after the last one, with the last page again, where the objective asks for it.

    Only `webrl_released` values that state (THUDM/WebRL); None for the others.
    """
    if config.actor.objective != "webrl_released":
        return None

    def encode(trajectory: Trajectory) -> Sequence[int]:
        page = trajectory.steps[-1].observation
        return _prompt(tokenizer, config.models, config.rollout.dialect, trajectory, len(trajectory.steps), page)

    return encode


def _prompt(
    tokenizer: Any, models: ModelsConfig, dialect: Dialect, trajectory: Trajectory, index: int, page: str
) -> tuple[int, ...]:
    return build_policy_prompt(
        tokenizer,
        trajectory.instruction,
        trajectory.steps[:index],
        page,
        max_tokens=models.max_prompt_tokens,
        max_chars=models.max_prompt_chars,
        prompt_format=models.prompt_format,
        dialect=dialect,
        thinking=models.enable_thinking,
    ).ids


def encode_response(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an answer: the tags of its reasoning as the model writes them, everything else as plain text."""
    thinking, rest = split_thinking(text)
    if not thinking:
        return encode_plain(tokenizer, text)
    inner, close, gap = thinking.removeprefix(OPEN).partition(CLOSE)
    parts = [(OPEN if thinking.startswith(OPEN) else "", True), (inner, False), (close, True), (gap + rest, False)]
    return encode_text(tokenizer, parts, add_prefix=False)
