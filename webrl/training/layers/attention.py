"""Block-diagonal causal attention over packed sequences, registered with transformers as `webrl_packed`.

A packed row holds several sequences end to end. Each attends to itself alone, and no mask of size T x T is
ever built: on CUDA the variable-length flash kernel of torch runs over all of them at once; elsewhere, and where all
are long, one kernel runs per sequence, while every matrix product of the model still sees the whole row. Sliding
windows are honoured; any other keyword is refused, so that no architecture is computed as if it were another. Left out:
caps and sinks of scores (`architectures.py`: such models take one sequence a row), attention dropout (`models.py` turns
it off).
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from webrl.training.devices import send

NAME = "webrl_packed"
LONG_TOKENS = 2048
"""From here on one kernel a sequence is as fast as one for all."""
_PLAN_TOKENS = 512
_KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_NO_MATTER = frozenset(
    {"position_ids", "use_cache", "output_attentions", "output_hidden_states", "output_router_logits"}
)
"""Keywords that models hand down to their attention and that change nothing in it."""


@dataclass(eq=False)
class Layout:
    """Where the sequences of a packed row lie, and at which positions its output is wanted; not to be changed.

    One object rather than five arguments, because compiled layers hand it on without looking inside. (Into a frozen
    dataclass they look, and compile again for each number of sequences.)
    """

    seq_lens: tuple[int, ...]
    """[B] lengths, summing to T."""
    cu_seq_lens: Tensor
    """[B+1] int32 cumulative lengths."""
    keep: Tensor
    """[N] positions whose final hidden state is wanted: the last `keep_lens[i]` of each sequence."""
    keep_lens: tuple[int, ...]
    """[B] how many of each sequence, summing to N."""
    cu_keep_lens: Tensor
    """[B+1] int32 cumulative."""

    @classmethod
    def of(cls, seq_lens: tuple[int, ...], keep_lens: tuple[int, ...], device: torch.device | str) -> Layout:
        """Lay sequences end to end; of each, the last `keep_lens[i]` positions are wanted."""
        ends, kept = torch.tensor(seq_lens).cumsum(0), torch.tensor(keep_lens)  # [B]
        sample = torch.repeat_interleave(torch.arange(len(seq_lens)), kept)  # [N]
        offset = torch.arange(len(sample)) - (kept.cumsum(0) - kept)[sample]
        zero = ends.new_zeros(1)
        return cls(
            seq_lens=seq_lens,
            cu_seq_lens=send(torch.cat([zero, ends]).to(torch.int32), device),
            keep=send((ends - kept)[sample] + offset, device),
            keep_lens=keep_lens,
            cu_keep_lens=send(torch.cat([zero, kept.cumsum(0)]).to(torch.int32), device),
        )


@torch.compiler.disable
def packed_attention(
    _module: torch.nn.Module,
    query: Tensor,  # [1, H, T or N, D]
    key: Tensor,  # [1, K, T, D], H a multiple of K
    value: Tensor,  # [1, K, T, E]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    layout: Layout | None = None,
    kept_only: bool = False,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of each sequence of a packed row with itself; the signature transformers asks for.

    Args:
        layout: of the row; None means one sequence.
        kept_only: the queries are those of `layout.keep` alone.

    Returns:
        ([1, T or N, H, E], None).

    Raises:
        ValueError: dropout, a mask, more than one row, or a keyword that is not known here (named).
    """
    unknown = [name for name, given in others.items() if given is not None and name not in _NO_MATTER]
    if unknown or dropout or is_causal is False:
        what = unknown or (["dropout"] if dropout else ["is_causal=False"])
        raise ValueError(f"{NAME} does not know the attention keyword {', '.join(map(repr, what))}")
    if query.shape[0] != 1 or attention_mask is not None:
        raise ValueError(f"{NAME} takes one packed row without a mask, found batch {query.shape[0]}")
    layout = layout or Layout.of((key.shape[2],), (key.shape[2],), key.device)  # one sequence, all of it wanted
    # the autocast region's precision, else the values': rotary tables in float32 leave queries and keys in it
    kind = value.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else value.dtype
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    lens = layout.seq_lens
    query_lens = layout.keep_lens if kept_only else lens
    window = sliding_window if sliding_window and sliding_window < max(lens) else None
    attend = _one_sequence
    if query.is_cuda and query.dtype != torch.float32:
        # the head sizes, and for windows the torch versions, that the variable-length kernel covers
        fits = query.shape[-1] <= 256 and query.shape[-1] % 8 == 0 and (not window or _varlen_options()["window_size"])
        if query_lens == lens and min(lens) >= LONG_TOKENS and window is None:
            attend = _long_sequence
        elif (query_lens != lens or len(lens) > 1 or window) and fits:
            return _varlen(query, key, value, layout, query_lens, scaling, window), None
    parts = [
        attend(q, k, v, scaling, window).transpose(1, 2)
        for q, k, v in zip(query.split(query_lens, 2), key.split(lens, 2), value.split(lens, 2), strict=True)
    ]
    return (parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim=1)), None


def _one_sequence(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    """Causal attention of the last N positions of one sequence of T; a query sees `window` keys, itself included."""
    num_queries, num_keys, grouped = query.shape[2], key.shape[2], key.shape[1] != query.shape[1]
    window = window if window and window < num_keys else None
    whole = num_queries == num_keys and window is None
    mask = None
    if not whole and (num_queries > 1 or window):
        behind = num_keys - num_queries
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=query.device).tril(behind)  # [N, T]
        mask = mask.triu(behind - window + 1) if window else mask
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=whole, scale=scale, enable_gqa=grouped
    )


def _long_sequence(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    """Causal attention of one whole sequence by cuDNN's kernel, on Hopper twice as fast as flash at 16,384 tokens.

    Its plans are made per length (70 ms each), so the sequence is padded to a multiple; causal queries never see the
    padding behind them.
    """
    length = query.shape[2]
    if padding := -length % _PLAN_TOKENS:
        query, key, value = (functional.pad(x, (0, 0, 0, padding)) for x in (query, key, value))
    with sdpa_kernel(_KERNELS, set_priority=True):
        return _one_sequence(query, key, value, scale, window)[:, :, :length]


def _varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Layout,
    query_lens: tuple[int, ...],
    scale: float | None,
    window: int | None,
) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    width = value.shape[-1]
    if width != query.shape[-1]:  # latent attention: values are narrower than keys
        value = functional.pad(value, (0, query.shape[-1] - width))
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))  # [T, H, D]
    known = _varlen_options()
    before = -1 if window is None else window - 1  # the kernel does not count the query itself
    options: dict[str, Any] = {"window_size": (before, 0)} if known["window_size"] else {"is_causal": True}
    if known["scale"]:
        options["scale"] = scale
    elif scale is not None:
        q = q * (scale * q.shape[-1] ** 0.5)
    if k.shape[1] != q.shape[1]:
        if known["enable_gqa"]:
            options["enable_gqa"] = True
        else:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    cu_keys = layout.cu_seq_lens
    cu_queries = cu_keys if query_lens == layout.seq_lens else layout.cu_keep_lens
    # the kernel aligns queries with the end of the keys
    out = varlen_attn(q, k, v, cu_queries, cu_keys, max(query_lens), max(layout.seq_lens), **options)
    assert isinstance(out, Tensor)  # a pair only where return_aux asks for one
    return out[..., :width].unsqueeze(0)


@cache
def _varlen_options() -> dict[str, bool]:
    """Which keywords this torch's `varlen_attn` knows; they changed between 2.10 and 2.13."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    return {name: name in known for name in ("window_size", "scale", "enable_gqa")}
