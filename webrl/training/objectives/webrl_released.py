"""The released code's actor loss (github.com/THUDM/WebRL), which differs from the paper in every term.

With s the trajectory's 0/1 score, m_t = Σ_{i≥t} 0.9^{i−t} s, V the value (there, of two heads the smaller), ℓ and ℓ_ref
the summed log-probabilities, n the number of action tokens, p_ref = exp(ℓ_ref / n):

    A = clamp(V(s') − V(s) − 0.05 + s + m_t, −1, 1);  A ← +1 if A ≥ 0 else −0.6
    b = 5 if (A ≥ 0 and p_ref ≥ 0.8) or (A < 0 and p_ref < 0.9) else 1
    ρ = (ℓ − ℓ_ref) / n;  β = min(b, |A/ρ|) without gradient
    L = mean of [A > 0] · SmoothL1(β ρ, A) / β

So a step of negative advantage has exactly zero loss and gradient, and a failed step whose value rises by at
least 0.05 trains with A = +1. The released normaliser N sums n over the masked samples of a micro-batch, which is
1 there: N = n here, so that the loss does not depend on packing. Left out: the mean runs over all steps of the
batch, as there; V(s') of a last step is that of the prompt one round later with the last page again
(`next_prompt_ids`), or V(s) where a record has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from webrl.config import ActorConfig
from webrl.training.objectives import LossInput, LossOutput, Objective, outcome_of, value_of
from webrl.types import StepRecord

DISCOUNT = 0.9
STEP_COST = 0.05
POSITIVE, NEGATIVE = 1.0, -0.6


def monte_carlo_return(record: StepRecord) -> float:
    """m_t = Σ_{i=t}^{T} 0.9^{i−t} s: 4.1, 3.44, … 1 for a successful trajectory of five steps."""
    remaining = record.num_steps - record.index
    return outcome_of(record) * (1 - DISCOUNT**remaining) / (1 - DISCOUNT)


def advantages(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """+1 or −0.6 for each record."""
    chosen = []
    for record in records:
        value = value_of(record)
        unknown = record.next_value is None or (record.is_last and not record.next_prompt_ids)
        next_value = value if unknown or record.next_value is None else record.next_value
        raw = next_value - value - STEP_COST + outcome_of(record) + monte_carlo_return(record)
        chosen.append(POSITIVE if max(-1.0, min(1.0, raw)) >= 0 else NEGATIVE)
    return chosen


def loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """Masked, rescaled smooth L1 of each step. `config.beta` is not used: β is set per step."""
    count = batch.num_tokens().clamp(min=1)  # [B]
    ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs) / count  # ρ
    p_ref = (batch.sum_tokens(batch.ref_logprobs) / count).exp()
    advantage = batch.advantage
    large = ((advantage >= 0) & (p_ref >= 0.8)) | ((advantage < 0) & (p_ref < 0.9))
    bound = torch.where(large, 5.0, 1.0)
    beta = torch.minimum(bound, (advantage / ratio.detach()).abs().nan_to_num(nan=torch.inf))
    losses = functional.smooth_l1_loss(beta * ratio, advantage, reduction="none") / beta
    mask = (advantage > 0).to(losses.dtype)
    return LossOutput(loss=mask * losses, metrics={"mask_fraction": mask, "beta": beta.detach()})


# The mask makes the loss of all other advantages zero.
OBJECTIVES = {"webrl_released": Objective(advantages=advantages, trains=lambda advantage: advantage > 0, loss=loss)}
