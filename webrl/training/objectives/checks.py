"""What an objective asks of its config, and of a record: an error says which stage should have filled it."""

from __future__ import annotations

from webrl.config import ActorConfig
from webrl.errors import TrainingError
from webrl.types import StepRecord


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
