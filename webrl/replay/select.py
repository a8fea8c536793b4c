"""Which steps of earlier successes are trained on again (paper §3.4).

Order, as in the released code: successes only; one trajectory per instruction; the perplexity band, step by step;
then a seeded draw of at most `max_ratio` x the current steps. `ReplayFilter` decides on plain facts, so that
the stage, which streams (`webrl/replay/mix.py`), and `select_replay`, for records in memory, share every rule.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Literal

from webrl.config import ReplayConfig
from webrl.replay.perplexity import action_perplexity, in_band
from webrl.types import StepRecord

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


@dataclass(frozen=True)
class ReplaySelection:
    """What replay adds to the current steps."""

    records: tuple[StepRecord, ...]
    """Chosen steps in the history's order, `source="replay"`."""
    counts: dict[str, int]
    """Number of history steps by `Reason`; the values add up to the number of history steps."""


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


def choose_trajectories(
    history: Iterable[StepRecord], config: ReplayConfig, rng: random.Random
) -> tuple[list[StepRecord], Counter[str]]:
    """Steps of the one success per instruction: what needs scoring. Also counts of what was left out by reason.

    Running `select_replay` on the result chooses the same trajectories again.
    """
    steps = list(history)
    replay_filter = _prepare(steps, config, rng, (), "")
    counts: Counter[str] = Counter()
    kept = []
    for step in steps:
        reason = replay_filter.choose(step.outcome, step.site, step.instruction, step.trajectory_id)
        if reason == "kept":
            kept.append(step)
        else:
            counts[reason] += 1
    return kept, counts


def select_replay(
    history_records: Iterable[StepRecord],
    num_current: int,
    config: ReplayConfig,
    rng: random.Random,
    end_token_ids: Collection[int],
    tokenizer: str = "",
) -> ReplaySelection:
    """Choose the history steps to train on again beside `num_current` current steps.

    Args:
        history_records: steps of earlier phases, oldest first; `strategy: perplexity` needs their `ref_logprobs`
            under the current actor (steps without are dropped as "unscored").
        rng: source of all randomness; the same history, config and seed give the same selection.
        end_token_ids: ids that may end an action; left out of the perplexity.
        tokenizer: fingerprint of the current tokenizer; steps of another one are dropped. "" does not check.
    """
    steps = list(history_records)
    replay_filter = _prepare(steps, config, rng, end_token_ids, tokenizer)
    counts: Counter[str] = Counter()
    admitted: list[StepRecord] = []
    for step in steps:
        reason = replay_filter.choose(step.outcome, step.site, step.instruction, step.trajectory_id)
        if reason == "kept" and not replay_filter.same_tokenizer(step.tokenizer):
            reason = "other_tokenizer"
        if reason == "kept":
            reason = replay_filter.check_step(step.action_ids, step.ref_logprobs)
        if reason == "kept":
            admitted.append(step)
        else:
            counts[reason] += 1
    positions = draw([step.phase for step in admitted], num_current, config, rng)
    counts["kept"] = len(positions)
    if len(positions) < len(admitted):
        counts["over_ratio"] = len(admitted) - len(positions)
    records = tuple(dataclasses.replace(admitted[i], source="replay") for i in positions)
    return ReplaySelection(records, dict(counts))


def _prepare(
    steps: Sequence[StepRecord],
    config: ReplayConfig,
    rng: random.Random,
    end_token_ids: Collection[int],
    tokenizer: str,
) -> ReplayFilter:
    replay_filter = ReplayFilter(config, end_token_ids, tokenizer)
    if config.per_instruction == "sampled":
        sampler = TrajectorySampler(rng)
        for step in steps:
            if step.outcome == 1:
                sampler.offer(step.site, step.instruction, step.trajectory_id)
        replay_filter.chosen = sampler.chosen
    return replay_filter


def _key(*parts: str) -> bytes:
    return blake2b("\x00".join(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
