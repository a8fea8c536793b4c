"""Which steps of earlier successes are trained on again (paper §3.4).

Order, as in the released code: successes only; one trajectory per instruction; the perplexity band, step by step;
then a seeded draw of at most `max_ratio` x the current steps. The stream that is decided on: `webrl/replay/mix.py`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from webrl.config import ReplayConfig

_EDGE = 1e-9
"""Relative tolerance at the band's edges: exp(-log 0.95) must count as 1/0.95 whatever the last bit says."""
Reason = Literal[
    "kept",
    "unjudged",
    "failed",
    "repeated_instruction",
    "other_tokenizer",
    "unscored",
    "empty_action",
    "too_certain",
    "too_uncertain",
    "over_ratio",
    "strategy_none",
]
"""What became of a history step; every step is counted under exactly one."""


@dataclass
class ReplayFilter:
    """Admits history steps one by one; remembers which trajectory stands for each instruction (8 bytes each)."""

    config: ReplayConfig
    end_token_ids: Collection[int]
    tokenizer: str = ""
    """Fingerprint that the ids must come from; "" accepts any."""
    chosen: dict[bytes, bytes] = field(default_factory=dict)
    """Instruction key -> trajectory key; filled beforehand for `per_instruction: sampled`."""

    def choose(self, outcome: int | None, site: str, instruction: str, trajectory_id: str) -> Reason:
        """May this trajectory's steps be replayed? "kept" or why not; the first success of an instruction stands."""
        if self.config.strategy == "none":
            return "strategy_none"
        if outcome is None:
            return "unjudged"
        if outcome != 1:
            return "failed"
        trajectory = _key(trajectory_id)
        if self.chosen.setdefault(_key(site, instruction), trajectory) != trajectory:
            return "repeated_instruction"
        return "kept"

    def same_tokenizer(self, tokenizer: str) -> bool:
        """Were the ids made by the current tokenizer? True where either is not known."""
        return not self.tokenizer or not tokenizer or tokenizer == self.tokenizer

    def check_step(self, action_ids: Sequence[int], ref_logprobs: Sequence[float] | None) -> Reason:
        """Is a chosen trajectory's step in the band? Only `strategy: perplexity` asks for log-probabilities."""
        if self.config.strategy != "perplexity":
            return "kept"
        if ref_logprobs is None:
            return "unscored"
        perplexity = action_perplexity(ref_logprobs, action_ids, self.end_token_ids)
        if perplexity is None:
            return "empty_action"
        low, high = self.config.perplexity_low, self.config.perplexity_high
        if in_band(perplexity, low, high):
            return "kept"
        return "too_certain" if perplexity < low else "too_uncertain"


class TrajectorySampler:
    """Draws one success per instruction, uniformly, in one pass (reservoir of size one)."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._seen: dict[bytes, int] = {}
        self._last: dict[bytes, bytes] = {}
        self.chosen: dict[bytes, bytes] = {}

    def offer(self, site: str, instruction: str, trajectory_id: str) -> None:
        """Take note of a step of a successful trajectory; its trajectory's steps must be contiguous."""
        instruction_key, trajectory_key = _key(site, instruction), _key(trajectory_id)
        if self._last.get(instruction_key) == trajectory_key:
            return
        self._last[instruction_key] = trajectory_key
        count = self._seen[instruction_key] = self._seen.get(instruction_key, 0) + 1
        if self._rng.randrange(count) == 0:
            self.chosen[instruction_key] = trajectory_key


def draw(phases: Sequence[int], num_current: int, config: ReplayConfig, rng: random.Random) -> list[int]:
    """Positions of the admitted steps that are replayed, ascending: at most `max_ratio` x `num_current`.

    Args:
        phases: phase of each admitted step; `recency` takes the newest phases first, the others draw uniformly.
    """
    limit = min(len(phases), int(config.max_ratio * num_current + 1e-9))
    if limit == len(phases):
        return list(range(limit))
    if config.strategy == "recency":
        order = sorted(range(len(phases)), key=lambda i: (-phases[i], -i))
        return sorted(order[:limit])
    return sorted(rng.sample(range(len(phases)), limit))


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


def _key(*parts: str) -> bytes:
    return blake2b("\x00".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
