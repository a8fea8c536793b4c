"""The two passes of generation, prefill and one decoding step, for any transformers model with full attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from transformers.cache_utils import DynamicCache

from webrl.llm.local.slots import SlotCache

_MIN_LENGTH_RATIO = 0.7
"""Prompts share a padded pass if the shortest has at least this share of the longest."""


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
