"""One optimizer step on one process or on DDP replicas, through accelerate, with an explicit batch boundary.

accelerate accumulates by counting its own data loader; here a batch is what the objective says it is, so the
boundary is set explicitly and every gradient is a sum over micro-batches of the batch's mean loss. bfloat16,
DeepSpeed and FSDP2 are subclasses in the files next to this one. The requested engine is asserted: on
this stack a plugin that does not apply falls back silently to DDP, or to replicas that are never synchronised.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from webrl.config import OptimConfig
from webrl.config.resources import EnginePlan
from webrl.errors import TrainingError
from webrl.llm.products import use_products
from webrl.training.devices import Gradients, add_gradients, num_row_threads


class Engine:
    """Model and optimizer after `accelerator.prepare`."""

    wants = "DistributedDataParallel"
    """Class of the prepared model on several processes (DeepSpeed: on one, too)."""
    exchanges_last = True
    """True if the gradients are exchanged with the batch's last row."""

    def __init__(self, model: nn.Module, config: OptimConfig, device: str, plan: EnginePlan) -> None:
        self.config, self.plan, self.module = config, plan, model
        self.accelerator = self.make_accelerator(device)
        self.num_ranks, self.rank = int(self.accelerator.num_processes), int(self.accelerator.process_index)
        self.is_main = bool(self.accelerator.is_main_process)
        """True on the process that writes files and logs."""
        self.model, self.optimizer = self.prepare(model)
        self.check_type()
        is_plain = type(self) is Engine and self.num_ranks == 1
        self.num_threads = num_row_threads(model, self.accelerator.device) if is_plain else 1
        """Rows that are computed at a time, by `gradients` in a thread each; 1: one after the other, by `backward`."""

    def make_accelerator(self, device: str) -> Any:
        """The accelerator, without autocast."""
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs

        forget_accelerator()
        return Accelerator(
            mixed_precision="no",
            cpu=device == "cpu",
            kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
        )

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """Return (model, optimizer), ready to train."""
        use_products(model)
        prepared: tuple[Any, Any] = self.accelerator.prepare(model, make_optimizer(model, self.config))
        return prepared

    def check_type(self) -> None:
        """Raise TrainingError for another engine than the requested one, which accelerate silently replaced."""
        found = type(self.model).__name__
        if (self.num_ranks > 1 or self.plan.kind == "deepspeed") and not found.endswith(self.wants):
            raise TrainingError(
                f"engine {self.plan.name!r} should have made a {self.wants}, but accelerate made {found}: the plugin "
                "does not apply here (device, number of processes, or another accelerate config in the environment)"
            )

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Surround forward and backward of one row."""
        if is_last or self.num_ranks == 1 or not self.exchanges_last:
            yield
        else:
            with self.accelerator.no_sync(self.model):
                yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate this rank's gradient; `loss` is the row's share of the batch's mean loss.

        Engines average gradients over ranks, and a batch's loss is a sum over ranks: hence the factor.
        """
        self.accelerator.backward(loss * self.num_ranks)

    def gradients(self, loss: Tensor) -> Gradients:
        """Return the gradients that `backward` would add; callable from any thread."""
        return list(
            torch.autograd.grad(loss, [p for p in self.module.parameters() if p.requires_grad], allow_unused=True)
        )

    def take(self, gradients: Gradients) -> None:
        """Add to the accumulated gradient."""
        trained = [p for p in self.module.parameters() if p.requires_grad]
        for parameter, total in zip(trained, add_gradients([p.grad for p in trained], gradients), strict=True):
            parameter.grad = total

    def step(self, rate: float, loss: Tensor | None = None) -> float:
        """Clip, update, clear; return the gradient norm before clipping. A non-finite norm (not under DeepSpeed) or
        loss leaves the weights alone; the trainer then ends the run without saving them.

        Args:
            loss: of the batch, the same on all ranks: finite gradients do not tell that it is not. None: not looked at.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        found = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)  # over all shards
        if math.isfinite(norm) and (loss is None or loss.isfinite()):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    def close(self) -> None:
        """Free model and optimizer: the next model is loaded into the same process."""
        self.accelerator.free_memory()

    def save_state(self, folder: Path) -> None:
        """Write the full training state; all ranks call it."""
        self.accelerator.save_state(str(folder))

    def load_state(self, folder: Path) -> None:
        """Read it back; all ranks call it."""
        self.accelerator.load_state(str(folder))

    def full_state(self) -> dict[str, Tensor]:
        """The trained weights by name in float32, whole, on the main process ({} elsewhere); all ranks call it."""
        if not self.is_main:
            return {}
        return {n: p.detach().cpu() for n, p in self.module.named_parameters() if p.requires_grad}

    def reduce_sums(self, sums: dict[str, Tensor]) -> dict[str, Tensor]:
        """Scalars added up over ranks, still on their device; every rank must hold the same keys."""
        keys = sorted(sums)
        total = torch.stack([sums[k].to(torch.float64) for k in keys])
        if self.num_ranks > 1:
            total = self.accelerator.reduce(total, reduction="sum")
        return dict(zip(keys, total, strict=True))

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.accelerator.wait_for_everyone()


def forget_accelerator() -> None:
    """Let a further accelerator be made in this process: critic and actor may differ in precision and engine."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType

    AcceleratorState._reset_state(reset_partial_state=False)
    GradientState._reset_state()
    for name in ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP"):
        os.environ.pop(name, None)  # left by an earlier engine's plugin, or by `accelerate launch`: our config decides
    state = PartialState._shared_state
    if state.get("distributed_type") == DistributedType.DEEPSPEED:
        several = DistributedType.MULTI_CPU if state["device"].type == "cpu" else DistributedType.MULTI_GPU
        state["distributed_type"] = several if state["num_processes"] > 1 else DistributedType.NO


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the trainable weights; matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
