"""The paper's optimal policy π* (arXiv 2411.02337), approached by a KL divergence in place of Eq. 7's square.

    π*(a|s,I) = π_ref(a|s,I) exp(A*(s,a,I) / β),  A* = λ (V*(s') − V*(s)) + (1 − λ) (r(s_T) − V*(s))
    V*(s,I) = β log E_π_ref[exp(r(s_T) / β) | s] = β log(1 + V(s,I) (e^{1/β} − 1))
    L(π) = E_ν[ ρ − w log ρ ],  ρ = π(a|s,I) / π_ref(a|s,I),  w = exp(A* / β)
    0 where ρ is past w on w's side; where w < 1 < ρ, 1 + log ρ stands for ρ

V is the critic's probability of success under π_ref. The paper's derivation asks for the soft value V*, which with a
0/1 reward and deterministic pages is a function of V; with V in its place exp(A / β) sums to more than 1 and no policy
reaches it. L is D_KL(π* ‖ π) for measures that need not sum to 1: its minimum is the paper's, and its slope by log π is
ρ − w: at most 1 where π should fall and w where it should rise, however unlikely the action was (the square's slope
grows with every nat; ρ's own does where π rises that should fall, hence the tangent).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from webrl.config import ActorConfig
from webrl.training.objectives import webrl
from webrl.training.objectives.carriers import LossInput, LossOutput, Objective
from webrl.training.objectives.requirements import beta_of, value_of
from webrl.types import StepRecord

BETA = 0.3


def soft_value(value: float, beta: float) -> float:
    """V* of a state from which π_ref succeeds with probability `value`: 0 and 1 stay, chances in between rise."""
    return 1 + beta * math.log(value + (1 - value) * math.exp(-1 / beta))  # no e^{1/β}, which could overflow


def advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """A* of each record.

    Raises:
        TrainingError: a record without outcome or value.
    """
    beta = beta_of(config, BETA)
    return [webrl.step_advantage(_softened(record, beta), config.gae_lambda) for record in records]


def _softened(record: StepRecord, beta: float) -> StepRecord:
    following = None if record.next_value is None else soft_value(record.next_value, beta)
    return dataclasses.replace(record, value=soft_value(value_of(record), beta), next_value=following)


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """ρ − w log ρ of each step, less its minimum w − w log w; 0 past it."""
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    target = batch.advantage / beta_of(config, BETA)  # log w
    past = target * (log_ratio.detach() - target) > 0
    log_ratio = torch.where(past, target, log_ratio)
    ceiling = target.clamp(min=0)  # past it, the tangent: no ratio overflows
    ratio = torch.minimum(log_ratio, ceiling).exp() * (1 + (log_ratio - ceiling).clamp(min=0))
    weight = target.exp()
    losses = ratio - weight - weight * (log_ratio - target)
    return LossOutput(losses, metrics={"weight": weight, "mask_fraction": 1 - past.to(losses.dtype)})


OBJECTIVE = Objective(advantages=advantages, trains=webrl.trains, loss=loss)
