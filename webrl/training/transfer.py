"""Between the host and the device that computes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the CPU on another device; a GPU gets it in its turn, and nobody waits until then."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def receive_scalars(scalars: dict[str, Tensor]) -> Callable[[], dict[str, float]]:
    """Numbers on their way to the CPU, as with `receive`."""
    on_host = receive(torch.stack(list(scalars.values())))
    return lambda: dict(zip(scalars, on_host().tolist(), strict=True))


def receive(tensor: Tensor) -> Callable[[], Tensor]:
    """A tensor on its way to the CPU; who calls the result waits for it, not for what the GPU is given later."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    arrived = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    arrived.copy_(tensor, non_blocking=True)
    event = torch.cuda.current_stream(tensor.device).record_event()

    def wait() -> Tensor:
        event.synchronize()
        return arrived

    return wait
