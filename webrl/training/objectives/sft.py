"""Supervised fine-tuning: L = −(1/n) Σ_i log π(a_i | s, a_<i), the mean over a step's action tokens.

Used for π_0 (paper §3.3, phase 0) and the outcome model. Steps of failed trajectories are not imitated; steps
without an outcome are taken to be demonstrations. Left out: the token mean over a micro-batch of common SFT
libraries, which would make the result depend on the packing.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.config import ActorConfig
from webrl.training.objectives.interface import LossInput, LossOutput, Objective
from webrl.types import StepRecord


def advantages(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """1 for demonstrations and successes, 0 for failures."""
    return [0.0 if record.outcome == 0 else 1.0 for record in records]


def loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """Weighted mean negative log-likelihood of each step."""
    mean = batch.sum_tokens(batch.logprobs) / batch.num_tokens().clamp(min=1)
    return LossOutput(loss=-batch.advantage * mean, metrics={"perplexity": (-mean.detach()).exp()})


OBJECTIVE = Objective(advantages=advantages, loss=loss, needs_reference=False)
