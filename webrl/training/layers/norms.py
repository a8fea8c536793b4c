"""Root-mean-square norms by one kernel, Triton's or torch's own: one pass over a row where transformers' take eight.

Which modules those are is found out by what they compute, not by their name: one that gives, on random input with
random weights, what `torch.nn.functional.rms_norm` gives with its weight, or with one plus its weight (Gemma), is
replaced; every other one stays. The self-check (`selfcheck.py`) runs the result like the rest.
"""

from __future__ import annotations

import copy
import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_EPSILONS = ("variance_epsilon", "eps", "epsilon")
_MAX_WIDTH = 16_384
"""Elements of a row that a kernel holds at a time, at most."""


def has_kernels(x: Tensor) -> bool:
    """True if Triton's kernels (`kernels.py`) may compute on this tensor; the compiler makes its own."""
    fits = x.is_cuda and x.numel() > 0 and x.shape[-1] <= _MAX_WIDTH
    return fits and not torch.compiler.is_compiling() and has_triton()


@cache
def has_triton() -> bool:
    """True if Triton is installed."""
    return importlib.util.find_spec("triton") is not None


class FusedNorm:
    """Mixed in before the norm's own class."""

    fused_eps: float
    adds_one: bool

    def forward(self: Any, hidden_states: Tensor, *others: Any, **options: Any) -> Tensor:
        """[..., D] in the precision of the input."""
        weight: Tensor = self.weight
        if others or options or not (self.adds_one or hidden_states.dtype == weight.dtype):
            own: Tensor = super().forward(hidden_states, *others, **options)  # type: ignore[misc]
            return own
        if hidden_states.shape[-1:] == weight.shape and has_kernels(hidden_states):
            from webrl.training.layers.kernels import rms_norm

            return rms_norm(hidden_states, weight, self.fused_eps, float(self.adds_one))
        if not self.adds_one:
            return functional.rms_norm(hidden_states, weight.shape, weight, self.fused_eps)
        # one plus the weight has no room in bfloat16
        whole = functional.rms_norm(hidden_states.float(), weight.shape, 1.0 + weight.float(), self.fused_eps)
        return whole.type_as(hidden_states)


def fuse_norms(lm: nn.Module) -> int:
    """Replace the norms of a model in place; returns how many."""
    known: dict[Any, bool | None] = {}
    count = 0
    for module in list(lm.modules()):
        eps = _epsilon(module)
        if eps is None or isinstance(module, FusedNorm):
            continue
        key = (type(module), eps, _weight(module).shape)
        if key not in known:
            known[key] = _adds_one(module, eps)
        adds_one = known[key]
        if adds_one is not None:
            cls = type(module)
            module.__class__ = type(f"Fused{cls.__name__}", (FusedNorm, cls), {"__module__": cls.__module__})
            module.fused_eps, module.adds_one = eps, adds_one  # type: ignore[assignment]
            count += 1
    return count


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def _epsilon(module: nn.Module) -> float | None:
    """Of a module with a weight vector, an epsilon and nothing else; None for every other."""
    if [name for name, _ in module.named_parameters()] != ["weight"] or list(module.buffers()):
        return None
    if list(module.children()) or _weight(module).ndim != 1:
        return None
    found = [getattr(module, name) for name in _EPSILONS if isinstance(getattr(module, name, None), float)]
    return found[0] if len(found) == 1 else None


def _adds_one(module: nn.Module, eps: float) -> bool | None:
    """Which of the two forms the module computes; None for neither."""
    generator = torch.Generator().manual_seed(0)
    shape = _weight(module).shape
    probe = copy.deepcopy(module)
    probe = (probe.to_empty(device="cpu") if _weight(probe).is_meta else probe.to("cpu")).float()
    weight = torch.randn(shape, generator=generator)
    _weight(probe).data = weight
    rows = torch.randn(3, *shape, generator=generator) * torch.tensor([[1e-3], [1.0], [30.0]])
    try:
        with torch.no_grad():
            found = probe(rows)
    except Exception:  # whatever a module that wants something else says to one tensor
        return None
    for adds_one in (False, True):
        if torch.allclose(found, functional.rms_norm(rows, shape, weight + adds_one, eps), rtol=1e-5, atol=1e-6):
            return adds_one
    return None
