"""Token-exact samples, packed end to end into rows of at most `max_tokens`, balanced across ranks.

Left out: padding (there is none) and re-tokenisation (ids are exactly those of the rollout).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from webrl.errors import TrainingError
from webrl.llm.pictures import Example, Picture
from webrl.training.devices import send
from webrl.training.layers.attention import Layout

HEADER_TOKENS = 8
"""Prompt tokens at the end that are never cut: they hold the template's assistant header."""


@dataclass(frozen=True)
class Item:
    """One sample: ids of prompt and action; the last `num_targets` ids are predicted (0 for a value)."""

    ids: tuple[int, ...]
    """[L] token ids."""
    num_targets: int
    """Number of ids at the end that are predicted."""
    picture: Picture | None = None
    """As in `Example`."""


@dataclass(frozen=True)
class Pack:
    """Samples concatenated in one row; all tensors are on one device.

    A sample's very last target is predicted, never read: it is not in the row. So the positions that predict are
    always the last ones of a sequence.
    """

    input_ids: Tensor
    """[1, T] token ids."""
    position_ids: Tensor
    """[1, T] position within the own sequence."""
    layout: Layout
    """Lengths, and the positions whose output is wanted: those that predict a target, or each last token."""
    targets: Tensor
    """[N] token ids to predict; empty for values."""
    target_sample: Tensor
    """[N] which sample of the row (0..B-1) a target belongs to."""
    num_samples: int
    """B."""
    pictures: tuple[Picture | None, ...]
    """B, in the order of the samples."""


def pack(items: Sequence[Item], device: torch.device | str = "cpu") -> Pack:
    """Lay samples end to end. Raises ValueError for an empty one, or targets with no token to predict them from."""
    for item in items:
        if not 0 <= item.num_targets < max(len(item.ids), 1) or not item.ids:
            raise ValueError(f"a sample of {len(item.ids)} tokens cannot have {item.num_targets} targets")
    inputs = [item.ids[:-1] if item.num_targets else item.ids for item in items]
    ids = np.fromiter(itertools.chain.from_iterable(inputs), np.int64)  # six times as fast as a tensor of a list
    lens = tuple(len(ids) for ids in inputs)
    num_targets = torch.tensor([item.num_targets for item in items])
    targets = [token for item in items for token in item.ids[len(item.ids) - item.num_targets :]]
    return Pack(
        input_ids=send(torch.from_numpy(ids).unsqueeze(0), device),
        position_ids=send(torch.cat([torch.arange(length) for length in lens]).unsqueeze(0), device),
        layout=Layout.of(lens, tuple(max(item.num_targets, 1) for item in items), device),
        targets=send(torch.tensor(targets, dtype=torch.long), device),
        target_sample=send(torch.repeat_interleave(torch.arange(len(items)), num_targets), device),
        num_samples=len(items),
        pictures=tuple(item.picture for item in items),
    )


def make_item(example: Example, limit: int) -> Item:
    """A sample of at most `limit` tokens: what is too long is cut from the end of the page.

    The page is the last thing in a prompt; only the template's header (`HEADER_TOKENS`) follows it and stays. (With
    `models.prompt_format=chat_history_last` the newest history would go before it: keep `models.max_prompt_tokens` +
    `rollout.max_new_tokens` within the limit, as the defaults do.)

    Raises:
        ValueError: the action and the header alone exceed the limit.
        TrainingError: a sample with a picture exceeds it: it is not cut.
    """
    prompt, action, picture = example
    excess = len(prompt) + len(action) - limit
    if excess <= 0:
        return Item((*prompt, *action), len(action), picture)
    if picture:
        raise TrainingError(
            f"{picture.path}: a prompt of {len(prompt)} tokens with a picture and an action of {len(action)} do not "
            f"fit the context of {limit} tokens; raise max_tokens, or lower models.max_prompt_tokens"
        )
    tail = min(HEADER_TOKENS, len(prompt))
    keep = len(prompt) - tail - excess
    if keep < 0:
        raise ValueError(f"an action of {len(action)} tokens does not fit the context of {limit} tokens")
    return Item((*prompt[:keep], *prompt[-tail:], *action), len(action))


def plan_rows(
    lengths: Sequence[int], max_tokens: int, num_ranks: int = 1, *, packs: bool = True
) -> list[list[list[int]]]:
    """Distribute samples over rows of at most `max_tokens`, as even as possible, the same number on each rank.

    Longest first into the emptiest row; the number of rows is the smallest multiple of `num_ranks` that fits.

    Args:
        packs: False for a model that takes one sequence a row.

    Returns:
        [rank][row][sample index]; a row may be empty if there are fewer samples than rows.
    """
    longest = max(lengths, default=0)
    num_rows = max(1, math.ceil(sum(min(length, max_tokens) for length in lengths) / max(max_tokens, 1)))
    if not packs:
        num_rows = max(num_rows, len(lengths))
    while True:
        num_rows = math.ceil(num_rows / num_ranks) * num_ranks
        heap: list[tuple[int, int]] = [(0, row) for row in range(num_rows)]
        rows: list[list[int]] = [[] for _ in range(num_rows)]
        for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            load, row = heapq.heappop(heap)
            rows[row].append(index)
            heapq.heappush(heap, (load + lengths[index], row))
        if max((load for load, _ in heap), default=0) <= max(max_tokens, longest):
            break
        num_rows += 1
    rows = [sorted(row) for row in rows]
    rows.sort(key=lambda row: -sum(lengths[i] for i in row))
    return [rows[rank::num_ranks] for rank in range(num_ranks)]
