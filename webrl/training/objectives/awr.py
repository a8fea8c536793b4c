"""Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177, Eq. 11; a baseline of the paper).

    L(π) = −E[ min(exp(A / β), 20) · Σ_i log π(a_i | s, a_<i) ],  A = r(s_T) − V(s_t, I)

β is `actor.beta`, 1 unless set. Every step trains, failed ones with a small weight. Left out: TD(λ) returns (the
reward is 0/1 at the end, so the Monte-Carlo return is exact) and their replay of all past policies (our replay buffer
decides).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from webrl.config import ActorConfig
from webrl.training.objectives import LossInput, LossOutput, Objective, beta_of, outcome_of, value_of
from webrl.types import StepRecord

BETA = 1.0
MAX_WEIGHT = 20.0


def advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """The weight min(exp(A / β), 20) of each step."""
    beta = beta_of(config, BETA)
    cap = beta * math.log(MAX_WEIGHT)  # before the exponential, which could overflow
    return [math.exp(min(outcome_of(r) - value_of(r), cap) / beta) for r in records]


def loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """Weighted negative log-likelihood of each step, summed over its tokens."""
    return LossOutput(loss=-batch.advantage * batch.sum_tokens(batch.logprobs), metrics={"weight": batch.advantage})


OBJECTIVES = {"awr": Objective(advantages=advantages, loss=loss, needs_reference=False)}
