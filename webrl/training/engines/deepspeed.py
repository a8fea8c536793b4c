"""DeepSpeed ZeRO-1/2/3 with optional offload, through accelerate.

The boundary of a batch is set on the engine itself. `gradient_accumulation_steps` is 2 in DeepSpeed's own config
because at 1 it keeps no accumulation buffers under CPU offload; its scaling of the loss is switched off.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from webrl.config import OptimConfig
from webrl.config.extras import require
from webrl.runs.machine import free_port
from webrl.training.engines.ddp import Engine, forget_accelerator, make_optimizer

logger = logging.getLogger(__name__)


class DeepSpeedEngine(Engine):
    """A ZeRO engine."""

    wants = "DeepSpeedEngine"

    def make_accelerator(self, device: str) -> Any:
        """An accelerator with the DeepSpeed plugin; `cpu=True` would silently replace the engine by DDP."""
        require("deepspeed", f"engine={self.plan.name}")
        from accelerate import Accelerator, DeepSpeedPlugin
        from accelerate.utils import InitProcessGroupKwargs

        forget_accelerator()
        from torch.utils.cpp_extension import get_default_build_root

        # A lock in torch's folder of compiled extensions is of a build that is running, or of one that was killed
        # (`torch.utils.file_baton`): torch waits for its end forever and silently.
        for lock in sorted(Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root()).glob("**/lock")):
            logger.warning("%s: waiting for the build that holds this lock; if nothing builds, remove the file", lock)
        if "LOCAL_RANK" not in os.environ:  # a single process, which no launcher started
            os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        plugin = DeepSpeedPlugin(hf_ds_config=deepspeed_config(self.config, self.plan.options, device))
        backend = InitProcessGroupKwargs(backend="gloo" if device == "cpu" else "nccl")
        return Accelerator(
            mixed_precision="bf16" if self.config.precision == "bf16" else "no",
            deepspeed_plugin=plugin,
            gradient_accumulation_steps=2,  # as in DeepSpeed's config, see above
            kwargs_handlers=[backend],
        )

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """(engine, its optimizer)."""
        from transformers.integrations.deepspeed import unset_hf_deepspeed_config

        engine, optimizer = self.accelerator.prepare(model, make_optimizer(model, self.config))
        # else every later from_pretrained of this process would shard its model over all ranks, and wait for them
        unset_hf_deepspeed_config()
        return engine, optimizer

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Tell the engine whether the batch ends with this row."""
        self.model.set_gradient_accumulation_boundary(is_last)
        yield

    def backward(self, loss: Tensor) -> None:
        """As in `Engine.backward`; the engine averages over ranks."""
        self.model.backward(loss * self.num_ranks, scale_wrt_gas=False)

    def step(self, rate: float, loss: Tensor | None = None) -> float:
        """The engine clips, updates and clears in one call, so a non-finite norm is known after the update only."""
        if loss is not None and not loss.isfinite():
            return math.nan
        for group in self.model.optimizer.param_groups:
            group["lr"] = rate
        self.model.step()
        norm = self.model.get_global_grad_norm()
        return float(norm) if norm is not None else math.nan

    def full_state(self) -> dict[str, Tensor]:
        """float32 master weights, gathered from all ranks one weight at a time."""
        from deepspeed.utils import safe_get_full_fp32_param

        state: dict[str, Tensor] = {}
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad:
                whole = safe_get_full_fp32_param(parameter)  # a collective call under ZeRO
                if self.is_main:
                    state[name] = (parameter if whole is None else whole).detach().to("cpu", torch.float32).clone()
        return state

    def close(self) -> None:
        """Free model and optimizer.

        Hooks keep a DeepSpeed engine alive as long as the process (0.19: weights, gradients, master weights, Adam's
        moments), so its parts are taken from it.
        """
        super().close()  # which has the engine destroy itself
        for parameter in self.module.parameters():
            parameter.__dict__.clear()  # ZeRO-3 keeps the shard as an attribute
            parameter.grad, parameter.data = None, torch.empty(0)
        zero = self.model.optimizer
        for part in (getattr(zero, "optimizer", None), zero, self.model):
            if part is not None:
                part.__dict__.clear()


def deepspeed_config(config: OptimConfig, options: dict[str, Any], device: str) -> dict[str, Any]:
    """DeepSpeed's JSON from the keys of accelerate's `deepspeed_config`."""
    stage = int(options.get("zero_stage", 2))
    zero: dict[str, Any] = {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": device != "cpu",
        "reduce_bucket_size": 50_000_000,
    }
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": 50_000_000, "stage3_param_persistence_threshold": 100_000}
    for part in ("optimizer", "param"):
        target = options.get(f"offload_{part}_device", "none")
        if target not in (None, "none") and (part == "optimizer" or stage == 3):
            offload = {"device": target, "pin_memory": device != "cpu"}
            if target == "nvme":
                offload["nvme_path"] = options.get(f"offload_{part}_nvme_path")
            if part == "optimizer" and "offload_optimizer_ratio" in options:
                offload["ratio"] = options["offload_optimizer_ratio"]
            zero[f"offload_{part}"] = offload
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": config.precision == "bf16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": "offload_optimizer" in zero,
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }
