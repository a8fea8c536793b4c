"""One optimizer step on whatever accelerate gives: a plain module, DDP, FSDP2 or a DeepSpeed engine.

accelerate accumulates by counting its own data loader; here a batch is what the objective says it is, so the
boundary is set explicitly and every gradient is a sum over micro-batches of the batch's mean loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from webrl.config import OptimConfig


class Engine:
    """Model and optimizer after `accelerator.prepare`, with an explicit accumulation boundary."""

    def __init__(self, model: nn.Module, config: OptimConfig, device: str) -> None:
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=False)  # critic and actor may differ in precision
        self.accelerator = Accelerator(
            mixed_precision="bf16" if config.precision == "bf16" else "no", cpu=device == "cpu"
        )
        self.config = config
        optimizer = make_optimizer(model, config)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    @property
    def num_ranks(self) -> int:
        """Processes of the job."""
        return int(self.accelerator.num_processes)

    @property
    def rank(self) -> int:
        """Number of this process."""
        return int(self.accelerator.process_index)

    @property
    def is_main(self) -> bool:
        """True on the process that writes files and speaks."""
        return bool(self.accelerator.is_main_process)

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Around forward and backward of one row: gradients are exchanged on the last row only."""
        if is_last or self.num_ranks == 1:
            yield
        else:
            with self.accelerator.no_sync(self.model):
                yield

    def backward(self, loss: Tensor) -> None:
        """Accumulate this rank's gradient; `loss` is the row's share of the batch's mean loss.

        Engines average gradients over ranks, and a batch's loss is a sum over ranks: hence the factor.
        """
        self.accelerator.backward(loss * self.num_ranks)

    def step(self, rate: float) -> float:
        """Clip, update, clear; gives the gradient norm before clipping. A non-finite norm leaves the weights alone."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
        value = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
        if torch.isfinite(torch.tensor(value)):
            self.optimizer.step()
        self.optimizer.zero_grad()
        return value

    def unwrapped(self) -> Any:
        """The module that was given in."""
        return self.accelerator.unwrap_model(self.model)

    def reduce_sums(self, sums: dict[str, float]) -> dict[str, float]:
        """Add up over ranks; every rank must hold the same keys."""
        if self.num_ranks == 1:
            return sums
        keys = sorted(sums)
        tensor = torch.tensor([sums[k] for k in keys], dtype=torch.float64, device=self.accelerator.device)
        total = self.accelerator.reduce(tensor, reduction="sum")
        return dict(zip(keys, total.tolist(), strict=True))


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """AdamW over the trainable weights; matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
