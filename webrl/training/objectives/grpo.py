"""Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300, Eq. 3) in the form of Dr. GRPO.

    A = (r − mean of the group's r) / s  (a group: the attempts of one phase at one task, `StepRecord.group`)
    ρ_i = π(a_i | s, a_<i) / π_old(a_i | s, a_<i)
    L = −(1/L_max) Σ_i min(ρ_i A, clip(ρ_i, 1 − ε_low, 1 + ε_high) A)

The normaliser is the constant `actor.length_norm` (arXiv 2503.20783 §3: dividing by an answer's own length favours
long wrong answers). `actor.scale_rewards` chooses s, with TRL's names and formula: `none` is 1 (Dr. GRPO: a group's
deviation gives very easy and very hard tasks more weight), `group` the group's sample standard deviation + 1e-4
(Shao et al., Eq. 3), `batch` that of all attempts of the phase + 1e-4. A group whose attempts all end alike has A = 0:
batches are made of the other groups' steps (DAPO, arXiv 2503.14476 §3.2). Left out: the KL term (ε clips; `webrl` is
the KL objective).

Attempts that failed for reasons that are not the agent's, and unjudged ones, have no outcome: there are no records
of them, and neither the mean nor s includes them. A group counts if at least two attempts are left. Attempts
are independent, so the rest of a group is distributed as a whole one is; leaving the whole group out would only
make tasks rarer whose pages fail more often.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import torch

from webrl.config import ActorConfig
from webrl.errors import TrainingError
from webrl.training.objectives import LossInput, LossOutput, Objective, outcome_of
from webrl.types import StepRecord

_STD_FLOOR = 1e-4
"""As in TRL."""
_MIN_ATTEMPTS = 2


def advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """Of each record its trajectory's; a trajectory counts once, however many steps it has.

    Raises:
        TrainingError: replayed steps, which other weights sampled, or no task with two judged attempts.
    """
    replayed = next((r for r in records if r.source == "replay"), None)
    if replayed:
        raise TrainingError(
            f"step {replayed.step_id!r} is replayed: grpo compares attempts of the same weights; set "
            "replay.strategy=none, in a new run"
        )
    groups: dict[tuple[int, str], dict[str, float]] = {}
    for record in records:
        group = record.phase, record.group or record.trajectory_id
        groups.setdefault(group, {})[record.trajectory_id] = outcome_of(record)
    if not any(len(outcomes) >= _MIN_ATTEMPTS for outcomes in groups.values()):
        raise TrainingError(
            f"none of {len(groups)} tasks has two judged attempts, and grpo learns from their differences: play each "
            "several times, rollout.num_generations=4"
        )
    every = [value for outcomes in groups.values() for value in outcomes.values()]
    scale = stdev(every) + _STD_FLOOR if config.scale_rewards == "batch" else 1.0
    known: dict[str, float] = {}
    for outcomes in groups.values():
        mean = fmean(outcomes.values())
        if config.scale_rewards == "group":
            scale = (stdev(outcomes.values()) if len(outcomes) >= _MIN_ATTEMPTS else 0.0) + _STD_FLOOR
        known |= {name: (value - mean) / scale for name, value in outcomes.items()}
    return [known[record.trajectory_id] for record in records]


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Token-level clipped surrogate of each step over a constant length."""
    advantage = batch.advantage[batch.sample]  # [N]
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    binds = (clipped * advantage < ratio * advantage).to(ratio.dtype).detach()
    fraction = batch.sum_tokens(binds) / batch.num_tokens().clamp(min=1)
    return LossOutput(loss=-batch.sum_tokens(surrogate) / config.length_norm, metrics={"clip_fraction": fraction})


OBJECTIVES = {"grpo": Objective(advantages=advantages, loss=loss, needs_reference=False, batches_active=True)}
