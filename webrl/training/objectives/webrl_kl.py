"""The paper's optimal policy π* (arXiv 2411.02337), approached by a KL divergence instead of Eq. 7's square.

    π*(a|s,I) = π_ref(a|s,I) exp(A(s,a,I) / β),  A as in `webrl`
    L(π) = E_ν[ ρ − w log ρ ],  ρ = π(a|s,I) / π_ref(a|s,I),  w = exp(A / β)
    0 where ρ is past w on w's side; where w < 1 < ρ, 1 + log ρ replaces ρ

L is D_KL(π* ‖ π) for measures that need not sum to 1: its minimum is the paper's, and its slope by log π is ρ − w: at
most 1 where π should fall and w where it should rise, however unlikely the action was (the square's slope grows with
every nat; ρ's own does where π rises that should fall, hence the tangent). β is `actor.beta`, 0.3 unless set.
"""

from __future__ import annotations

from webrl.config import ActorConfig
from webrl.training.objectives import webrl
from webrl.training.objectives.interface import LossInput, LossOutput, Objective, beta_of

BETA = 0.3


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Return ρ − w log ρ of each step, less its minimum w − w log w; 0 past it."""
    import torch

    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    target = batch.advantage / beta_of(config, BETA)  # log w
    past = target * (log_ratio.detach() - target) > 0
    log_ratio = torch.where(past, target, log_ratio)
    ceiling = target.clamp(min=0)  # past it, the tangent: no ratio overflows
    ratio = torch.minimum(log_ratio, ceiling).exp() * (1 + (log_ratio - ceiling).clamp(min=0))
    weight = target.exp()
    losses = ratio - weight - weight * (log_ratio - target)
    return LossOutput(losses, metrics={"weight": weight, "mask_fraction": 1 - past.to(losses.dtype)})


OBJECTIVE = Objective(advantages=webrl.advantages, trains=webrl.OBJECTIVE.trains, loss=loss)
