"""Checks that sampler and trainer have the same weights, by the log-probs of the same token ids."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from webrl.errors import ModelError
from webrl.llm.interface import LanguageModel, Sampling
from webrl.llm.pictures import Example
from webrl.llm.tokens import encode_plain

logger = logging.getLogger(__name__)

_PROMPTS = ("RootWebArea 'Shop', focused\n[12] button 'Add to cart'", "Goal: Click on the link.", "1 2 3 4 5 6 7 8 9")


async def verify_logprobs(
    model: LanguageModel,
    reference_logprobs: Callable[[Sequence[Example]], Sequence[Sequence[float]]],
    tolerance: float,
    *,
    prompt_tokens: int = 0,
    asleep: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
) -> list[float]:
    """Sample a few answers and have the trainer score the same ids; run it after every change of weights.

    A server may keep part of the old weights after a reload (vLLM keeps a prepacked copy of a tied head).

    Args:
        model: the engine that samples.
        reference_logprobs: the trainer's log-probabilities of the action ids, with the weights that the engine should
            have; one list a sample.
        tolerance: largest accepted mean absolute difference of a token's log-prob; the rollout stage takes 1e-3
            for float32 and 0.1 for bfloat16 (rounding alone stays below 0.05).
        prompt_tokens: length of one further prompt, as long as the run's own: what differs only beyond a window, or
            past a rotary table's switch, does not show after a few words.
        asleep: entered while the trainer scores, e.g. to free the engine's GPU for it.

    Returns:
        The absolute difference of each token.

    Raises:
        ModelError: the mean difference is larger, so the engine does not have these weights.
    """
    text = " ".join(_PROMPTS)
    long = " ".join([text] * (prompt_tokens // len(text.split()) + 1))
    prompts = [encode_plain(model.tokenizer, short) for short in _PROMPTS] * 2
    if prompt_tokens:
        prompts.append(encode_plain(model.tokenizer, long)[:prompt_tokens])
    answers = await asyncio.gather(
        *(model.generate(prompt, Sampling(max_new_tokens=16, seed=n)) for n, prompt in enumerate(prompts))
    )
    samples = [Example(answer.prompt_ids, answer.ids) for answer in answers]
    async with asleep():
        references = await asyncio.to_thread(reference_logprobs, samples)
    differences = [
        abs(a - b)
        for answer, reference in zip(answers, references, strict=True)
        for a, b in zip(answer.logprobs, reference, strict=True)
    ]
    mean, largest = sum(differences) / len(differences), max(differences)
    if not mean <= tolerance:  # also catches NaN
        raise ModelError(
            f"the engine's log-probs differ from the trainer's by {mean:.4g} on average (largest {largest:.4g}, "
            f"{len(differences)} tokens, tolerance {tolerance:g}): {model.name!r} does not answer with these weights; "
            "use engine.weight_update=restart"
        )
    logger.info("log-probs match: mean difference %.2g over %d tokens", mean, len(differences))
    return differences
