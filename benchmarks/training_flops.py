"""Model-FLOPs utilisation: arithmetic that the model needs, over what the device could do in the time.

    FLOPs = (6 · P − 2 · F) · T + 6 · n_layers · n_heads · head_dim · Σ_i L_i²        (training)

P are the weights outside embedding and head (and value head), F those of them that are frozen (a LoRA's base has no
weight gradients), T tokens, L_i the lengths of the packed sequences: causal attention is two products of L²/2 · d each,
counted once forward and twice backward; a forward pass alone is a third of it at F = 0. Recomputation under activation
checkpointing does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "H20": 148e12, "A100": 312e12, "L40S": 362e12, "B200": 2250e12}
"""Dense bf16, by a part of the device's name."""


def body_parameters(lm: Any, *, frozen: bool = False) -> int:
    """Weights outside embedding and output heads; `frozen`: those of them that are not trained."""
    outside = {id(p) for m in (lm.get_input_embeddings(), lm.get_output_embeddings()) if m for p in m.parameters()}
    outside |= {id(p) for p in lm.score.parameters()} if hasattr(lm, "score") else set()
    return sum(
        int(getattr(p, "ds_numel", p.numel()))
        for p in lm.parameters()
        if id(p) not in outside and not (frozen and p.requires_grad)
    )


def training_flops(num_parameters: int, config: Any, lengths: Sequence[int], num_frozen: int = 0) -> float:
    """FLOPs of a forward and backward pass over sequences of these lengths; `num_frozen` of the weights are frozen."""
    config = config.get_text_config()
    if not getattr(config, "num_attention_heads", 0):  # without attention
        return float((6 * num_parameters - 2 * num_frozen) * sum(lengths))
    head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * head_dim * sum(n * n for n in lengths)
    return float((6 * num_parameters - 2 * num_frozen) * sum(lengths) + 6 * attention)


def peak_flops() -> float | None:
    """Return one CUDA device's peak in dense bf16; None if it is not known."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)
