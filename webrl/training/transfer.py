"""From the host to the device that computes."""

from __future__ import annotations

import torch
from torch import Tensor


def send(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the CPU on another device; a GPU gets it in its turn, and nobody waits until then."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)
