"""A key-value cache of rows that come and go: each row has its own length, new tokens go to its end."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

_GRAIN = 128
"""The cache grows by multiples of this many positions."""


class SlotLayer(CacheLayerMixin):
    """transformers' view of one layer of a `SlotCache`; only single-token updates."""

    is_sliding = False

    def __init__(self, cache: SlotCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Storage is made by `SlotCache.admit`."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one token a row at the row's end; gives the used part of the cache."""
        assert key_states.shape[2] == 1
        return self._cache.write(self._index, key_states[:, :, 0], value_states[:, :, 0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - transformers' signature
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
        super().__init__(layers=[SlotLayer(self, index) for index in range(num_layers)])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._capacity = capacity
        self.lengths: list[int] = []
        self.width = 0
        self.row_index = self.write_at = torch.empty(0, dtype=torch.long, device=device)
        self._device = device

    def admit(self, keys: list[torch.Tensor], values: list[torch.Tensor], length: int) -> None:
        """Append a prefilled row.

        Args:
            keys: one [heads, >= length, head_dim] a layer; what lies beyond `length` is ignored.
            values: the same.
            length: tokens of the row.
        """
        if not self._keys:
            self._keys = [layer.new_zeros((0, layer.shape[0], 0, layer.shape[2])) for layer in keys]
            self._values = [layer.new_zeros((0, layer.shape[0], 0, layer.shape[2])) for layer in values]
        new = len(self.lengths)
        self._reserve(new + 1, length + 1)
        for stored, given in zip(self._keys + self._values, keys + values, strict=True):
            stored[new, :, :length] = given[:, :length]
        self.lengths.append(length)

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store this step's [B, heads, head_dim]; gives the layer's [B, heads, width, head_dim] up to here."""
        keys, values, num_rows = self._keys[layer], self._values[layer], len(self.lengths)
        keys[self.row_index, :, self.write_at] = key
        values[self.row_index, :, self.write_at] = value
        return keys[:num_rows, :, : self.width], values[:num_rows, :, : self.width]

    def begin_step(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Make room for one token a row; gives its positions [B] and the additive mask [B, width]."""
        self.width = max(self.lengths) + 1
        self._reserve(len(self.lengths), self.width)
        self.write_at = torch.tensor(self.lengths, device=self._device)  # [B]
        self.row_index = torch.arange(len(self.lengths), device=self._device)  # [B]
        columns = torch.arange(self.width, device=self._device)
        hidden = columns[None, :] > self.write_at[:, None]  # [B, width]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self.lengths = [length + 1 for length in self.lengths]
        return self.write_at, mask

    def release(self, row: int) -> None:
        """Free a row; the last row takes its place (the caller moves its own bookkeeping alike)."""
        last = len(self.lengths) - 1
        if row != last:
            length = self.lengths[last]
            for stored in self._keys + self._values:
                stored[row, :, :length] = stored[last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()

    def _reserve(self, rows: int, width: int) -> None:
        """Grow storage to at least [rows, heads, width, head_dim]; old rows are kept."""
        old_rows, _, old_width, _ = self._keys[0].shape
        if rows <= old_rows and width <= old_width:
            return
        new_rows = min(max(2 * old_rows, rows), self._capacity) if rows > old_rows else old_rows
        new_width = max(old_width, -(-width // _GRAIN) * _GRAIN)
        self._keys = [_grown(old, new_rows, new_width) for old in self._keys]
        self._values = [_grown(old, new_rows, new_width) for old in self._values]


def _grown(old: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    # Zeros, not garbage: a masked NaN would still poison the attention's weighted sum.
    new = old.new_zeros((rows, old.shape[1], width, old.shape[3]))
    new[: old.shape[0], :, : old.shape[2]] = old
    return new
