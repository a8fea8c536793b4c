"""What this machine has to offer: its NVIDIA GPUs, asked of the driver (no torch, no CUDA context), and free ports."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Sequence
from itertools import takewhile


def query_gpus(fields: str, gpus: Sequence[str] = ()) -> list[list[str]]:
    """The fields of each GPU, or of these ones, in `nvidia-smi`'s words without units; none where no driver answers."""
    chosen = ["-i", ",".join(gpus)] if gpus else []
    command = ["nvidia-smi", *chosen, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in found.splitlines()]


def visible_gpus() -> list[str]:
    """Ids of the GPUs that this process may use."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        ids = (gpu.strip() for gpu in listed.split(","))
        return [gpu for gpu in takewhile(lambda gpu: gpu != "-1", ids) if gpu]  # CUDA reads no further either
    return [row[0] for row in query_gpus("index")]


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on now.

    It is below the ports that systems choose for outgoing connections: a browser would take one of those in the minute
    that a model server needs before it listens.
    """
    draw = random.SystemRandom()
    for port in draw.sample(range(10_240, 32_768), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("of 1,000 TCP ports of 127.0.0.1 that were tried, none can be listened on")
