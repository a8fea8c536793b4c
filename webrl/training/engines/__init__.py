"""Opens the engine that makes the optimizer steps, by the name in the config; one file an engine."""

from __future__ import annotations

import os

from torch import nn

from webrl.config import OptimConfig
from webrl.config.resources import load_plan
from webrl.runs.clock import spent_on
from webrl.training.engines.ddp import Engine


@spent_on("model files")
def open_engine(model: nn.Module, config: OptimConfig, device: str) -> Engine:
    """Open the engine that `config.engine` names.

    Raises:
        UsageError: unknown name.
        TrainingError: it does not apply here.
    """
    plan = load_plan(config.engine)
    if device == "cpu":  # set before DeepSpeed's first import (accelerate imports it too), or it prints its guess
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if plan.kind == "deepspeed":
        from webrl.training.engines.deepspeed import DeepSpeedEngine

        return DeepSpeedEngine(model, config, device, plan)
    if plan.kind == "fsdp2":
        from webrl.training.engines.fsdp import FsdpEngine

        return FsdpEngine(model, config, device, plan)
    if config.precision == "bf16":
        from webrl.training.engines.bf16 import Bf16Engine

        return Bf16Engine(model, config, device, plan)
    return Engine(model, config, device, plan)
