"""Actor losses: what an objective takes, needs and returns, then each with its equation and source. `OBJECTIVES` holds
them by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from webrl.config import ActorConfig
from webrl.errors import TrainingError
from webrl.types import StepRecord

DISCOUNT = 0.9
"""Of the returns of `webrl_released` and `filtered_bc`, in the released code."""
STEP_COST = 0.05
POSITIVE, NEGATIVE = 1.0, -0.6
"""Advantages of `webrl_released`."""
MAX_WEIGHT = 20.0
"""Of a step under `awr`."""
_STD_FLOOR = 1e-4
"""As in TRL."""
_MIN_ATTEMPTS = 2


@dataclass(frozen=True)
class LossInput:
    """The samples of one micro-batch, B steps with N action tokens in all."""

    logprobs: Tensor
    """[N] log π(token), with gradient."""
    ref_logprobs: Tensor
    """[N] log π_ref(token), from the score-once pass; zeros if the objective needs none."""
    old_logprobs: Tensor
    """[N] log-probabilities under the sampling policy; the reference's for imported text."""
    sample: Tensor
    """[N] which step (0..B-1) a token belongs to."""
    advantage: Tensor
    """[B] from the objective's `advantages`."""

    def sum_tokens(self, values: Tensor) -> Tensor:
        """[N] -> [B] sums over each step's tokens."""
        return values.new_zeros(self.advantage.shape[0]).index_add(0, self.sample, values)

    def num_tokens(self) -> Tensor:
        """[B] action tokens of each step."""
        return self.sum_tokens(self.logprobs.new_ones(self.logprobs.shape[0]))


@dataclass(frozen=True)
class LossOutput:
    """Per-step losses; the trainer averages them over the batch of all ranks."""

    loss: Tensor
    """[B] loss of each step, with gradient."""
    metrics: dict[str, Tensor]
    """name -> [B] detached values, averaged over the batch for the log."""


@dataclass(frozen=True)
class Objective:
    """A named actor loss."""

    advantages: Callable[[Sequence[StepRecord], ActorConfig], list[float]]
    """One number per record: its advantage, or the weight the loss multiplies with."""
    loss: Callable[[LossInput, ActorConfig], LossOutput]
    """The pure loss function."""
    trains: Callable[[float], bool] = bool
    """False if the loss of a step with this advantage is exactly zero for every policy: no pass is spent on it. By
    default the loss is a multiple of the advantage."""
    needs_reference: bool = True
    """True if `ref_logprobs` must be there."""
    batches_active: bool = False
    """True if batches are made of the steps that train; False: the others count in a batch's mean."""


def outcome_of(record: StepRecord) -> float:
    """r(s_T) as a float."""
    if record.outcome is None:
        raise TrainingError(f"step {record.step_id!r} has no outcome; label its trajectory first (`webrl label`)")
    return float(record.outcome)


def value_of(record: StepRecord) -> float:
    """V(s_t)."""
    if record.value is None:
        raise TrainingError(f"step {record.step_id!r} has no value; run score_values with the new critic first")
    return record.value


def mixed_advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """The paper's advantage of each record (arXiv 2411.02337, Eq. 10).

        A(s_t,a_t,I) = λ (r_t + V(s_{t+1},I) − V(s_t,I)) + (1 − λ) (r(s_T) − V(s_t,I)),  λ = 0.5

    Stated by us: after the last step V is 0 and r_t carries the outcome, so that A = r(s_T) − V(s_T); where a replayed
    step's next state has no value, λ = 0 is used for it.

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


def webrl_loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """The paper's actor loss (arXiv 2411.02337, Eq. 7): the squared error of the scaled log-ratio to the advantage.

        L(π) = E_ν[ (β log(π(a|s,I) / π_ref(a|s,I)) − A(s,a,I))² ]

    log π(a|s,I) is the sum over the action's tokens, end token included. Steps of either sign train: a negative
    advantage pushes the action's probability below the reference's. Left out: nothing. Stated by us: the paper names
    no β for its main run (`actor.beta`, 1.0 unless set).
    """
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    error = (config.beta or 1.0) * log_ratio - batch.advantage
    return LossOutput(loss=error.square(), metrics={"residual": error.detach().abs()})


def scaled_loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """`webrl_loss` that moves likely and unlikely actions alike, with no pull back past the target.

        L(π) = E_ν[ m · (β r − A)² / (F + ε) ],  r = log(π(a|s,I) / π_ref(a|s,I)),  A as in `webrl`
        F = Σ_i (1 − π(a_i | s, a_<i))² over the action's tokens; m = 0 where A (β r − A) > 0, else 1; no gradient
        through either

    Why F: the gradient of log π(a|s) by the logits has a squared norm between F and 2F, so that one step of `webrl`
    moves an unlikely action by nats and a likely one by nothing. Dividing by it is the normalised least-mean-squares
    step (Nagumo and Noda 1967), with ε = `actor.curvature_floor` as its regulariser. Why m: actions share their
    weights, and what raises a success drags unlikely failures below their targets; squared, their way back up outweighs
    everything else in a batch (docs/objective.md). The minimum is the paper's, β r = A, wherever it can be reached.
    β is `actor.beta`, 0.3 unless set.
    """
    log_ratio = batch.sum_tokens(batch.logprobs - batch.ref_logprobs)  # [B]
    error = (config.beta or 0.3) * log_ratio - batch.advantage
    mask = (batch.advantage * error.detach() <= 0).to(error.dtype)
    curvature = batch.sum_tokens(batch.logprobs.detach().expm1().square())  # [B] F
    return LossOutput(
        loss=mask * error.square() / (curvature + config.curvature_floor),
        metrics={"residual": error.detach().abs(), "mask_fraction": mask, "curvature": curvature},
    )


def monte_carlo_return(record: StepRecord) -> float:
    """m_t = Σ_{i=t}^{T} 0.9^{i−t} s: 4.1, 3.44, … 1 for a successful trajectory of five steps."""
    remaining = record.num_steps - record.index
    return outcome_of(record) * (1 - DISCOUNT**remaining) / (1 - DISCOUNT)


def released_advantages(records: Sequence[StepRecord], _config: ActorConfig) -> list[float]:
    """+1 or −0.6 for each record, as in the released code (`released_loss`).

    A failed step whose value rises by at least 0.05 trains with A = +1. V(s') of a last step is that of the prompt one
    round later with the last page again (`next_prompt_ids`), or V(s) where a record has none.
    """
    chosen = []
    for record in records:
        value = value_of(record)
        unknown = record.next_value is None or (record.is_last and not record.next_prompt_ids)
        next_value = value if unknown or record.next_value is None else record.next_value
        raw = next_value - value - STEP_COST + outcome_of(record) + monte_carlo_return(record)
        chosen.append(POSITIVE if max(-1.0, min(1.0, raw)) >= 0 else NEGATIVE)
    return chosen


def released_loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """The released code's actor loss (github.com/THUDM/WebRL), which differs from the paper in every term.

    With s the trajectory's 0/1 score, m_t = Σ_{i≥t} 0.9^{i−t} s, V the value (there, of two heads the smaller), ℓ and
    ℓ_ref the summed log-probabilities, n the number of action tokens, p_ref = exp(ℓ_ref / n):

        A = clamp(V(s') − V(s) − 0.05 + s + m_t, −1, 1);  A ← +1 if A ≥ 0 else −0.6
        b = 5 if (A ≥ 0 and p_ref ≥ 0.8) or (A < 0 and p_ref < 0.9) else 1
        ρ = (ℓ − ℓ_ref) / n;  β = min(b, |A/ρ|) without gradient
        L = mean of [A > 0] · SmoothL1(β ρ, A) / β

    So a step of negative advantage has exactly zero loss and gradient; `actor.beta` is not used. The released
    normaliser N sums n over the masked samples of a micro-batch, which is 1 there: N = n here, so that the loss does
    not depend on packing. The mean runs over all steps of the batch, as there.
    """
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


def best_trajectories(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """1 for steps of the best trajectories, 0 for the rest (paper §4.1, the baseline `filtered_bc`).

    A trajectory's score is its discounted return 0.9^{T−1} r(s_T): among successes the shorter ones rank higher. Kept
    are trajectories whose score is positive and at least the `percentile`-th (70th, paper) of all. Left out: the paper
    does not say how ties of a 0/1 reward are broken; the discount is ours (the released code's).
    """
    scores = {r.trajectory_id: outcome_of(r) * DISCOUNT ** (r.num_steps - 1) for r in records}
    threshold = float(np.percentile(list(scores.values()), config.percentile))
    return [float(0 < scores[r.trajectory_id] >= threshold) for r in records]


def likelihood_loss(batch: LossInput, _config: ActorConfig) -> LossOutput:
    """The supervised loss of each step: L = −(1/n) Σ_i log π(a_i | s, a_<i), the mean over its action tokens.

    `sft` takes demonstrations and successes (π_0, paper §3.3, phase 0, and the outcome model), `filtered_bc` the best
    trajectories. Left out: the token mean over a micro-batch of common SFT libraries, which would make the result
    depend on the packing.
    """
    mean = batch.sum_tokens(batch.logprobs) / batch.num_tokens().clamp(min=1)
    return LossOutput(loss=-batch.advantage * mean, metrics={"perplexity": (-mean.detach()).exp()})


def awr_weights(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """The weight min(exp(A / β), 20) of each step: advantage-weighted regression, a baseline of the paper.

        L(π) = −E[ min(exp(A / β), 20) · Σ_i log π(a_i | s, a_<i) ],  A = r(s_T) − V(s_t, I)

    (Peng et al. 2019, arXiv 1910.00177, Eq. 11.) β is `actor.beta`, 1 unless set. Every step trains, failed ones with a
    small weight. Left out: TD(λ) returns (the reward is 0/1 at the end, so the Monte-Carlo return is exact) and their
    replay of all past policies (our replay buffer decides).
    """
    beta = config.beta or 1.0
    cap = beta * math.log(MAX_WEIGHT)  # before the exponential, which could overflow
    return [math.exp(min(outcome_of(r) - value_of(r), cap) / beta) for r in records]


def weighted_loss(batch: LossInput, _config: ActorConfig, *, metric: str) -> LossOutput:
    """Weighted negative log-likelihood of each step, summed over its tokens; the weights are logged as `metric`."""
    return LossOutput(loss=-batch.advantage * batch.sum_tokens(batch.logprobs), metrics={metric: batch.advantage})


def digirl_weights(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """1 for steps that pass both filters, 0 for the rest: DigiRL's filtered advantage-weighted imitation.

    (Bai et al. 2024, arXiv 2406.11896 §4; a baseline of the paper.) Doubly robust step advantage (Eq. 4.3), with H the
    trajectory's number of steps and λ = `actor.gae_lambda`:

        A_step(s_h, a_h) = λ^{H−h} r(s_H) + (1 − λ^{H−h}) (V(s_{h+1}) + r(s_h, a_h) − V(s_h))

    Instruction-level filter (§4.2): trajectories are ranked by A_instr = r(s_H) − V_instr(c), and those at or above the
    `percentile`-th are kept, so that instructions that are neither solved already nor out of reach are trained on.
    The actor is then trained by L(π) = −Σ_i log π(a_i | s, a_<i) on their steps with A_step ≥ 1/H (§4.4's hard filter).
    Our choices: V_instr(c) is the critic's value of the trajectory's first state (ours are one network); where the
    first step or a next value is missing (replay), the own state's value and λ^{H−h} = 1 are used. h counts from 1, so
    that the last step's advantage is r(s_H); ≥ replaces >, so that one-step successes train. Left out: their separate
    instruction-level network and automatic curriculum.
    """
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
    """DigiRL's doubly robust advantage of one step."""
    outcome = outcome_of(record)
    if record.is_last or record.next_value is None:
        return outcome
    share = lam ** (record.num_steps - 1 - record.index)
    return share * outcome + (1 - share) * (record.next_value - value_of(record))


def group_advantages(records: Sequence[StepRecord], config: ActorConfig) -> list[float]:
    """Of each record its trajectory's advantage in its group; a trajectory counts once, however many steps it has.

        A = (r − mean of the group's r) / s  (a group: the attempts of one phase at one task, `StepRecord.group`)

    `actor.scale_rewards` chooses s, with TRL's names and formula: `none` is 1 (Dr. GRPO: a group's deviation gives very
    easy and very hard tasks more weight), `group` the group's sample standard deviation + 1e-4 (Shao et al., Eq. 3),
    `batch` that of all attempts of the phase + 1e-4. A group whose attempts all end alike has A = 0: batches are made
    of the other groups' steps (DAPO, arXiv 2503.14476 §3.2).

    Attempts that failed for reasons other than the agent, and unjudged ones, have no outcome: there are no records
    of them, and neither the mean nor s includes them. A group counts if at least two attempts are left. Attempts are
    independent, so the rest of a group is distributed as a whole one is; leaving the whole group out would only make
    tasks rarer whose pages fail more often.

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
            f"none of {len(groups)} tasks has two judged attempts, but grpo learns from their differences: play each "
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


def clipped_loss(batch: LossInput, config: ActorConfig) -> LossOutput:
    """Group-relative policy optimisation (Shao et al. 2024, arXiv 2402.03300, Eq. 3) in the form of Dr. GRPO.

        ρ_i = π(a_i | s, a_<i) / π_old(a_i | s, a_<i)
        L = −(1/L_max) Σ_i min(ρ_i A, clip(ρ_i, 1 − ε_low, 1 + ε_high) A),  A of `group_advantages`

    The normaliser is the constant `actor.length_norm` (arXiv 2503.20783 §3: dividing by an answer's own length favours
    long wrong answers). Left out: the KL term (ε clips; `webrl` is the KL objective).
    """
    advantage = batch.advantage[batch.sample]  # [N]
    ratio = (batch.logprobs - batch.old_logprobs).exp()
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantage
    fraction = batch.sum_tokens((clipped < unclipped).to(ratio.dtype)) / batch.num_tokens().clamp(min=1)
    loss = -batch.sum_tokens(torch.minimum(unclipped, clipped)) / config.length_norm
    return LossOutput(loss=loss, metrics={"clip_fraction": fraction})


OBJECTIVES = {
    # Every step trains: with A = 0 the loss is still the squared distance to the reference.
    "webrl": Objective(advantages=mixed_advantages, trains=lambda _: True, loss=webrl_loss),
    "webrl_scaled": Objective(advantages=mixed_advantages, trains=lambda _: True, loss=scaled_loss),
    # The mask makes the loss of all other advantages zero.
    "webrl_released": Objective(advantages=released_advantages, trains=lambda a: a > 0, loss=released_loss),
    # Demonstrations and successes; steps without an outcome are taken to be demonstrations.
    "sft": Objective(
        advantages=lambda records, _: [0.0 if record.outcome == 0 else 1.0 for record in records],
        loss=likelihood_loss,
        needs_reference=False,
    ),
    "filtered_bc": Objective(advantages=best_trajectories, loss=likelihood_loss, needs_reference=False),
    # None of the phase's own steps: the update imitates `replay.demos` only, in as many steps as another objective
    # takes. The control of every claim that reinforcement learning adds to supervised learning.
    "imitation": Objective(
        advantages=lambda records, _: [0.0] * len(records),
        loss=lambda batch, _: LossOutput(loss=batch.sum_tokens(batch.logprobs) * 0, metrics={}),
        needs_reference=False,
    ),
    "awr": Objective(awr_weights, partial(weighted_loss, metric="weight"), needs_reference=False),
    "digirl": Objective(digirl_weights, partial(weighted_loss, metric="mask_fraction"), needs_reference=False),
    "grpo": Objective(group_advantages, clipped_loss, needs_reference=False, batches_active=True),
}
"""By the names of `actor.objective`."""
