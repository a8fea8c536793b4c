"""Actor losses, one file each; `get_objective` picks one by the name in the config."""

from __future__ import annotations

from importlib import import_module

from webrl.errors import UsageError
from webrl.training.objectives.interface import LossInput, LossOutput, Objective

NAMES = (
    "webrl", "webrl_scaled", "webrl_kl", "webrl_released", "sft", "imitation", "filtered_bc", "awr", "digirl", "grpo",
)  # fmt: skip

__all__ = ["NAMES", "LossInput", "LossOutput", "Objective", "get_objective"]


def get_objective(name: str) -> Objective:
    """The objective of `webrl/training/objectives/<name>.py`.

    Raises:
        UsageError: unknown name.
    """
    if name not in NAMES:
        raise UsageError(f"unknown objective {name!r}; known: {', '.join(NAMES)}")
    objective: Objective = import_module(f"webrl.training.objectives.{name}").OBJECTIVE
    return objective
