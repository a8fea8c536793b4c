"""Switches on checkpointing and compilation: what the forward pass keeps, and how its layers run."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from webrl.config import OptimConfig
from webrl.training.architectures import layers_of

_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_varlen_attn",
)

_COMPILED_VARIANTS = 64


def apply_memory_policy(model: Any, config: OptimConfig) -> None:
    """Switch on what the config asks for, in place.

    `full` recomputes every layer; `selective` keeps the attention's output and every other matrix product.
    """
    lm = model.lm
    if config.checkpointing != "none":
        options: dict[str, Any] = {"use_reentrant": False}
        if config.checkpointing == "selective":
            options["context_fn"] = _selective_contexts
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    if config.compile:
        compile_layers(lm)


def compile_layers(lm: Any) -> None:
    """Compile the decoder's layers in place, for rows of any length; the first row takes about ten seconds more."""
    # All layers share one cache of variants: with and without gradient, checkpointing, layout, autocast.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _COMPILED_VARIANTS)
    for layer in layers_of(lm) or ():
        layer.compile(dynamic=True)


def _selective_contexts() -> Any:
    seen = {True: 0, False: 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        name = getattr(op, "_opname", str(op))
        if name in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
