"""bfloat16 weights that compute, float32 masters that learn: `precision: bf16` on one process, or on replicas.

Autocast over float32 weights would cast weights and activations again in every layer, keep norms and residuals in
float32, and hold frozen weights (a LoRA's base) in float32 as well. Here a row is computed as scoring computes it, so
that the log-ratio of an untouched policy is zero; its gradients are added up in float32, and AdamW's step, which is
smaller than a rounding of bfloat16, goes to the masters. Per trained weight 18 bytes: 2 the weight, 4 each its
master, gradient and two moments, and 2 more for a row's own gradient as its activations are freed; per frozen weight 2.

Masters lie end to end in a few buckets: a small model's GPU would otherwise wait for the host, which needs longer to
go through hundreds of weights one by one than the GPU for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from webrl.errors import TrainingError
from webrl.training.architectures import cast_weights
from webrl.training.devices import receive
from webrl.training.engines.ddp import Engine, make_optimizer

_BUCKET_WEIGHTS = 1 << 28
"""A bucket has no more, or is one weight."""


@dataclass
class Bucket:
    """Weights that decay, or not, in one type."""

    names: list[str]
    """Of the weights."""
    weights: list[Tensor]
    """What computes."""
    master: nn.Parameter
    """What learns; [1, N] for matrices, [N] for vectors: `make_optimizer` decays by the number of dimensions."""
    room: Tensor | None = None
    """The memory of `master.grad`, kept from batch to batch: activations would fragment it once freed."""

    def parts(self, whole: Tensor) -> list[Tensor]:
        """Views of a tensor of the master's size, one a weight."""
        return list(_unflatten_dense_tensors(whole.view(-1), self.weights))

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add to the master's gradient, or begin it; one of each weight, None is zero."""
        whole = [torch.zeros_like(w) if g is None else g for w, g in zip(self.weights, gradients, strict=True)]
        if self.master.grad is not None:
            self.master.grad.view(-1).add_(_flatten_dense_tensors(whole))
            return
        if self.room is None:
            self.room = torch.empty_like(self.master, requires_grad=False)
        torch._foreach_copy_(self.parts(self.room), whole)
        self.master.grad = self.room


class Bf16Engine(Engine):
    """One process, or replicas whose gradients are summed in float32."""

    wants = ""  # the model is not wrapped
    exchanges_last = False  # `step` does it, once a batch

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """(the model in bfloat16, AdamW over its float32 masters)."""
        device = self.accelerator.device
        exact = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        cast_weights(model)
        model.to(device)
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        names_of: list[list[str]] = []
        for kind in sorted({(p.ndim < 2, str(p.dtype)) for p in weights.values()}):
            capacity = -1
            for name, p in weights.items():
                if (p.ndim < 2, str(p.dtype)) != kind:
                    continue
                if p.numel() > capacity:
                    names_of.append([])
                    capacity = _BUCKET_WEIGHTS
                names_of[-1].append(name)
                capacity -= p.numel()
        self.buckets = []
        for names in names_of:
            own: list[Tensor] = [weights[name] for name in names]
            flat = torch.empty(sum(p.numel() for p in own), device=device, dtype=torch.float32)
            for part, name in zip(_unflatten_dense_tensors(flat, own), names, strict=True):
                part.copy_(exact.pop(name))
            self.buckets.append(Bucket(names, own, nn.Parameter(flat if own[0].ndim < 2 else flat[None])))
        masters = nn.ParameterList(bucket.master for bucket in self.buckets)
        if self.num_ranks > 1:
            for master in masters:
                torch.distributed.broadcast(master.data, src=0)
        # In evaluation mode nothing is wrapped around them; the masters are what a training state holds.
        self.accelerator.prepare_model(masters, evaluation_mode=True)
        self._refresh()
        return model, self.accelerator.prepare_optimizer(make_optimizer(masters, self.config))

    def backward(self, loss: Tensor) -> None:
        """As in `Engine.backward`; adds the row's gradients to the masters', and `step` sums those over ranks."""
        loss.backward()
        with torch.no_grad():
            for bucket in self.buckets:
                found = [w.grad for w in bucket.weights]
                if all(g is None for g in found):
                    continue
                bucket.add(found)
                for weight in bucket.weights:
                    weight.grad = None

    @torch.no_grad()
    def step(self, rate: float, loss: Tensor | None = None) -> float:
        """As in `Engine.step`; then the weights are the masters, rounded. A weight that no row of the batch reached
        (an expert without tokens) has a gradient of zero.

        The host waits for neither norm nor loss before the update is on its way: AdamW's kernel divides the gradients,
        or leaves all as it is, as it does for torch's gradient scaler.
        """
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        if self.num_ranks > 1:
            for bucket in self.buckets:
                if bucket.master.grad is None:  # experts that no token of this rank went to
                    bucket.add([None] * len(bucket.weights))
            for work in [torch.distributed.all_reduce(b.master.grad, async_op=True) for b in self.buckets]:
                work.wait()
        norm = torch.nn.utils.get_total_norm([b.master.grad for b in self.buckets if b.master.grad is not None])
        on_host = receive(norm)
        adamw = self.optimizer.optimizer
        adamw.grad_scale = ((norm + 1e-6) / self.config.max_grad_norm).clamp(min=1)
        finite = norm.isfinite() if loss is None else norm.isfinite() & loss.isfinite()
        adamw.found_inf = finite.logical_not().float()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._refresh()
        return float(on_host())

    def load_state(self, folder: Path) -> None:
        """Read the masters back, and round them into the weights; TrainingError if the state holds something else."""
        try:
            super().load_state(folder)
        except RuntimeError as error:
            raise TrainingError(
                f"{folder} does not hold this model's float32 masters, another version of webrl may have written it; "
                f"delete {folder.parent} to start over"
            ) from error
        self._refresh()

    def full_state(self) -> dict[str, Tensor]:
        """Return the masters by the weights' names, on the main process."""
        if not self.is_main:
            return {}
        return {n: p.cpu() for b in self.buckets for n, p in zip(b.names, b.parts(b.master.detach()), strict=True)}

    @torch.no_grad()
    def _refresh(self) -> None:
        for bucket in self.buckets:
            torch._foreach_copy_(bucket.weights, bucket.parts(bucket.master))
