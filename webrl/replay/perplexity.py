"""Action perplexity and the replay band (paper §3.4); plain arithmetic on stored log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

_EDGE = 1e-9
"""Relative tolerance at the band's edges: exp(-log 0.95) must count as 1/0.95 whatever the last bit says."""


def action_length(action_ids: Sequence[int], end_token_ids: Collection[int]) -> int:
    """Number of action tokens without the end token(s) at the end."""
    length = len(action_ids)
    while length and action_ids[length - 1] in end_token_ids:
        length -= 1
    return length


def action_perplexity(
    logprobs: Sequence[float], action_ids: Sequence[int], end_token_ids: Collection[int]
) -> float | None:
    """exp(-(Σ log p) / n) over the action's tokens, the end token left out (as the released code does).

    Args:
        logprobs: [A] log-probability of each token of `action_ids`.
        action_ids: [A] sampled ids, with or without the end token.

    Returns:
        The perplexity, at least 1; infinity where it does not fit a float; None for an action without tokens.

    Raises:
        ValueError: lengths differ.
    """
    if len(logprobs) != len(action_ids):
        raise ValueError(f"{len(logprobs)} log-probs for {len(action_ids)} action tokens; they must match one to one")
    length = action_length(action_ids, end_token_ids)
    if not length:
        return None
    mean = math.fsum(logprobs[:length]) / length
    return math.inf if mean < -700 else math.exp(-mean)


def in_band(perplexity: float, low: float, high: float) -> bool:
    """`low <= perplexity < high`; with the paper's 1/0.95 and 2, token probability in (0.5, 0.95]."""
    return low * (1 - _EDGE) <= perplexity < high * (1 - _EDGE)
