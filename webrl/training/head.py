"""Log-probabilities of given tokens from hidden states, in chunks: no term grows with tokens x vocabulary.

The backward pass recomputes a chunk's logits instead of keeping them, so that peak memory is one chunk whatever
the number of positions. `ActionHead` is the model's own output layer with another forward; its weight, name and
tying stay as they are, and engines that gather a module's weights around its forward (ZeRO-3) gather them once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CHUNK_ELEMENTS = 1 << 26
"""Logits of one chunk: positions x vocabulary, at most (256 MiB in fp32)."""


class ActionHead(nn.Linear):
    """An output layer that gives log-probabilities of targets where targets are given, logits otherwise."""

    def forward(self, hidden: Tensor, targets: Tensor | None = None) -> Tensor:
        """[N, D] hidden states and [N] targets -> [N] float32 log-probabilities."""
        if targets is None:
            return functional.linear(hidden, self.weight, self.bias)
        if self.bias is not None:
            raise ValueError("an output layer with bias is not supported")
        return token_logprobs(hidden, self.weight, targets)


def token_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
    """Log softmax(hidden weightᵀ)[targets].

    Args:
        hidden: [N, D].
        weight: [V, D].
        targets: [N] token ids.

    Returns:
        [N] float32.
    """
    if hidden.is_cuda and torch.is_autocast_enabled("cuda"):
        hidden = hidden.to(torch.get_autocast_dtype("cuda"))
    elif hidden.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        hidden = hidden.to(torch.get_autocast_dtype("cpu"))
    out: Tensor = _TokenLogprobs.apply(hidden, weight, targets, max(1, chunk_elements // weight.shape[0]))
    return out


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
        logprobs = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
        normalizers = torch.empty_like(logprobs)
        matrix = weight.to(hidden.dtype)
        for start in range(0, hidden.shape[0], chunk):
            part = slice(start, start + chunk)
            logits = functional.linear(hidden[part], matrix).float()  # [C, V]
            normalizers[part] = logits.logsumexp(-1)
            logprobs[part] = logits.gather(-1, targets[part, None]).squeeze(-1) - normalizers[part]
        ctx.save_for_backward(hidden, weight, targets, normalizers)
        ctx.chunk = chunk
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, targets, normalizers = ctx.saved_tensors
        grad = grads[0]  # [N]
        matrix = weight.to(hidden.dtype)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for start in range(0, hidden.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logits = functional.linear(hidden[part], matrix).float()
            # d logp_y / d logits = onehot(y) - softmax
            slope = logits.sub_(normalizers[part, None]).exp_().mul_(-grad[part, None])
            slope.scatter_add_(1, targets[part, None], grad[part, None])
            slope = slope.to(hidden.dtype)
            grad_hidden[part] = slope @ matrix
            if grad_weight is not None:
                grad_weight += (slope.t() @ hidden[part]).float()
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), None, None
