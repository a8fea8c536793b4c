"""The output layer, and the last decoder layer below it, computed only where something is read.

Log-probabilities of given tokens come from hidden states in chunks: no term grows with tokens x vocabulary.

The backward pass recomputes a chunk's logits instead of keeping them, so that peak memory is one chunk for any
number of positions, with the bias and scale that an architecture may have. `take_targets` replaces the
forward of the model's own output layer; its weight, name and tying stay as they are, and engines that gather a
module's weights around its forward (ZeRO-3) gather them once.

Training reads the final hidden states at a sample's action tokens alone (a value: at one token). Below the last
layer every position is needed, as key and value; in it, queries, output projection and MLP are needed only at those
positions. The result is the same; a four-layer model saves a fifth of its CPU time (`python benchmarks/training.py
--part cpu`, row `whole last layer`), a 32-layer one 3 % of its arithmetic. Applied to the architectures whose layer is
known to be the plain pre-norm one without window; all others run whole. transformers 5.24 checkpoints the forward of a
layer's class, so there this layer keeps its activations.
"""

from __future__ import annotations

import sys
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from webrl.training.layers.attention import Layout, packed_attention

CHUNK_ELEMENTS = 1 << 26
"""Logits of one chunk: positions x vocabulary, at most (256 MiB in float32)."""


def logit_scale(config: Any) -> float:
    """Return the factor of an architecture's logits (Cohere's `logit_scale`, one over Granite's `logits_scaling`)."""
    config = config.get_text_config()
    scale = float(getattr(config, "logit_scale", None) or 1.0) * float(getattr(config, "lm_head_multiplier", 1.0))
    return scale / float(getattr(config, "logits_scaling", None) or 1.0)


def take_targets(head: nn.Linear, scale: float) -> None:
    """Have an output layer return log-probabilities of targets where targets are given, logits otherwise."""

    def forward(self: nn.Linear, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """[N, D] hidden states and [N] targets -> [N] float32 log-probabilities."""
        if targets is None:
            return functional.linear(hidden, self.weight, self.bias)
        return token_logprobs(hidden, self.weight, targets, bias=self.bias, scale=scale)

    head.forward = MethodType(forward, head)  # type: ignore[method-assign]


def token_logprobs(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None = None, scale: float = 1.0
) -> Tensor:
    """Log softmax(scale (hidden weightᵀ + bias))[targets].

    Args:
        hidden: [N, D].
        weight: [V, D].
        targets: [N] token ids.
        bias: [V].

    Returns:
        [N] float32.
    """
    kind = hidden.device.type
    if torch.is_autocast_enabled(kind):
        hidden = hidden.to(torch.get_autocast_dtype(kind))
    chunk = max(1, CHUNK_ELEMENTS // weight.shape[0])
    out: Tensor = _TokenLogprobs.apply(hidden, weight, bias, targets, scale, chunk)
    return out


class _TokenLogprobs(torch.autograd.Function):
    """The backward pass keeps logits and slopes in their own precision: softmax kernels compute in float32 inside."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: float, chunk: int
    ) -> Tensor:
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        matrix = weight.to(hidden.dtype)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], matrix, bias, scale)  # [C, V]
            logprobs[part] = logits.log_softmax(-1, dtype=torch.float32).gather(-1, targets[part, None]).squeeze(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, logprobs)
        ctx.scale, ctx.chunk = scale, chunk
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, logprobs = ctx.saved_tensors
        grad = -grads[0][:, None]  # [N, 1]
        matrix = weight.to(hidden.dtype)
        scaled = (hidden * grad).to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = grad_bias = None
        chunk = 2 * ctx.chunk  # no float32 copies here: room for twice as many, and half as many sums of weights' size
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], matrix, bias, ctx.scale)
            # -d logp_y / d logits = softmax - onehot(y); where the model is sure, a rounded 1 - 1 would be nothing left
            slope = logits.softmax(-1)
            slope.scatter_(1, targets[part, None], torch.expm1(logprobs[part, None]).to(slope.dtype))
            slope = (slope if ctx.scale == 1.0 else slope.mul_(ctx.scale)).to(hidden.dtype)
            grad_hidden[part] = (slope @ matrix) * grad[part]
            if ctx.needs_input_grad[1]:
                grad_weight = _add(grad_weight, slope.t() @ scaled[part])
            if ctx.needs_input_grad[2]:
                grad_bias = _add(grad_bias, (slope.t() @ grad[part].to(slope.dtype))[:, 0])
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None, None, None,
        )  # fmt: skip


def _add(total: Tensor | None, part: Tensor) -> Tensor:
    """The sum over chunks, in float32 as soon as there are two."""
    return part if total is None else total.to(torch.float32).add_(part)


def _logits(hidden: Tensor, matrix: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """[C, V], in float32 where they are scaled."""
    logits = functional.linear(hidden, matrix, None if bias is None else bias.to(hidden.dtype))
    return logits if scale == 1.0 else logits.float().mul_(scale)


PLAIN_LAYERS = frozenset({"LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer"})


def trim_last_layer(base_model: Any) -> None:
    """Give the last layer of a decoder the trimmed forward, if its architecture is known."""
    layers = getattr(base_model, "layers", None)
    if not layers or getattr(base_model.config, "sliding_window", None) is not None:
        return
    if type(layers[-1]).__name__ in PLAIN_LAYERS:
        layers[-1].forward = MethodType(_trimmed, layers[-1])


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
