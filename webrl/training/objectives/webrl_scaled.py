"""The paper's loss (`webrl`) with steps that move likely and unlikely actions alike, and no pull back past the target.

    L(π) = E_ν[ m · (β r − A)² / (F + ε) ],  r = log(π(a|s,I) / π_ref(a|s,I)),  A as in `webrl`
    F = Σ_i (1 − π(a_i | s, a_<i))² over the action's tokens; m = 0 where A (β r − A) > 0, else 1; no gradient by either

Why F: the gradient of log π(a|s) by the logits has a squared norm between F and 2F, so that one step of the paper's
loss moves an unlikely action by nats and a likely one by nothing. Dividing by it is the normalised least-mean-squares
step (Nagumo and Noda 1967), with ε = `actor.curvature_floor` as its regulariser. Why m: actions share their weights,
and what raises a success drags unlikely failures below their targets; squared, their way back up outweighs everything
else in a batch (docs/objective.md). The minimum is the paper's, β r = A, wherever it can be reached.
β is `actor.beta`, 0.3 unless set.
"""

from __future__ import annotations

from webrl.config import ActorConfig
from webrl.training.objectives import webrl
from webrl.training.objectives.interface import LossInput, LossOutput, Objective, beta_of

BETA = 0.3


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Masked, scaled (β r − A)² of each step."""
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    error = beta_of(config, BETA) * log_ratio - batch.advantage
    mask = (batch.advantage * error.detach() <= 0).to(error.dtype)
    curvature = batch.sum_tokens(batch.logprobs.detach().expm1().square())  # [B] F
    return LossOutput(
        loss=mask * error.square() / (curvature + config.curvature_floor),
        metrics={"residual": error.detach().abs(), "mask_fraction": mask, "curvature": curvature},
    )


OBJECTIVE = Objective(advantages=webrl.advantages, trains=webrl.OBJECTIVE.trains, loss=loss)
