"""Float32 matrix products at the whole vector width of the CPU.

torch leaves them to MKL, which keeps to AVX2 on processors that are not Intel's. oneDNN, which torch brings along as
well, uses AVX-512 there: from sixteen rows on it is about twice as fast, in the same precision. Without it an update of
the demo's size takes 1.5 times the CPU time (`python benchmarks/training.py --part cpu`, row `torch's products`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

_MIN_ROWS = 16
"""With fewer, oneDNN's own preparations take longer than the product."""


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """`functional.linear` without bias: [..., K] and [N, K] -> [..., N]."""
    is_plain = x.is_cpu and weight.is_cpu and x.dtype == weight.dtype == torch.float32 and x.ndim > 1
    fits = (
        is_plain
        and x.numel() >= _MIN_ROWS * x.shape[-1]
        and has_faster_products()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )
    if not fits:
        return functional.linear(x, weight)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out: Tensor = _Linear.apply(x, weight)
        return out
    return _product(x, weight)


def use_products(model: nn.Module) -> None:
    """Have a model's linear layers without bias computed by `linear`, in place; what it cannot do stays torch's."""
    if not has_faster_products():
        return
    for module in model.modules():
        if type(module) is nn.Linear and module.bias is None and "forward" not in vars(module):
            module.forward = MethodType(_forward, module)


@cache
def has_faster_products() -> bool:
    """True if MKL leaves half of the vector width idle and oneDNN does not."""
    try:
        vendor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    wide = torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return wide and has_both and "GenuineIntel" not in vendor and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _forward(self: nn.Linear, x: Tensor) -> Tensor:
    return linear(x, self.weight)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad
        grad = grads[0].flatten(0, -2)  # [R, N]
        return (
            _product(grad, weight.t()).view_as(x) if needs_x else None,
            _product(grad.t(), x.flatten(0, -2).t()) if needs_weight else None,
        )


def _product(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return out
