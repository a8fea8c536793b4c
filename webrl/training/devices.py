"""Where rows are computed: tensors on their way to that device and back, and rows side by side on a CPU, a thread each.

The products of a small model are too short to share: threads that split each of them wait for one another after each,
and one that loses its core to a browser holds up all. A thread with its own row waits for no other: the train stages of
the demo's first two phases took 45 and 46 s on two idle cores, and 57 and 62 s without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from webrl.runs.machine import free_heap

Map = Callable[[Callable[[Any], Any], Sequence[Any]], list[Any]]
Gradients = list[Tensor | None]
"""Of each trained parameter."""

_SMALL_MODEL_PARAMETERS = 50_000_000
ROW_TOKENS = 1024
"""Rows side by side are this long at most: twice as long takes as much time, and twice the memory in every thread."""
_MAX_THREADS = 4
"""A batch of the demo has rows for as many."""


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a CPU tensor to another device; on a GPU the copy is queued, and the host does not wait for it."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def receive(tensor: Tensor) -> Callable[[], Tensor]:
    """Start copying a tensor to the CPU; calling the result waits for it, not for work queued on the GPU later."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    arrived = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    arrived.copy_(tensor, non_blocking=True)
    event = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Tensor:
        event.synchronize()
        return arrived

    return wait


def num_row_threads(model: nn.Module, device: torch.device | str) -> int:
    """Return how many rows of the model are computed at a time on this device."""
    if torch.device(device).type != "cpu" or sum(p.numel() for p in model.parameters()) >= _SMALL_MODEL_PARAMETERS:
        return 1
    return min(torch.get_num_threads(), _MAX_THREADS)


@contextlib.contextmanager
def row_threads(number: int) -> Iterator[Map]:
    """A `map` over this many threads, each computing alone; results in order, the first error raised."""
    if number == 1:
        yield lambda work, items: [work(item) for item in items]
        return
    before = torch.get_num_threads()
    with ThreadPoolExecutor(number, "webrl-rows", torch.set_num_threads, (1,)) as pool:
        try:
            yield lambda work, items: list(pool.map(work, items))
        finally:
            torch.set_num_threads(before)  # a part of it holds for the whole process
            free_heap()  # each thread has its own


def add_gradients(total: Gradients | None, more: Sequence[Tensor | None]) -> Gradients:
    """Sums by parameter, into `total`'s memory; None if no part has any."""
    if total is None:
        return list(more)
    return [b if a is None else a if b is None else a.add_(b) for a, b in zip(total, more, strict=True)]
