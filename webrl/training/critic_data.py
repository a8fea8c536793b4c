"""Makes the critic's training data, and its loss for the trainer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from webrl.config import CriticConfig
from webrl.llm.pictures import Example, Picture
from webrl.training.critic import critic_loss, values_of
from webrl.training.objectives import LossOutput, outcome_of
from webrl.training.packing import Pack
from webrl.types import StepRecord


@dataclass(frozen=True)
class State:
    """One state to value."""

    step_id: str
    """Step it belongs to, with `'` for a next state."""
    example: Example
    """Its prompt, with its picture; without action."""
    sample: int
    """Which record it belongs to: a batch counts records, as the released code does, not states."""
    target: float
    """1 if the trajectory succeeded (released: if the discounted return is positive, which is the same)."""


def critic_states(records: Sequence[StepRecord], config: CriticConfig, root: Path) -> list[State]:
    """The state of every step; with `train_next_state` also its successor's (released code: s and s' both).

    A next state is the trajectory's next step, or `next_prompt_ids` where that is not among the records; a step that
    has neither is trained on its own state alone.

    Args:
        root: the run folder, where the screenshots are.

    Raises:
        TrainingError: a record without outcome.
    """
    states = [State(r.step_id, state_of(r, root), i, outcome_of(r)) for i, r in enumerate(records)]
    if config.train_next_state:
        by_place = {(r.trajectory_id, r.index): r for r in records}
        for i, record in enumerate(records):
            following = by_place.get((record.trajectory_id, record.index + 1))
            state = state_of(following, root) if following else next_state_of(record, root)
            if state:
                states.append(State(f"{record.step_id}'", state, i, outcome_of(record)))
    return states


def state_of(record: StepRecord, root: Path) -> Example:
    """Return the state of a step, without its action."""
    return Example(record.prompt_ids, (), Picture.of(record, root))


def next_state_of(record: StepRecord, root: Path) -> Example | None:
    """Return the next state that a step carries along; None if it carries none."""
    if not record.next_prompt_ids:
        return None
    digest = record.next_screenshot_sha256
    return Example(record.next_prompt_ids, (), Picture(root / record.next_screenshot, digest) if digest else None)


def critic_loss_function(states: Sequence[State]) -> Callable[[Tensor, Pack, list[int]], LossOutput]:
    """Cross-entropy against the outcome as the trainer's loss."""
    targets = torch.tensor([state.target for state in states])

    def loss(logits: Tensor, _row: Pack, indices: list[int]) -> LossOutput:
        wanted = targets[indices].to(logits.device)
        values = values_of(logits.detach())
        accuracy = ((values > 0.5) == (wanted > 0.5)).float()
        return LossOutput(critic_loss(logits, wanted), {"value": values, "outcome": wanted, "accuracy": accuracy})

    return loss
