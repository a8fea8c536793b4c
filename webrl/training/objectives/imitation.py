"""No policy loss: the update imitates `replay.demos` only, in as many steps as another objective takes.

The control of every claim that reinforcement learning adds to supervised learning.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.config import ActorConfig
from webrl.training.objectives.interface import LossInput, LossOutput, Objective
from webrl.types import StepRecord


def advantages(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """0 for every step: none of the phase's own is trained on."""
    return [0.0] * len(records)


def loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """Zero."""
    return LossOutput(loss=batch.sum_tokens(batch.logprobs) * 0, metrics={})


OBJECTIVE = Objective(advantages=advantages, loss=loss, needs_reference=False)
