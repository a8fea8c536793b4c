"""What sampling and training recorded of a step: log-probabilities then and later, value, advantage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from webrl.config import ActorConfig
from webrl.errors import DataError, TrainingError
from webrl.replay.score import read_scores
from webrl.training.objectives import get_objective
from webrl.types import Step, StepRecord, Trajectory
from webrl.view.index import Index


@dataclass(frozen=True)
class Scored:
    """Log-probabilities of a step's answer under one actor."""

    actor: str
    """`after phase 1`."""
    is_sampling: bool
    """The actor that gave the answer; scored again by the trainer, whose figures differ in their last digits."""
    logprobs: tuple[float, ...]
    """[A] one a token, the end token's included."""

    @property
    def total(self) -> float:
        """Log π(a|s): the sum."""
        return math.fsum(self.logprobs)

    @property
    def mean_probability(self) -> float:
        """Geometric mean of the tokens' probabilities."""
        return math.exp(self.total / len(self.logprobs)) if self.logprobs else 1.0


@dataclass(frozen=True)
class Trained:
    """A step as a training sample."""

    phase: int
    source: str
    """`current`, `replay` or `demonstration`."""
    outcome: int | None
    value: float | None
    next_value: float | None
    advantage: float | None
    """What the run's objective makes of it; None where it depends on other samples too, or something is missing."""


def later_scores(path: Path, names: Mapping[str, str], trajectory: Trajectory) -> tuple[dict[int, list[Scored]], str]:
    """Scores by step from a run's score cache; why there are none, or "".

    Args:
        names: fingerprint of an actor -> what it is, in the order of training (`policy_names`).
    """
    if not path.is_file() or not names:
        return {}, ""
    steps = [(_step_id(trajectory, s), s.prompt_ids, s.action_ids, s.screenshot_sha256) for s in trajectory.steps]
    try:
        found = read_scores(path, names, steps)
    except DataError as error:
        return {}, str(error)
    by_step = {}
    for step in trajectory.steps:
        scores = [
            Scored(name, fingerprint == trajectory.policy, found[fingerprint, _step_id(trajectory, step)])
            for fingerprint, name in names.items()
            if (fingerprint, _step_id(trajectory, step)) in found
        ]
        by_step[step.index] = [score for score in scores if len(score.logprobs) == len(step.action_ids)]
    return by_step, ""


def trained_on(index: Index, run: int, trajectory: Trajectory, step: Step, config: ActorConfig | None) -> list[Trained]:
    """The step in the training data of each phase that used it."""
    return [
        Trained(phase, r.source, r.outcome, r.value, r.next_value, _advantage(r, config))
        for phase, r in index.read_steps(run, _step_id(trajectory, step))
        if r.action_ids == step.action_ids
    ]


def _advantage(record: StepRecord, config: ActorConfig | None) -> float | None:
    if config is None:
        return None
    objective = get_objective(config.objective)
    if objective.is_relative:
        return None
    try:
        return objective.advantages([record], config)[0]
    except TrainingError:  # not labelled, or not valued, yet
        return None


def _step_id(trajectory: Trajectory, step: Step) -> str:
    return f"{trajectory.trajectory_id}:{step.index}"
