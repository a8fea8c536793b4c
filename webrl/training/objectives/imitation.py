"""Supervised losses: L = −(1/n) Σ_i log π(a_i | s, a_<i), the mean over a step's action tokens, for different steps.

`sft`: those of demonstrations and successes (π_0, paper §3.3, phase 0, and the outcome model). Steps without an outcome
are taken to be demonstrations. Left out: the token mean over a micro-batch of common SFT libraries, which would make
the result depend on the packing.

`filtered_bc`: those of the best trajectories only (paper §4.1, baseline). A trajectory's score is its discounted return
0.9^{T−1} r(s_T): among successes the shorter ones rank higher. Kept are trajectories whose score is positive and at
least the `percentile`-th (70th, paper) of all. Left out: the paper does not say how ties of a 0/1 reward are broken;
the discount is ours (the released code's).

`imitation`: none of the phase's own; the update imitates `replay.demos` only, in as many steps as another objective
takes. The control of every claim that reinforcement learning adds to supervised learning.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from webrl.config import ActorConfig
from webrl.training.objectives import LossInput, LossOutput, Objective, outcome_of
from webrl.types import StepRecord

DISCOUNT = 0.9


def successes(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """1 for demonstrations and successes, 0 for failures."""
    return [0.0 if record.outcome == 0 else 1.0 for record in records]


def best_trajectories(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """1 for steps of kept trajectories, 0 for the rest."""
    scores = {r.trajectory_id: outcome_of(r) * DISCOUNT ** (r.num_steps - 1) for r in records}
    threshold = float(np.percentile(list(scores.values()), config.percentile))
    return [float(0 < scores[r.trajectory_id] >= threshold) for r in records]


def loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """Weighted mean negative log-likelihood of each step."""
    mean = batch.sum_tokens(batch.logprobs) / batch.num_tokens().clamp(min=1)
    return LossOutput(loss=-batch.advantage * mean, metrics={"perplexity": (-mean.detach()).exp()})


OBJECTIVES = {
    "sft": Objective(advantages=successes, loss=loss, needs_reference=False),
    "filtered_bc": Objective(advantages=best_trajectories, loss=loss, needs_reference=False),
    "imitation": Objective(
        advantages=lambda records, _: [0.0] * len(records),
        loss=lambda batch, _: LossOutput(loss=batch.sum_tokens(batch.logprobs) * 0, metrics={}),
        needs_reference=False,
    ),
}
