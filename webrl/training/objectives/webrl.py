"""The paper's actor loss and ours, which moves likely and unlikely actions alike, with no pull back past the target.

`webrl` (arXiv 2411.02337, Eq. 7 and 10) is the squared error of the scaled log-ratio to the advantage:

    L(π) = E_ν[ (β log(π(a|s,I) / π_ref(a|s,I)) − A(s,a,I))² ]
    A(s_t,a_t,I) = λ (r_t + V(s_{t+1},I) − V(s_t,I)) + (1 − λ) (r(s_T) − V(s_t,I)),  λ = 0.5

log π(a|s,I) is the sum over the action's tokens, end token included. Steps of either sign train: a negative
advantage pushes the action's probability below the reference's. Left out: nothing. Stated by us: the paper names
no β for its main run (1.0 here); after the last step V is 0 and r_t carries the outcome, so that A = r(s_T) − V(s_T);
where a replayed step's next state has no value, λ = 0 is used for it.

`webrl_scaled`:

    L(π) = E_ν[ m · (β r − A)² / (F + ε) ],  r = log(π(a|s,I) / π_ref(a|s,I)),  A as in `webrl`
    F = Σ_i (1 − π(a_i | s, a_<i))² over the action's tokens; m = 0 where A (β r − A) > 0, else 1; no gradient by either

Why F: the gradient of log π(a|s) by the logits has a squared norm between F and 2F, so that one step of `webrl` moves
an unlikely action by nats and a likely one by nothing. Dividing by it is the normalised least-mean-squares step (Nagumo
and Noda 1967), with ε = `actor.curvature_floor` as its regulariser. Why m: actions share their weights, and what raises
a success drags unlikely failures below their targets; squared, their way back up outweighs everything else in a batch
(docs/objective.md). The minimum is the paper's, β r = A, wherever it can be reached.
β is `actor.beta`, 0.3 unless set.
"""

from __future__ import annotations

from collections.abc import Sequence

from webrl.config import ActorConfig
from webrl.training.objectives import LossInput, LossOutput, Objective, beta_of, outcome_of, value_of
from webrl.types import StepRecord

BETA, SCALED_BETA = 1.0, 0.3


def advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """A(s_t, a_t, I) of each record.

    Raises:
        TrainingError: a record without outcome or value.
    """
    mixed = []
    for record in records:
        outcome, value = outcome_of(record), value_of(record)
        advantage = outcome - value
        if not record.is_last and record.next_value is not None:  # r_t is 0 before the last step
            advantage = config.gae_lambda * (record.next_value - value) + (1 - config.gae_lambda) * advantage
        mixed.append(advantage)
    return mixed


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """(β (ℓ − ℓ_ref) − A)² of each step."""
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    error = beta_of(config, BETA) * log_ratio - batch.advantage
    return LossOutput(loss=error.square(), metrics={"residual": error.detach().abs()})


def scaled_loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Masked, scaled (β r − A)² of each step."""
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    error = beta_of(config, SCALED_BETA) * log_ratio - batch.advantage
    mask = (batch.advantage * error.detach() <= 0).to(error.dtype)
    curvature = batch.sum_tokens(batch.logprobs.detach().expm1().square())  # [B] F
    return LossOutput(
        loss=mask * error.square() / (curvature + config.curvature_floor),
        metrics={"residual": error.detach().abs(), "mask_fraction": mask, "curvature": curvature},
    )


# Every step trains: with A = 0 the loss is still the squared distance to the reference.
OBJECTIVES = {
    "webrl": Objective(advantages=advantages, trains=lambda _: True, loss=loss),
    "webrl_scaled": Objective(advantages=advantages, trains=lambda _: True, loss=scaled_loss),
}
