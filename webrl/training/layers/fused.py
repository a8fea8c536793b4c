"""What lies between a layer's matrix products, by one kernel each where there is one for it.

What a module computes decides, not its name: norms as in `norms.py`; an attention whose code calls a function
`apply_rotary_pos_emb` that rotates by halves; an MLP that gives, with other maps in the place of its three, the down
map of activation(gate) times up. Everything else stays, and so does what these compute on a CPU, inside compiled
layers (the compiler fuses by itself), and where Triton is missing. The self-check (`selfcheck.py`) runs the result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from webrl.training.layers.norms import fuse_norms, has_kernels

if TYPE_CHECKING:
    from webrl.training.layers.kernels import Activation

_ROTARY = "apply_rotary_pos_emb"
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def fuse(lm: nn.Module) -> None:
    """Norms, rotary embeddings and gated activations of a model, in place."""
    fuse_norms(lm)
    fuse_rotary(lm)
    fuse_gates(lm)


class FusedRotary:
    """Marks an attention whose rotary embedding is ours."""


def fuse_rotary(lm: nn.Module) -> int:
    """Give attention modules our rotary embedding, in place; returns how many."""
    known: dict[type[nn.Module], type[nn.Module] | None] = {}
    count = 0
    for module in lm.modules():
        cls = type(module)
        if cls not in known:
            known[cls] = _rotating(cls)
        fused = known[cls]
        if fused is not None:
            module.__class__ = fused
            count += 1
    return count


def _rotating(cls: type[nn.Module]) -> type[nn.Module] | None:
    """The class with its own forward pass, in which the rotary function's name means ours; None if it has none."""
    forward = cls.forward
    if issubclass(cls, FusedRotary) or not isinstance(forward, FunctionType):
        return None
    if _ROTARY not in forward.__code__.co_names:
        return None
    own = forward.__globals__.get(_ROTARY)
    if own is None or not _rotates_halves(own):
        return None

    def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *others: Any, **options: Any) -> Any:
        if others or options or not _fits_rotary(query, key, cos, sin):
            return own(query, key, cos, sin, *others, **options)
        from webrl.training.layers.kernels import rotate

        return rotate(query, key, cos, sin)

    names = {**forward.__globals__, _ROTARY: rotary}
    names.pop("__name__")  # by which the compiler would look names up in the module instead
    fused = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    fused.__kwdefaults__, fused.__annotations__ = forward.__kwdefaults__, forward.__annotations__
    return type(f"Fused{cls.__name__}", (FusedRotary, cls), {"__module__": cls.__module__, "forward": fused})


def _fits_rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """True for whole heads of one row, all in one precision."""
    table = (1, query.shape[-2], query.shape[-1])
    shapes = query.ndim == key.ndim == 4 and query.shape[0] == 1 and cos.shape == sin.shape == table
    same = query.dtype == key.dtype == cos.dtype == sin.dtype and query.shape[-1] % 2 == 0
    return shapes and same and query.shape[2:] == key.shape[2:] and has_kernels(query)


def _rotates_halves(function: Callable[..., Any]) -> bool:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(1, 2, 5, 8, generator=generator), torch.randn(1, 1, 5, 8, generator=generator)
    cos, sin = torch.randn(1, 5, 8, generator=generator), torch.randn(1, 5, 8, generator=generator)
    try:
        found = function(query, key, cos, sin)
    except Exception:  # whatever a function of another signature says
        return False
    expected = [x * cos + torch.cat([-x[..., 4:], x[..., :4]], -1) * sin for x in (query, key)]
    return len(found) == 2 and all(torch.allclose(f, e, atol=1e-6) for f, e in zip(found, expected, strict=True))


class GatedMLP:
    """Mixed in before the MLP's own class."""

    activation: Activation

    def forward(self: Any, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        gate, up = self.gate_proj(x), self.up_proj(x)
        if not has_kernels(gate) or gate.dtype != up.dtype or gate.shape != up.shape:
            plain: Tensor = self.down_proj(self.act_fn(gate) * up)
            return plain
        from webrl.training.layers.kernels import gated

        joined: Tensor = self.down_proj(gated(gate, up, self.activation))
        return joined


def fuse_gates(lm: nn.Module) -> int:
    """Give gated MLPs our activation, in place; returns how many."""
    count = 0
    for module in list(lm.modules()):
        activation = None if isinstance(module, GatedMLP) else _activation_of(module)
        if activation is not None:
            cls = type(module)
            module.__class__ = type(f"Fused{cls.__name__}", (GatedMLP, cls), {"__module__": cls.__module__})
            module.activation = activation  # type: ignore[assignment]
            count += 1
    return count


def _activation_of(module: nn.Module) -> Activation | None:
    """Of an MLP of three maps that computes down(activation(gate) up); None for every other module."""
    names = {name for name, _ in module.named_children()}
    if not set(_PROJECTIONS) <= names or not callable(getattr(module, "act_fn", None)):
        return None
    if names - {*_PROJECTIONS, "act_fn"} or list(module.parameters(recurse=False)) + list(
        module.buffers(recurse=False)
    ):
        return None
    probe = copy.copy(module)
    stand_ins = {"gate_proj": nn.Identity(), "up_proj": _Reversed(), "down_proj": _Doubled()}
    probe.__dict__["_modules"] = {**module._modules, **stand_ins}
    x = torch.linspace(-6, 6, 96).view(1, 8, 12)
    try:
        found = probe(x)
    except Exception:  # whatever a module that wants something else says to one tensor
        return None
    for name in _activations():
        if torch.allclose(found, 2 * _activations()[name](x) * x.flip(-1), rtol=1e-5, atol=1e-6):
            return name
    return None


class _Reversed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


@cache
def _activations() -> dict[Activation, Callable[[Tensor], Tensor]]:
    return {
        "silu": functional.silu,
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "gelu": functional.gelu,
    }
