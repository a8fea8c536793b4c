"""Norms, rotary embeddings and gated activations by one kernel each on a GPU.

What lies between a layer's matrix products is bound by memory: written as tensor operations, a norm of Gemma's reads
and writes its row fourteen times. torch's compiler makes one kernel of each of the functions named below, for rows of
any length; all others compute as in transformers, and so do these inside compiled layers. A plain norm is torch's own
`rms_norm`, on a CPU too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

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
_COMPILED_VARIANTS = 64


def fuse(lm: nn.Module) -> None:
    """Have the known modules of a model computed by kernels, in place."""
    for module in lm.modules():
        kind = type(module)
        if kind.__name__ in NORMS:
            module.forward = MethodType(_norm, module)
        elif kind.__name__ in MLPS and type(module.act_fn).__name__ in _GATES:
            module.forward = MethodType(_gated_mlp, module)
        elif kind.__name__.endswith("Attention"):
            _fuse_rotary(kind.__module__)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    """[..., D] in the precision of the input."""
    weight: Tensor = self.weight
    out: Tensor
    if NORMS[type(self).__name__]:
        out = _by_one_kernel(_norm_of_one_plus, hidden_states, weight, self.eps)
    elif hidden_states.dtype != weight.dtype:
        out = type(self).forward(self, hidden_states)
    else:
        out = functional.rms_norm(hidden_states, weight.shape, weight, self.variance_epsilon)
    return out


def _norm_of_one_plus(hidden_states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32: one plus the weight has no room in bfloat16."""
    whole = functional.rms_norm(hidden_states.float(), weight.shape, 1.0 + weight.float(), eps)
    return whole.type_as(hidden_states)


def _gated_mlp(self: Any, x: Tensor) -> Tensor:
    """[..., D] -> [..., D]."""
    gate = _GATES[type(self.act_fn).__name__]
    out: Tensor = self.down_proj(_by_one_kernel(gate, self.gate_proj(x), self.up_proj(x)))
    return out


_GATES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SiLUActivation": lambda gate, up: functional.silu(gate) * up,
    "SiLU": lambda gate, up: functional.silu(gate) * up,
    "GELUTanh": lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
    "GELUActivation": lambda gate, up: functional.gelu(gate) * up,
}
"""Functions of gate and up by the class of an MLP's activation."""


def _fuse_rotary(name: str) -> None:
    """Have one of transformers' modules rotate a row's whole heads by one kernel; done once."""
    modeling = sys.modules[name]
    own = getattr(modeling, "apply_rotary_pos_emb", None)
    if name.split(".")[-2] not in ROTARY or own is None or hasattr(own, "webrl_own"):
        return

    def rotary(query: Tensor, *others: Any, **options: Any) -> Any:
        is_row = query.shape[0] == 1 and query.shape[2] > 1  # no step of a generation
        return _by_one_kernel(own, query, *others, **options) if is_row else own(query, *others, **options)

    rotary.webrl_own = own  # type: ignore[attr-defined]
    modeling.apply_rotary_pos_emb = rotary  # type: ignore[attr-defined]


def _by_one_kernel(function: Callable[..., Any], x: Tensor, *others: Any, **options: Any) -> Any:
    """Call a function, compiled if its first tensor is on a GPU."""
    if x.is_cuda and not torch.compiler.is_compiling():
        function = _compiled(function)
    return function(x, *others, **options)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    allow_variants()
    return torch.compile(function, dynamic=True) if find_spec("triton") else function


def allow_variants() -> None:
    """Let a function be compiled often enough for all layers, which share it: with and without gradient, autocast, ….

    Past torch's limit it would run as it is, without a word.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _COMPILED_VARIANTS)
