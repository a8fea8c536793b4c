"""Norms, rotary embeddings and gated activations by one kernel each on a GPU.

With them a training step of a 0.27B model makes 1.5 times as many tokens per second (docs/figures.md, the row `plain
layers`). The modules below are named one by one; all others compute as in transformers, and so do these inside compiled
layers (the compiler fuses by itself) and where Triton is missing.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from webrl.training.layers.kernels import Activation

NORMS = {
    "GemmaRMSNorm": 1.0, "Gemma3RMSNorm": 1.0, "GraniteRMSNorm": 0.0, "LlamaRMSNorm": 0.0,
    "MistralRMSNorm": 0.0, "MixtralRMSNorm": 0.0, "Olmo3RMSNorm": 0.0, "Phi3RMSNorm": 0.0, "Qwen2MoeRMSNorm": 0.0,
    "Qwen2RMSNorm": 0.0, "Qwen3MoeRMSNorm": 0.0, "Qwen3RMSNorm": 0.0, "SmolLM3RMSNorm": 0.0,
}  # fmt: skip
"""Root-mean-square norms, and what they add to their weight."""
MLPS = frozenset((
    "Gemma3MLP", "GemmaMLP", "GraniteMLP", "LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP", "SmolLM3MLP",
))  # fmt: skip
"""MLPs that compute down(activation(gate) up)."""
ROTARY = frozenset((
    "gemma", "gemma3", "granite", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
))  # fmt: skip
"""Modules of transformers whose `apply_rotary_pos_emb` rotates by halves."""
_ACTIVATIONS: dict[str, Activation] = {
    "SiLUActivation": "silu", "SiLU": "silu", "GELUTanh": "gelu_tanh", "GELUActivation": "gelu",
}  # fmt: skip
_find = cache(importlib.util.find_spec)
_MAX_WIDTH = 16_384
"""Elements of a row that a kernel holds at a time, at most."""


def has_kernels(x: Tensor) -> bool:
    """True if Triton's kernels (`kernels.py`) may compute on this tensor; the compiler makes its own."""
    fits = x.is_cuda and x.numel() > 0 and x.shape[-1] <= _MAX_WIDTH
    return fits and not torch.compiler.is_compiling() and _find("triton") is not None


def fuse(lm: nn.Module) -> None:
    """Have the known modules of a model computed by kernels, in place."""
    for module in lm.modules():
        kind = type(module)
        if kind.__name__ in NORMS:
            module.forward = MethodType(_norm, module)
        elif kind.__name__ in MLPS and type(module.act_fn).__name__ in _ACTIVATIONS:
            module.forward = MethodType(_gated_mlp, module)
        elif kind.__name__.endswith("Attention"):
            _fuse_rotary(kind.__module__)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    """[..., D] in the precision of the input."""
    weight: Tensor = self.weight
    offset = NORMS[type(self).__name__]
    fits = hidden_states.shape[-1:] == weight.shape and (offset or hidden_states.dtype == weight.dtype)
    if fits and has_kernels(hidden_states):
        from webrl.training.layers.kernels import rms_norm

        return rms_norm(hidden_states, weight, self.eps if offset else self.variance_epsilon, offset)
    own: Tensor = type(self).forward(self, hidden_states)
    return own


def _gated_mlp(self: Any, x: Tensor) -> Tensor:
    """[..., D] -> [..., D]."""
    gate, up = self.gate_proj(x), self.up_proj(x)
    if has_kernels(gate) and gate.dtype == up.dtype and gate.shape == up.shape:
        from webrl.training.layers.kernels import gated

        inner = gated(gate, up, _ACTIVATIONS[type(self.act_fn).__name__])
    else:
        inner = self.act_fn(gate) * up
    out: Tensor = self.down_proj(inner)
    return out


def _fuse_rotary(name: str) -> None:
    """Put our rotary embedding into one of transformers' modules, once; what it does not fit it hands on."""
    modeling = sys.modules[name]
    package = name.split(".")[-2]
    own = getattr(modeling, "apply_rotary_pos_emb", None)
    if package not in ROTARY or own is None or hasattr(own, "webrl_own"):
        return

    def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *others: Any, **options: Any) -> Any:
        table = (1, query.shape[-2], query.shape[-1])  # whole heads of one row, all in one precision
        fits = query.ndim == key.ndim == 4 and query.shape[0] == 1 and cos.shape == sin.shape == table
        fits &= query.dtype == key.dtype == cos.dtype == sin.dtype and query.shape[-1] % 2 == 0
        if others or options or not fits or query.shape[2:] != key.shape[2:] or not has_kernels(query):
            return own(query, key, cos, sin, *others, **options)
        from webrl.training.layers.kernels import rotate

        return rotate(query, key, cos, sin)

    rotary.webrl_own = own  # type: ignore[attr-defined]
    modeling.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]
