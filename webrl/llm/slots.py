"""A key-value cache of rows that come and go: each row has its own length, new tokens go to its end."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

_GRAIN = 128
"""The cache grows by multiples of this many positions."""


class SlotLayer(CacheLayerMixin):
    """Keys and values of one layer, [capacity, heads, width, head_dim]; only single-token updates."""

    is_sliding = False

    def __init__(self, cache: SlotCache) -> None:
        super().__init__()
        self._cache = cache
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Storage is made by `SlotCache.admit`."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token a row at the row's end; gives the used part of the cache."""
        cache = self._cache
        assert self.keys is not None and self.values is not None and key_states.shape[2] == 1
        self.keys[cache.row_index, :, cache.write_at] = key_states[:, :, 0]
        self.values[cache.row_index, :, cache.write_at] = value_states[:, :, 0]
        num_rows, width = len(cache.lengths), cache.width
        return self.keys[:num_rows, :, :width], self.values[:num_rows, :, :width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width of the attention mask, and its offset."""
        return self._cache.width, 0

    def get_seq_length(self) -> int:
        """Longest row before this step."""
        return max(self._cache.lengths, default=0)

    def get_max_length(self) -> int:
        """No fixed limit: storage grows."""
        return -1


class SlotCache(Cache):
    """Rows 0 … n-1 are in use; `release` moves the last row into the gap.

    Use: `admit` a prefilled row, then for each decoding step `begin_step`, one forward pass, repeat.
    """

    def __init__(self, num_layers: int, capacity: int, device: torch.device | str) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(num_layers)])
        self._capacity = capacity
        self.lengths: list[int] = []
        self.width = 0
        self.row_index = self.write_at = torch.empty(0, dtype=torch.long, device=device)
        self._device = device

    def admit(self, prefill: DynamicCache, row: int, length: int) -> None:
        """Append row `row` of a right-padded prefill as a new row of `length` tokens."""
        self._reserve(prefill, len(self.lengths) + 1, length + 1)
        new = len(self.lengths)
        for layer, source in zip(self.layers, prefill.layers, strict=True):
            layer.keys[new, :, :length] = source.keys[row, :, :length]
            layer.values[new, :, :length] = source.values[row, :, :length]
        self.lengths.append(length)

    def begin_step(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Make room for one token a row; gives its positions [B, 1] and the additive mask [B, 1, 1, width]."""
        self.width = max(self.lengths) + 1
        self._reserve(None, len(self.lengths), self.width)
        self.write_at = torch.tensor(self.lengths, device=self._device)  # [B]
        self.row_index = torch.arange(len(self.lengths), device=self._device)  # [B]
        columns = torch.arange(self.width, device=self._device)
        hidden = columns[None, :] > self.write_at[:, None]  # [B, width]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self.lengths = [length + 1 for length in self.lengths]
        return self.write_at[:, None], mask[:, None, None, :]

    def release(self, row: int) -> None:
        """Free a row; the last row takes its place (the caller moves its own bookkeeping alike)."""
        last = len(self.lengths) - 1
        if row != last:
            length = self.lengths[last]
            for layer in self.layers:
                layer.keys[row, :, :length] = layer.keys[last, :, :length]
                layer.values[row, :, :length] = layer.values[last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()

    def _reserve(self, like: DynamicCache | None, rows: int, width: int) -> None:
        """Grow storage to at least [rows, heads, width, head_dim]; old rows are kept."""
        for index, layer in enumerate(self.layers):
            old_keys, old_values = layer.keys, layer.values
            if old_keys is not None and rows <= old_keys.shape[0] and width <= old_keys.shape[2]:
                continue
            source_keys = like.layers[index].keys if like is not None else old_keys
            source_values = like.layers[index].values if like is not None else old_values
            old_rows, old_width = (old_keys.shape[0], old_keys.shape[2]) if old_keys is not None else (0, 0)
            new_rows = min(max(2 * old_rows, rows), self._capacity) if rows > old_rows else old_rows
            new_width = max(old_width, -(-width // _GRAIN) * _GRAIN)
            layer.keys = _grown(old_keys, source_keys, new_rows, new_width)
            layer.values = _grown(old_values, source_values, new_rows, new_width)


def _grown(old: torch.Tensor | None, like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    # Zeros, not garbage: a masked NaN would still poison the attention's weighted sum.
    new = like.new_zeros((rows, like.shape[1], width, like.shape[3]))
    if old is not None:
        new[: old.shape[0], :, : old.shape[2]] = old
    return new
