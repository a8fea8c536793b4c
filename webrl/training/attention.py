"""Block-diagonal causal attention over packed sequences, registered with transformers as `webrl_packed`.

A packed row holds several sequences end to end. Each attends to itself alone, and no mask of size T x T is
ever built: on CUDA the variable-length flash kernel of torch runs over all of them at once; elsewhere one
causal `scaled_dot_product_attention` runs per sequence, while every matrix product of the model still sees the
whole row. Left out: attention dropout and sliding windows (the models trained here have neither).
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NAME = "webrl_packed"


def packed_attention(
    _module: torch.nn.Module,
    query: Tensor,  # [1, H, T or N, D]
    key: Tensor,  # [1, K, T, D], H a multiple of K
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    seq_lens: tuple[int, ...] | None = None,
    cu_seq_lens: Tensor | None = None,
    query_lens: tuple[int, ...] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of each sequence of a packed row with itself; the signature transformers asks for.

    Args:
        seq_lens: lengths of the sequences, summing to T; None means one sequence.
        cu_seq_lens: [B+1] int32 cumulative lengths on the device (for the CUDA kernel).
        query_lens: queries are the last `query_lens[i]` positions of sequence i, N in all; None: all of them.

    Returns:
        ([1, T or N, H, D], None).
    """
    if query.shape[0] != 1 or attention_mask is not None:
        raise ValueError(f"{NAME} takes one packed row without a mask, found batch {query.shape[0]}")
    lens = seq_lens or (key.shape[2],)
    query_lens = query_lens or lens
    if (
        query.is_cuda
        and cu_seq_lens is not None
        and query.dtype != torch.float32
        and (len(lens) > 1 or query_lens != lens)
    ):
        return _varlen(query, key, value, cu_seq_lens, lens, query_lens, scaling), None
    grouped = key.shape[1] != query.shape[1]
    parts = [
        _one_sequence(q, k, v, scaling, grouped)
        for q, k, v in zip(query.split(query_lens, 2), key.split(lens, 2), value.split(lens, 2), strict=True)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
    return out.transpose(1, 2).contiguous(), None


def _one_sequence(query: Tensor, key: Tensor, value: Tensor, scale: float | None, grouped: bool) -> Tensor:
    """Causal attention of the last N positions of one sequence of T."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if num_queries == num_keys:
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=grouped
        )
    mask = None
    if num_queries > 1:
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(num_keys - num_queries)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=grouped)


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_lens: Tensor,
    lens: tuple[int, ...],
    query_lens: tuple[int, ...],
    scale: float | None,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))  # [T, H, D]
    known = _varlen_options()
    options: dict[str, Any] = {"window_size": (-1, 0)} if known["window_size"] else {"is_causal": True}
    if known["scale"]:
        options["scale"] = scale
    if k.shape[1] != q.shape[1]:
        if known["enable_gqa"]:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    cu_queries = cu_seq_lens
    if query_lens != lens:
        ends = torch.tensor((0, *query_lens)).cumsum(0)
        cu_queries = ends.to(cu_seq_lens.device, torch.int32, non_blocking=True)
    # the kernel aligns queries with the end of the keys
    out = varlen_attn(q, k, v, cu_queries, cu_seq_lens, max(query_lens), max(lens), **options)
    assert isinstance(out, Tensor)  # a pair only where return_aux asks for one
    return out.unsqueeze(0)


@cache
def _varlen_options() -> dict[str, bool]:
    """Which keywords this torch's `varlen_attn` knows; they changed between 2.10 and 2.13."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    return {name: name in known for name in ("window_size", "scale", "enable_gqa")}


def register() -> str:
    """Make `attn_implementation="webrl_packed"` known to transformers; gives that name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    return NAME


def _no_mask(*_: Any, **__: Any) -> None:
    return None
