"""Which steps of earlier successes are trained on again (paper §3.4).

Order, as in the released code: successes only; one trajectory per task; the perplexity band, step by step; then a
seeded draw of at most `max_ratio` x the current steps. The stream that is decided on: `webrl/replay/stage.py`.

Two things differ from the released code. A task is an instruction on the first page that came with it (`task_key`):
with one trajectory per instruction, four of 13 task types that ask the same few things of many pages ("Close the
dialog") had 2 % of the replayed steps. And the draw is by need (`draw`), not uniform.
"""

from __future__ import annotations

import math
import random
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

import orjson

from webrl.config import ReplayConfig
from webrl.reward.labels import count_failures, failure_rates
from webrl.types import StepRecord

LEAST_NEED = 0.1
"""A site that never fails is replayed as one that fails one task in ten."""
_EDGE = 1e-9
"""Relative tolerance at the band's edges: exp(-log 0.95) must count as 1/0.95 despite rounding of the last bit."""
Reason = Literal[
    "kept",
    "unjudged",
    "failed",
    "repeated_task",
    "other_tokenizer",
    "unscored",
    "empty_action",
    "too_certain",
    "too_uncertain",
    "over_ratio",
    "strategy_none",
]
"""The outcome of selecting a history step; every step is counted under exactly one."""


def task_key(first: StepRecord) -> bytes:
    """Identify the task as it was attempted: by site, instruction, and the first page shown (8 bytes).

    Args:
        first: record of a trajectory's first step; its prompt holds the page, or its screenshot shows it.
    """
    shown = orjson.dumps(first.prompt_ids).decode()
    parts = "\x00".join((first.site, first.instruction, first.screenshot_sha256, shown))
    return blake2b(parts.encode("utf-8", "surrogatepass"), digest_size=8).digest()


@dataclass
class ReplayFilter:
    """Admits history step by step; remembers the tasks that it has admitted a success of (8 bytes each)."""

    config: ReplayConfig
    end_token_ids: Collection[int]
    tokenizer: str = ""
    """Fingerprint that the ids must come from; "" accepts any."""
    _replayed: set[bytes] = field(default_factory=set)
    """`task_key` of each task that a success has been admitted of."""

    def choose(self, first: StepRecord) -> Reason:
        """Return "kept" if this trajectory may be replayed, else why not; each task's first success is, only once."""
        if self.config.strategy == "none":
            return "strategy_none"
        if first.outcome is None:
            return "unjudged"
        if first.outcome != 1:
            return "failed"
        if self.tokenizer and first.tokenizer and first.tokenizer != self.tokenizer:
            return "other_tokenizer"
        key = task_key(first)
        if key in self._replayed:
            return "repeated_task"
        self._replayed.add(key)
        return "kept"

    def check_step(self, action_ids: Sequence[int], ref_logprobs: Sequence[float] | None) -> Reason:
        """Check a chosen trajectory's step against the band. Only `strategy: perplexity` asks for log-probabilities."""
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


def draw(
    sites: Sequence[str], need: Mapping[str, float], num_current: int, config: ReplayConfig, rng: random.Random
) -> list[int]:
    """Positions of the admitted steps that are replayed, ascending: at most `max_ratio` x `num_current`.

    `draw: uniform` takes any. `draw: need` shares the places among the task
    types as seats among parties by their votes (Adams' method): a type's step number k = 0, 1, … in a random order is
    taken at k / need, lowest first. So every type gets one before any gets a second, each about its share by need, and
    where a type has fewer steps than that, the others get the rest.

    Args:
        sites: of each admitted step.
        need: weight of each site, above 0.
    """
    limit = min(len(sites), int(config.max_ratio * num_current + 1e-9))
    if limit == len(sites):
        return list(range(limit))
    order = rng.sample(range(len(sites)), len(sites))
    if config.draw == "need":
        taken: Counter[str] = Counter()
        turns = array("d", bytes(8 * len(order)))
        for position in order:
            turns[position] = taken[sites[position]] / need[sites[position]]
            taken[sites[position]] += 1
        order.sort(key=turns.__getitem__)
    return sorted(order[:limit])


def need_of(sites: Collection[str], attempts: Iterable[tuple[str, str, int | None]]) -> dict[str, float]:
    """Return how much each site of the buffer needs replay: the rate at which the current phase fails there.

    Not below `LEAST_NEED`, so that what is never failed any more is still rehearsed.

    Args:
        attempts: (site, task id, outcome) of each trajectory of the phase. A site without one has the common rate.
    """
    rates = failure_rates(*count_failures(attempts), sites)
    return {site: max(rate, LEAST_NEED) for site, rate in rates.items()}


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
    length = len(action_ids)
    while length and action_ids[length - 1] in end_token_ids:
        length -= 1
    if not length:
        return None
    mean = math.fsum(logprobs[:length]) / length
    return math.inf if mean < -700 else math.exp(-mean)


def in_band(perplexity: float, low: float, high: float) -> bool:
    """Return `low <= perplexity < high`; with the paper's 1/0.95 and 2, token probability in (0.5, 0.95]."""
    return low * (1 - _EDGE) <= perplexity < high * (1 - _EDGE)
