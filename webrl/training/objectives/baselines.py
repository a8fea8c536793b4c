"""Baselines of the paper that weight or filter the likelihood of actions by their advantage.

`awr`: advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177, Eq. 11; a baseline of the paper).

    L(π) = −E[ min(exp(A / β), 20) · Σ_i log π(a_i | s, a_<i) ],  A = r(s_T) − V(s_t, I)

β is `actor.beta`, 1 unless set. Every step trains, failed ones with a small weight. Left out: TD(λ) returns (the
reward is 0/1 at the end, so the Monte-Carlo return is exact) and their replay of all past policies (our replay buffer
decides).

`digirl`: DigiRL (Bai et al. 2024, arXiv 2406.11896 §4; a baseline of the paper): filtered advantage-weighted imitation.

Doubly robust step advantage (Eq. 4.3), with H the trajectory's number of steps and λ = `actor.gae_lambda`:

    A_step(s_h, a_h) = λ^{H−h} r(s_H) + (1 − λ^{H−h}) (V(s_{h+1}) + r(s_h, a_h) − V(s_h))

Instruction-level filter (§4.2): trajectories are ranked by A_instr = r(s_H) − V_instr(c), and those at or above the
`percentile`-th are kept, so that instructions that are neither solved already nor out of reach are trained on.
The actor is then trained by L(π) = −Σ_i log π(a_i | s, a_<i) on their steps with A_step ≥ 1/H (§4.4's hard filter).
Our choices: V_instr(c) is the critic's value of the trajectory's first state (ours are one network); where the first
step or a next value is missing (replay), the own state's value and λ^{H−h} = 1 are used. h counts from 1, so that the
last step's advantage is r(s_H); ≥ replaces >, so that one-step successes train. Left out: their separate
instruction-level network and automatic curriculum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from webrl.config import ActorConfig
from webrl.training.objectives import LossInput, LossOutput, Objective, beta_of, outcome_of, value_of
from webrl.types import StepRecord

BETA = 1.0
MAX_WEIGHT = 20.0


def awr_weights(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """The weight min(exp(A / β), 20) of each step."""
    beta = beta_of(config, BETA)
    cap = beta * math.log(MAX_WEIGHT)  # before the exponential, which could overflow
    return [math.exp(min(outcome_of(r) - value_of(r), cap) / beta) for r in records]


def loss(batch: LossInput, _config: ActorConfig, *, metric: str) -> LossOutput:
    """Weighted negative log-likelihood of each step, summed over its tokens; the weights are logged as `metric`."""
    return LossOutput(loss=-batch.advantage * batch.sum_tokens(batch.logprobs), metrics={metric: batch.advantage})


def digirl_weights(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """Return 1 for steps that pass both filters, 0 for the rest."""
    first_values: dict[str, float] = {}
    for record in sorted(records, key=lambda r: r.index):
        first_values.setdefault(record.trajectory_id, value_of(record))
    instruction = {r.trajectory_id: outcome_of(r) - first_values[r.trajectory_id] for r in records}
    threshold = float(np.percentile(list(instruction.values()), config.percentile))
    return [
        float(instruction[r.trajectory_id] >= threshold and step_advantage(r, config.gae_lambda) >= 1 / r.num_steps)
        for r in records
    ]


def step_advantage(record: StepRecord, lam: float) -> float:
    """The doubly robust advantage of one step."""
    outcome = outcome_of(record)
    if record.is_last or record.next_value is None:
        return outcome
    share = lam ** (record.num_steps - 1 - record.index)
    return share * outcome + (1 - share) * (record.next_value - value_of(record))


OBJECTIVES = {
    "awr": Objective(advantages=awr_weights, loss=partial(loss, metric="weight"), needs_reference=False),
    "digirl": Objective(advantages=digirl_weights, loss=partial(loss, metric="mask_fraction"), needs_reference=False),
}
