"""Actor losses: what an objective takes, needs and gives, and `get_objective`, which picks one by its name.

A file next to this one holds one, or those that differ by a line, in its `OBJECTIVES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from webrl.config import ActorConfig
from webrl.errors import TrainingError, UsageError
from webrl.types import StepRecord

_HOMES = {
    "webrl": "webrl", "webrl_scaled": "webrl", "webrl_released": "webrl_released", "sft": "imitation",
    "imitation": "imitation", "filtered_bc": "imitation", "awr": "baselines", "digirl": "baselines", "grpo": "grpo",
}  # fmt: skip
"""The file of each."""


@dataclass(frozen=True)
class LossInput:
    """The samples of one micro-batch, B steps with N action tokens in all."""

    logprobs: Tensor
    """[N] log π(token), with gradient."""
    ref_logprobs: Tensor
    """[N] log π_ref(token), from the score-once pass; zeros where the objective needs none."""
    old_logprobs: Tensor
    """[N] log-probabilities under the sampling policy; the reference's for imported text."""
    sample: Tensor
    """[N] which step (0..B-1) a token belongs to."""
    advantage: Tensor
    """[B] from the objective's `advantages`."""

    @property
    def num_samples(self) -> int:
        """B."""
        return self.advantage.shape[0]

    def sum_tokens(self, values: Tensor) -> Tensor:
        """[N] -> [B] sums over each step's tokens."""
        return values.new_zeros(self.num_samples).index_add(0, self.sample, values)

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


def beta_of(config: ActorConfig, own: float) -> float:
    """`actor.beta`, or the objective's own where none is set."""
    return own if config.beta is None else config.beta


def get_objective(name: str) -> Objective:
    """Return the objective of a name.

    Raises:
        UsageError: unknown name.
    """
    if name not in _HOMES:
        raise UsageError(f"unknown objective {name!r}; known: {', '.join(_HOMES)}")
    objective: Objective = import_module(f"{__name__}.{_HOMES[name]}").OBJECTIVES[name]
    return objective
