"""Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300, Eq. 3) in the form of Dr. GRPO.

    A = r − mean of the group's r        (attempts at the same task: `StepRecord.group`)
    ρ_i = π(a_i | s, a_<i) / π_old(a_i | s, a_<i)
    L = −(1/L_max) Σ_i min(ρ_i A, clip(ρ_i, 1 − ε_low, 1 + ε_high) A)

The normaliser is the constant `actor.length_norm` (arXiv 2503.20783 §3: dividing by an answer's own length favours
long wrong answers); so is the group's standard deviation left out, which weights easy and hard tasks alike. A group
whose attempts all end alike has A = 0 and gets no pass. Left out: the KL term (ε clips; `webrl` is the KL objective).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import torch

from webrl.config import ActorConfig
from webrl.training.objectives.checks import outcome_of
from webrl.training.objectives.interface import LossInput, LossOutput, Objective
from webrl.types import StepRecord


def advantages(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """R minus the group's mean; each trajectory counts once. A record without group is a group of its own."""
    groups: dict[str, dict[str, float]] = {}
    for record in records:
        groups.setdefault(_group(record), {})[record.trajectory_id] = outcome_of(record)
    baselines = {name: fmean(outcomes.values()) for name, outcomes in groups.items()}
    return [outcome_of(record) - baselines[_group(record)] for record in records]


def trains(advantage: float) -> bool:
    """Without advantage there is no gradient."""
    return advantage != 0


def loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Token-level clipped surrogate of each step over a constant length."""
    advantage = batch.advantage[batch.sample]  # [N]
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage)
    binds = (clipped * advantage < ratio * advantage).to(ratio.dtype).detach()
    fraction = batch.sum_tokens(binds) / batch.num_tokens().clamp(min=1)
    return LossOutput(loss=-batch.sum_tokens(surrogate) / config.length_norm, metrics={"clip_fraction": fraction})


def _group(record: StepRecord) -> str:
    return record.group or record.trajectory_id


OBJECTIVE = Objective(advantages=advantages, trains=trains, loss=loss, needs_reference=False, needs_values=False)
