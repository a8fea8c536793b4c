"""The two passes of generation, prefill and one decoding step, for any transformers model with full attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

_MIN_LENGTH_RATIO = 0.7
"""Prompts share a padded pass if the shortest has at least this share of the longest."""
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


@dataclass(frozen=True)
class Prefilled:
    """What a prefill leaves for decoding."""

    logits: torch.Tensor
    """[B, V] at each prompt's last position."""
    keys: list[list[torch.Tensor]]
    """For each prompt, one [heads, >= T, head_dim] a layer."""
    values: list[list[torch.Tensor]]
    """The same."""

    def admit(self, cache: SlotCache, row: int, length: int) -> None:
        """Give a prompt of so many tokens a row of the cache."""
        cache.admit(self.keys[row], self.values[row], length)


class Rows(Protocol):
    """Open answers; what else a cache holds is between it and its runner."""

    def release(self, row: int) -> None:
        """Free a row; the last one moves into the gap."""
        ...


C_contra = TypeVar("C_contra", bound=Rows, contravariant=True)
"""The kind of cache that a runner decodes with."""


class Prefill(Protocol[C_contra]):
    """What a prefill leaves for decoding."""

    @property
    def logits(self) -> torch.Tensor:
        """[B, V] at each prompt's last position."""
        ...

    def admit(self, cache: C_contra, row: int, length: int) -> None:
        """Give a prompt of so many tokens a row of the cache."""
        ...


class Runner(Protocol[C_contra]):
    """Runs a model's forward passes; used from one thread, in inference mode."""

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefill[C_contra]:
        """One pass over whole prompts."""
        ...

    def score(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Logits at each prompt's last position, [B, V], of prompts that nobody continues."""
        ...

    def decode(self, last: Sequence[int], cache: C_contra) -> torch.Tensor:
        """Append one token to every row of the cache; gives the logits after it, [B, V]."""
        ...

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:
        """Split prompts (ascending lengths) into passes of `score` or `prefill`; gives indices."""
        ...


def similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of ascending lengths, similar ones together, so that little is padded."""
    groups: list[list[int]] = []
    for index, length in enumerate(lengths):
        if groups and lengths[groups[-1][0]] >= _MIN_LENGTH_RATIO * length:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def padded_pass(model: Any, prompts: Sequence[Sequence[int]], **options: Any) -> torch.Tensor:
    """Logits at each prompt's last position, [B, V]; the head runs at the positions where some prompt ends.

    Padded on the right, where no causal layer looks: attention with or without windows, convolution, recurrence.
    """
    lengths = [len(p) for p in prompts]
    width = max(lengths)
    padded = [[*p, *[0] * (width - len(p))] for p in prompts]
    ends = sorted(set(lengths))
    output = model(
        input_ids=torch.tensor(padded, device=model.device),  # [B, T]
        logits_to_keep=torch.tensor(ends, device=model.device) - 1,
        **options,
    )
    logits: torch.Tensor = output.logits[list(range(len(prompts))), [ends.index(n) for n in lengths]]
    return logits


class GenericRunner:
    """Through transformers' own forward: prompts padded on the right, which causal attention never looks at."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def prefill(self, prompts: Sequence[Sequence[int]]) -> Prefilled:
        """One padded pass."""
        cache = DynamicCache()
        logits = padded_pass(self._model, prompts, past_key_values=cache, use_cache=True)
        rows = range(len(prompts))
        layers: list[Any] = cache.layers
        return Prefilled(
            logits=logits,
            keys=[[layer.keys[row] for layer in layers] for row in rows],
            values=[[layer.values[row] for layer in layers] for row in rows],
        )

    def score(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """One padded pass that keeps nothing."""
        return padded_pass(self._model, prompts, use_cache=False)

    def decode(self, last: Sequence[int], cache: SlotCache) -> torch.Tensor:
        """One pass of [B, 1] tokens over the slot cache."""
        positions, mask = cache.begin_step(self._model.dtype)
        output = self._model(
            input_ids=torch.tensor(last, device=self._model.device)[:, None],
            position_ids=positions[:, None],
            attention_mask=mask[:, None, None, :],
            past_key_values=cache,
            use_cache=True,
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:  # noqa: ARG002 - padded both times
        """Similar lengths together."""
        return similar(lengths)
