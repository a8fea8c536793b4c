"""Generation for models that a `SlotCache` does not fit: sliding windows, recurrent and convolution layers.

Each answer has the cache that the model itself makes (a model that makes none reads its whole text anew), and its rows
run one after the other: exact for every architecture, and slower than vLLM. Prompts that are only scored, as a judge's,
need no cache and share padded passes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from webrl.llm.local.runner import padded_pass, similar

logger = logging.getLogger(__name__)

_MAX_SCORED = 16
"""Prompts in one scoring pass: its logits take 16 x 16 x vocabulary numbers, 0.3 GB with Gemma's 262 k."""


@dataclass
class OwnRow:
    """One open answer."""

    ids: list[int]
    """Prompt and answer so far."""
    cache: Any
    """Of transformers, in the state after `ids`; None for a model without."""


class OwnRows:
    """Open answers; as `SlotCache`, `release` moves the last row into the gap."""

    def __init__(self) -> None:
        self.rows: list[OwnRow] = []

    def release(self, row: int) -> None:
        """Free a row."""
        self.rows[row] = self.rows[-1]
        self.rows.pop()


@dataclass(frozen=True)
class OwnPrefilled:
    """What a prefill leaves for decoding."""

    logits: Tensor
    """[B, V] at each prompt's last position."""
    rows: list[OwnRow]
    """B."""

    def admit(self, cache: OwnRows, row: int, length: int) -> None:  # noqa: ARG002 - as `Prefilled.admit`
        """Give a prompt a row."""
        cache.rows.append(self.rows[row])


class OwnCacheRunner:
    """Through transformers' own forward and its own caches."""

    def __init__(self, model: Any, name: str, layers: str) -> None:
        """`name` of the model and kinds of its `layers`, for the warning that it is slow."""
        self._model = model
        self._warning = (
            f"model {name!r} has layers other than full attention ({layers}): its answers are written one by one, with "
            "transformers' own cache; engine.kind=vllm is faster"
        )
        self._shares = "logits_to_keep" in inspect.signature(model.forward).parameters

    def prefill(self, prompts: Sequence[Sequence[int]]) -> OwnPrefilled:
        """One pass a prompt."""
        if self._warning:
            logger.warning(self._warning)
            self._warning = ""
        rows = [OwnRow([], None) for _ in prompts]
        logits = [self._read(row, prompt) for row, prompt in zip(rows, prompts, strict=True)]
        return OwnPrefilled(torch.stack(logits), rows)

    def decode(self, last: Sequence[int], cache: OwnRows) -> Tensor:
        """Append one token to every row; gives the logits after it, [B, V]."""
        return torch.stack([self._read(row, [token]) for row, token in zip(cache.rows, last, strict=True)])

    def score(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """One padded pass, or one a prompt where the model's forward has no `logits_to_keep`."""
        if self._shares:
            return padded_pass(self._model, prompts, use_cache=False)
        return torch.stack([self._read(OwnRow([], None), prompt) for prompt in prompts])

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:
        """Every prompt by itself; similar lengths together where they are only scored."""
        if not scored:
            return [[index] for index in range(len(lengths))]
        return [group[i : i + _MAX_SCORED] for group in similar(lengths) for i in range(0, len(group), _MAX_SCORED)]

    def _read(self, row: OwnRow, new: Sequence[int]) -> Tensor:
        """[V] after some more tokens."""
        row.ids += new
        given = row.ids if row.cache is None else new
        options = {} if row.cache is None else {"past_key_values": row.cache}
        output = self._model(
            input_ids=torch.tensor([list(given)], device=self._model.device), use_cache=True, **options
        )
        row.cache = getattr(output, "past_key_values", None)
        logits: Tensor = output.logits[0, -1]
        return logits
