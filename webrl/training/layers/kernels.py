"""Norm, rotary embedding and gated activation in one pass over memory each, forward and backward, in Triton.

What lies between a layer's matrix products is bound by memory: written as tensor operations, a norm of Gemma's reads
and writes its row fourteen times. The kernels read bfloat16 (or float32), compute in float32 and round once. Imported
only where Triton is (torch brings it along on CUDA); `fused.py` decides where they apply.
"""

# Triton reads a kernel's annotations itself; arguments in capitals are known when it is compiled.
# mypy: disable-error-code=no-untyped-def
# ruff: noqa: ANN001, ANN202, N803

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

Activation = Literal["silu", "gelu_tanh", "gelu"]
_KINDS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2}
_TILE = 4096
"""Elements that one program holds at a time."""
_PROGRAMS = 1056
"""At most this many programs share a norm's rows in the backward pass: eight a multiprocessor of a Hopper GPU."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """X / rms(x) (weight + offset) over the last dimension; [..., D], memory laid out as in `x`."""
    out: Tensor = _Norm.apply(x, weight, eps, offset)
    return out


def rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding by halves of [1, H, T, D] and [1, K, T, D] with [1, T, D]; results lie as [T, H, D]."""
    out: tuple[Tensor, Tensor] = _Rotary.apply(query, key, cos.contiguous(), sin.contiguous())
    return out


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) up, elementwise."""
    out: Tensor = _Gated.apply(gate, up, _KINDS[activation])
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
        if not (x.is_contiguous() or (x.ndim == 4 and x.transpose(1, 2).is_contiguous())):
            x = x.contiguous()  # rows adjacent in memory, in any order, are enough
        num_rows = x.numel() // x.shape[-1]
        out, scale = torch.empty_like(x), torch.empty(num_rows, dtype=torch.float32, device=x.device)
        width, rows, warps = _tile(x.shape[-1])
        _norm_forward[(triton.cdiv(num_rows, rows),)](
            x, weight, out, scale, num_rows, eps, offset, x.shape[-1], width, rows, num_warps=warps
        )
        ctx.save_for_backward(x, weight, scale)
        ctx.offset = offset
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        size, trains = x.shape[-1], ctx.needs_input_grad[1]
        grad = grads[0] if grads[0].stride() == x.stride() else torch.empty_like(x).copy_(grads[0])
        width, rows, warps = _tile(size)
        num_blocks = triton.cdiv(scale.numel(), rows)
        programs = min(num_blocks, _PROGRAMS)
        grad_x = torch.empty_like(x)
        parts = torch.empty(programs if trains else 1, size, dtype=torch.float32, device=x.device)
        _norm_backward[(programs,)](
            grad, x, weight, scale, grad_x, parts, scale.numel(), num_blocks,
            ctx.offset, size, width, rows, trains, num_warps=warps,
        )  # fmt: skip
        return grad_x, parts.sum(0).to(weight.dtype) if trains else None, None, None


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        return _turn(query, cos, sin, back=False), _turn(key, cos, sin, back=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, sin, back=True), _turn(grads[1], cos, sin, back=True), None, None


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, kind: int) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        _gated_forward[(triton.cdiv(gate.numel(), _TILE),)](gate, up, out, gate.numel(), kind, _TILE, num_warps=8)
        ctx.save_for_backward(gate, up)
        ctx.kind = kind
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = ctx.saved_tensors
        grad_gate, grad_up, size = torch.empty_like(gate), torch.empty_like(up), gate.numel()
        _gated_backward[(triton.cdiv(size, _TILE),)](
            grads[0].contiguous(), gate, up, grad_gate, grad_up, size, ctx.kind, _TILE, num_warps=8
        )
        return grad_gate, grad_up, None


def _tile(size: int) -> tuple[int, int, int]:
    """Return (elements of a row, rounded up to a power of two; rows that one program handles at a time; warps)."""
    width = triton.next_power_of_2(size)
    return width, max(1, min(16, _TILE // width)), 4 if width < 2048 else 8


def _turn(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool) -> Tensor:
    _, heads, tokens, size = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = torch.empty(1, tokens, heads, size, dtype=x.dtype, device=x.device)
    width = triton.next_power_of_2(size // 2)
    rows = max(1, _TILE // 2 // width)
    _rotate_halves[(triton.cdiv(tokens * heads, rows),)](
        x, cos, sin, out, tokens, x.stride(2), x.stride(1), heads, size // 2, width, rows, back, num_warps=4
    )
    return out.transpose(1, 2)


@triton.jit
def _norm_forward(
    x_at,
    weight_at,
    out_at,
    scale_at,
    num_rows,
    eps,
    OFFSET: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (row < num_rows)[:, None] & (column < SIZE)[None, :]
    at = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    x = tl.load(x_at + at, inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_at + column, column < SIZE, other=0.0).to(tl.float32) + OFFSET
    scale = 1.0 / tl.sqrt(tl.sum(x * x, 1) / SIZE + eps)
    tl.store(out_at + at, x * scale[:, None] * weight[None, :], inside)
    tl.store(scale_at + row, scale, row < num_rows)


@triton.jit
def _norm_backward(
    grad_at,
    x_at,
    weight_at,
    scale_at,
    grad_x_at,
    parts_at,
    num_rows,
    num_blocks,
    OFFSET: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    TRAINS: tl.constexpr,
):
    column = tl.arange(0, WIDTH)
    weight = tl.load(weight_at + column, column < SIZE, other=0.0).to(tl.float32) + OFFSET
    part = tl.zeros((WIDTH,), tl.float32)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        row = block * ROWS + tl.arange(0, ROWS)
        inside = (row < num_rows)[:, None] & (column < SIZE)[None, :]
        at = row.to(tl.int64)[:, None] * SIZE + column[None, :]
        x = tl.load(x_at + at, inside, other=0.0).to(tl.float32)
        grad = tl.load(grad_at + at, inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_at + row, row < num_rows, other=0.0)[:, None]
        unit, slope = x * scale, grad * weight[None, :]
        along = tl.sum(slope * unit, 1)[:, None] / SIZE
        tl.store(grad_x_at + at, scale * (slope - unit * along), inside)
        if TRAINS:
            part += tl.sum(grad * unit, 0)
    if TRAINS:
        tl.store(parts_at + tl.program_id(0) * SIZE + column, part, column < SIZE)


@triton.jit
def _rotate_halves(
    x_at,
    cos_at,
    sin_at,
    out_at,
    tokens,
    token_stride,
    head_stride,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    BACK: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    token, head = row // HEADS, row % HEADS
    inside = (token < tokens)[:, None] & (column < HALF)[None, :]
    at = token.to(tl.int64)[:, None] * token_stride + head.to(tl.int64)[:, None] * head_stride + column[None, :]
    first = tl.load(x_at + at, inside, other=0.0).to(tl.float32)
    second = tl.load(x_at + at + HALF, inside, other=0.0).to(tl.float32)
    angle = token.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
    cos_1 = tl.load(cos_at + angle, inside, other=0.0).to(tl.float32)
    cos_2 = tl.load(cos_at + angle + HALF, inside, other=0.0).to(tl.float32)
    sin_1 = tl.load(sin_at + angle, inside, other=0.0).to(tl.float32)
    sin_2 = tl.load(sin_at + angle + HALF, inside, other=0.0).to(tl.float32)
    to = row.to(tl.int64)[:, None] * (2 * HALF) + column[None, :]
    if BACK:
        tl.store(out_at + to, first * cos_1 + second * sin_2, inside)
        tl.store(out_at + to + HALF, second * cos_2 - first * sin_1, inside)
    else:
        tl.store(out_at + to, first * cos_1 - second * sin_1, inside)
        tl.store(out_at + to + HALF, second * cos_2 + first * sin_2, inside)


@triton.jit
def _activation(gate, KIND: tl.constexpr):
    """(value, derivative)."""
    if KIND == 0:
        share = tl.sigmoid(gate)
        slope = share + gate * share * (1 - share)
    elif KIND == 1:  # (1 + tanh(z)) / 2 = sigmoid(2 z), z = sqrt(2 / pi) (gate + 0.044715 gate³)
        share = tl.sigmoid(1.5957691216057308 * gate * (1 + 0.044715 * gate * gate))
        slope = share + gate * share * (1 - share) * 1.5957691216057308 * (1 + 0.134145 * gate * gate)
    else:
        share = 0.5 * (1 + tl.erf(gate * 0.7071067811865476))
        slope = share + gate * 0.3989422804014327 * tl.exp(-0.5 * gate * gate)
    return gate * share, slope


@triton.jit
def _gated_forward(gate_at, up_at, out_at, size, KIND: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    gate = tl.load(gate_at + at, at < size, other=0.0).to(tl.float32)
    up = tl.load(up_at + at, at < size, other=0.0).to(tl.float32)
    value, _slope = _activation(gate, KIND)
    tl.store(out_at + at, value * up, at < size)


@triton.jit
def _gated_backward(grad_at, gate_at, up_at, grad_gate_at, grad_up_at, size, KIND: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    grad = tl.load(grad_at + at, at < size, other=0.0).to(tl.float32)
    gate = tl.load(gate_at + at, at < size, other=0.0).to(tl.float32)
    up = tl.load(up_at + at, at < size, other=0.0).to(tl.float32)
    value, slope = _activation(gate, KIND)
    tl.store(grad_gate_at + at, grad * up * slope, at < size)
    tl.store(grad_up_at + at, grad * value, at < size)
