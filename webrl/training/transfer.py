"""Moves tensors between the host and the device that computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


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
