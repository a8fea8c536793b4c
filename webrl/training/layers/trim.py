"""The last decoder layer, computed only where its output is used.

Training reads the final hidden states at a sample's action tokens alone (a value: at one token). Below the last
layer every position is needed, as key and value; in it, queries, output projection and MLP are needed only at those
positions. The result is the same; a four-layer model saves a fifth of its arithmetic, a 32-layer one 3 %. Applied
to the architectures whose layer is known to be the plain pre-norm one without window; all others run whole.
transformers 5.24 checkpoints the forward of a layer's class, so there this layer keeps its activations.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

from torch import Tensor

from webrl.training.layers.attention import Layout, packed_attention

PLAIN_LAYERS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})


def trim_last_layer(base_model: Any) -> None:
    """Give the last layer of a decoder the trimmed forward, if its architecture is known."""
    layers = getattr(base_model, "layers", None)
    if not layers or getattr(base_model.config, "sliding_window", None) is not None:
        return
    if type(layers[-1]).__name__ in PLAIN_LAYERS:
        layers[-1].forward = MethodType(_trimmed, layers[-1])
        layers[-1].is_trimmed = True


def is_trimmed(base_model: Any) -> bool:
    """True if `trim_last_layer` took hold."""
    layers = getattr(base_model, "layers", None)
    return layers is not None and len(layers) > 0 and hasattr(layers[-1], "is_trimmed")


def _trimmed(
    self: Any,
    hidden_states: Tensor,  # [1, T, D]
    attention_mask: Tensor | None = None,
    position_embeddings: tuple[Tensor, Tensor] | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> Tensor:
    """[1, N, D] outputs at the positions `layout.keep`."""
    if layout is None or position_embeddings is None:
        whole: Tensor = type(self).forward(
            self, hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings, **kwargs
        )
        return whole
    normed = self.input_layernorm(hidden_states)
    attention = self.self_attn
    rotate_half = sys.modules[type(attention).__module__].rotate_half
    cos, sin = position_embeddings[0].unsqueeze(1), position_embeddings[1].unsqueeze(1)  # [1, 1, T, head]

    def heads(projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:2], -1, attention.head_dim).transpose(1, 2)

    query, key = heads(attention.q_proj(normed[:, layout.keep])), heads(attention.k_proj(normed))
    query = query * cos[:, :, layout.keep] + rotate_half(query) * sin[:, :, layout.keep]
    key = key * cos + rotate_half(key) * sin
    out, _ = packed_attention(
        attention, query, key, heads(attention.v_proj(normed)), None,
        scaling=attention.scaling, layout=layout, kept_only=True,
    )  # fmt: skip
    attended: Tensor = attention.o_proj(out.flatten(2))
    kept = hidden_states[:, layout.keep] + attended
    transformed: Tensor = self.mlp(self.post_attention_layernorm(kept))
    return kept + transformed
