"""Token ids for steps that our policy did not sample: demonstrations, imported traces, scripted experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from webrl.config import ModelsConfig, RunConfig
from webrl.llm.prompts import Dialect, build_policy_prompt
from webrl.llm.tokens import encode_plain
from webrl.replay.records import EncodedStep, NextPrompt, StepEncoder
from webrl.types import Trajectory


def step_encoder(tokenizer: Any, models: ModelsConfig, dialect: Dialect = "browsergym") -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    Prompt and response are tokenised apart, as they are when the policy acts. The end token is that of the
    prompt format: `<|eot_id|>` for `webrl`, the tokenizer's own for `chat`.
    """
    end = action_end_id(tokenizer, models)

    def encode(trajectory: Trajectory, index: int) -> EncodedStep:
        step = trajectory.steps[index]
        prompt = _prompt(tokenizer, models, dialect, trajectory, index, step.observation)
        return EncodedStep(prompt, (*encode_plain(tokenizer, step.response), *end))

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
        prompt_format=models.prompt_format,
        dialect=dialect,
    ).ids


def action_end_id(tokenizer: Any, models: ModelsConfig) -> tuple[int, ...]:
    """The token that ends an action, as a tuple; empty for a tokenizer without one."""
    if models.prompt_format == "webrl":
        added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        if "<|eot_id|>" in added:
            return (added["<|eot_id|>"],)
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
