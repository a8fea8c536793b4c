"""Process rank in the job, and collectives; everything here is a no-op in a single-process job."""

from __future__ import annotations

import os
import time
from typing import Any


def join(device: str) -> None:
    """Join the process group that a launcher set up in the environment (RANK, WORLD_SIZE, MASTER_ADDR, …).

    On GPUs, NCCL handles tensors on the device and gloo those on the CPU (gathered scores).
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    from accelerate import PartialState

    if device == "cpu":
        PartialState(cpu=True, backend="gloo")
    else:
        PartialState(backend="cuda:nccl,cpu:gloo")


def leave() -> None:
    """Close the process group.

    Dropping its last reference holds the GIL while it waits for gloo's threads to end (torch 2.13); a thread
    that still has to release a tensor waits for the GIL. So these threads get time first.
    """
    import torch

    if torch.distributed.is_initialized():
        time.sleep(0.1)
        torch.distributed.destroy_process_group()


def world() -> tuple[int, int]:
    """Return (number of processes, rank of this one)."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def is_main() -> bool:
    """True on the process that writes files."""
    return world()[1] == 0


def barrier() -> None:
    """Wait for all processes."""
    import torch

    if world()[0] > 1:
        torch.distributed.barrier()


def gather(item: Any) -> list[Any]:
    """One picklable object of each process, in rank order, on every process."""
    import torch

    if world()[0] == 1:
        return [item]
    items: list[Any] = [None] * world()[0]
    torch.distributed.all_gather_object(items, item)
    return items


def broadcast(value: Any) -> Any:
    """The main process's value, on every process."""
    import torch

    if world()[0] == 1:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
