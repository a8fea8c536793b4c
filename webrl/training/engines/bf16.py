"""bfloat16 weights that compute, float32 masters that learn: `precision: bf16` on one process, or on replicas.

Autocast over float32 weights would cast weights and activations anew in every layer, keep norms and residuals in
float32, and hold frozen weights (a LoRA's base) in float32 as well. Here a row is computed as scoring computes it, so
that the log-ratio of an untouched policy is zero; its gradients are added up in float32, and AdamW's step, which is
smaller than a rounding of bfloat16, goes to the masters. Per trained weight 18 bytes: 2 the weight, 4 each its
master, gradient and two moments, and 2 more for a row's own gradient as its activations are freed; per frozen weight 2.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from webrl.errors import TrainingError
from webrl.training.engines.ddp import Engine, make_optimizer
from webrl.training.precision import cast_weights


class Bf16Engine(Engine):
    """One process, or replicas whose gradients are summed in float32."""

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """(the model in bfloat16, AdamW over its float32 masters)."""
        device = self.accelerator.device
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        masters = nn.ParameterList(p.detach().to(device, torch.float32, copy=True) for p in trained.values())
        cast_weights(model)
        model.to(device)
        self.names = list(trained)
        self.weights = [p for _, p in model.named_parameters() if p.requires_grad]
        if self.num_ranks > 1:
            for master in masters:
                torch.distributed.broadcast(master.data, src=0)
        # In evaluation mode nothing is wrapped around them; the masters are what a training state holds.
        self.masters = self.accelerator.prepare_model(masters, evaluation_mode=True)
        self._refresh()
        return model, self.accelerator.prepare_optimizer(make_optimizer(masters, self.config))

    def check_type(self) -> None:
        """Replicas need a process group; nothing else can be replaced in silence."""
        if self.num_ranks > 1 and not torch.distributed.is_initialized():
            raise TrainingError(f"engine {self.plan.name!r} has {self.num_ranks} processes but no process group")

    @contextlib.contextmanager
    def micro_batch(self, is_last: bool) -> Iterator[None]:
        """Gradients are exchanged by `clip`, once a batch."""
        del is_last
        yield

    def backward(self, loss: Tensor) -> None:
        """As in `Engine.backward`; gradients are summed over ranks."""
        loss.backward()
        self._hand_over()

    def clip(self) -> float:
        """Norm over the masters' gradients, after the exchange."""
        if self.num_ranks > 1:
            self._exchange()
        return float(torch.nn.utils.clip_grad_norm_(self.masters.parameters(), self.config.max_grad_norm))

    def step(self, rate: float) -> float:
        """As in `Engine.step`; then the weights are the masters, rounded."""
        norm = super().step(rate)
        self._refresh()
        return norm

    def load_state(self, folder: Path) -> None:
        """Read the masters back, and round them into the weights.

        Raises:
            TrainingError: the state holds something else.
        """
        try:
            super().load_state(folder)
        except RuntimeError as error:
            raise TrainingError(
                f"{folder} does not hold this model's float32 masters, another version of webrl may have written it; "
                f"delete {folder.parent} to start anew"
            ) from error
        self._refresh()

    def full_state(self) -> dict[str, Tensor]:
        """The masters by the weights' names, on the main process."""
        if not self.is_main:
            return {}
        return {name: p.detach().cpu() for name, p in zip(self.names, self.masters, strict=True)}

    @torch.no_grad()
    def _hand_over(self) -> None:
        """Add the row's gradients to the masters', all weights at once: a hook on each weight costs the host more
        than a small model's kernels take.
        """
        fresh = [(m, w.grad) for m, w in zip(self.masters, self.weights, strict=True) if w.grad is not None]
        sums = [(m.grad, g) for m, g in fresh if m.grad is not None]
        if sums:
            torch._foreach_add_([total for total, _ in sums], [g for _, g in sums])
        copies = [(m, torch.empty_like(m), g) for m, g in fresh if m.grad is None]
        if copies:
            torch._foreach_copy_([total for _, total, _ in copies], [g for *_, g in copies])
        for master, total, _ in copies:
            master.grad = total
        for weight in self.weights:
            weight.grad = None

    def _refresh(self) -> None:
        with torch.no_grad():
            torch._foreach_copy_([w.data for w in self.weights], [m.data for m in self.masters])

    def _exchange(self) -> None:
        for master in self.masters:
            if master.grad is None:  # an expert that no token of this rank went to
                master.grad = torch.zeros_like(master)
        pending = [torch.distributed.all_reduce(m.grad, async_op=True) for m in self.masters]
        for work in pending:
            work.wait()
