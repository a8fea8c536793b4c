"""Token ids for steps that our policy did not sample: demonstrations, imported traces, scripted experts."""

from __future__ import annotations

from typing import Any

from webrl.config import ModelsConfig
from webrl.llm.prompts import Dialect, build_policy_prompt
from webrl.llm.tokens import encode_plain
from webrl.replay.records import EncodedStep, StepEncoder
from webrl.types import Trajectory


def step_encoder(tokenizer: Any, models: ModelsConfig, dialect: Dialect = "browsergym") -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    Prompt and response are tokenised apart, as they are when the policy acts. The end token is that of the
    prompt format: `<|eot_id|>` for `webrl`, the tokenizer's own for `chat`.
    """
    end = action_end_id(tokenizer, models)

    def encode(trajectory: Trajectory, index: int) -> EncodedStep:
        step = trajectory.steps[index]
        prompt = build_policy_prompt(
            tokenizer,
            trajectory.instruction,
            trajectory.steps[:index],
            step.observation,
            max_tokens=models.max_prompt_tokens,
            prompt_format=models.prompt_format,
            dialect=dialect,
        )
        return EncodedStep(prompt.ids, (*encode_plain(tokenizer, step.response), *end))

    return encode


def action_end_id(tokenizer: Any, models: ModelsConfig) -> tuple[int, ...]:
    """The token that ends an action, as a tuple; empty for a tokenizer without one."""
    if models.prompt_format == "webrl":
        added = {token.content: index for index, token in tokenizer.added_tokens_decoder.items()}
        if "<|eot_id|>" in added:
            return (added["<|eot_id|>"],)
    return () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
