"""The float32 masters of a model's weights, end to end in a few buckets, and the gradients that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from webrl.training.layers.fused import has_triton

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
    """The memory of `master.grad`, kept from batch to batch: activations would cut what is given back to pieces."""

    def parts(self, whole: Tensor) -> list[Tensor]:
        """Views of a tensor of the master's size, one a weight."""
        return list(_unflatten_dense_tensors(whole.view(-1), self.weights))

    def zeros(self) -> Tensor:
        """A gradient of nothing."""
        return self._room().zero_()

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add to the master's gradient, or begin it; one of each weight, None is zero."""
        is_first = self.master.grad is None
        if is_first:
            self.master.grad = self._room()
        total = self.master.grad
        assert total is not None
        if total.is_cuda and has_triton():
            from webrl.training.engines.sums import add_up

            add_up(total.view(-1), gradients, [w.numel() for w in self.weights], is_first=is_first)
            return
        whole = [torch.zeros_like(w) if g is None else g for w, g in zip(self.weights, gradients, strict=True)]
        if is_first:
            torch._foreach_copy_(self.parts(total), whole)
        else:
            total.view(-1).add_(_flatten_dense_tensors(whole))

    def _room(self) -> Tensor:
        if self.room is None:
            self.room = torch.empty_like(self.master, requires_grad=False)
        return self.room


def make_buckets(weights: dict[str, nn.Parameter], exact: dict[str, Tensor], device: torch.device) -> list[Bucket]:
    """Buckets of the weights by name; `exact` are their float32 values, and is emptied on the way."""
    return [
        Bucket(names, [weights[name] for name in names], _flat_master([exact.pop(name) for name in names], device))
        for names in _deal_out(weights)
    ]


def _deal_out(weights: dict[str, nn.Parameter]) -> list[list[str]]:
    """Names of each bucket's weights."""
    buckets: list[list[str]] = []
    for kind in sorted({(p.ndim < 2, str(p.dtype)) for p in weights.values()}):
        room = -1
        for name, p in weights.items():
            if (p.ndim < 2, str(p.dtype)) != kind:
                continue
            if p.numel() > room:
                buckets.append([])
                room = _BUCKET_WEIGHTS
            buckets[-1].append(name)
            room -= p.numel()
    return buckets


def _flat_master(tensors: Sequence[Tensor], device: torch.device) -> nn.Parameter:
    flat = torch.empty(sum(t.numel() for t in tensors), device=device, dtype=torch.float32)
    for part, tensor in zip(_unflatten_dense_tensors(flat, tensors), tensors, strict=True):
        part.copy_(tensor)
    return nn.Parameter(flat if tensors[0].ndim < 2 else flat[None])
