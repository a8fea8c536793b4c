"""The resources of this machine, a run's use of them, and Python processes of webrl's own; settings of malloc and
OpenMP; frees cached memory.

GPUs are queried through the driver (no torch, no CUDA context); usage is read from outside, from the run's processes.
Our own processes import what this one does, and what they start in turn does not: `restore_python_path` is their first
act.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import socket
import subprocess
import sys
import threading
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil


def query_gpus(fields: str) -> list[list[str]]:
    """Return fields of each GPU in `nvidia-smi`'s words without units; none if no driver answers."""
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in found.splitlines()]


def visible_gpus() -> list[str]:
    """Return the ids of the GPUs that this process may use."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        ids = (gpu.strip() for gpu in listed.split(","))
        return [gpu for gpu in takewhile(lambda gpu: gpu != "-1", ids) if gpu]  # CUDA reads no further either
    return [row[0] for row in query_gpus("index")]


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now.

    It is below the ports that systems choose for outgoing connections, and above those of Ray's workers: either would
    take one in the minute that a model server needs before it listens.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_768), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("tried 1,000 TCP ports of 127.0.0.1, and none is free")


def measure(pid: int | None = None) -> tuple[float, dict[int, float]]:
    """Return the memory of a process and its descendants in MiB (shared pages count once where the OS tells), and the
    CPU seconds of each, by process id. Raises psutil.NoSuchProcess: the process has ended.
    """
    root = psutil.Process(pid)
    mib, seconds = 0.0, {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            info, times = process.memory_full_info(), process.cpu_times()
            mib += getattr(info, "pss", info.rss) / 2**20
            seconds[process.pid] = times.user + times.system
    return mib, seconds


class PeakMemory:
    """Context manager; `peak_mib` is the largest sum of proportional set sizes seen (RSS where PSS is not known). The
    pauses between readings double from two seconds on, up to eight.
    """

    def __init__(self) -> None:
        self.peak_mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = 2.0
        while True:
            self.peak_mib = max(self.peak_mib, measure()[0])
            if self._stop.wait(pause):
                return
            pause = min(2 * pause, 8.0)  # a reading takes 35 ms for each GiB, in which the process gets no memory


_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables, and numbers of the same options of `mallopt` in <malloc.h>."""


def cpu_environment() -> dict[str, str]:
    """Variables a parent exports before it starts a Python process that trains or scores on the CPU.

    Measured on two cores: large malloc thresholds keep freed activations in the process (+15-60 % tokens/s), and a
    passive OpenMP wait policy keeps two-thread training from collapsing (10x) when a browser needs a core as well.
    What the user has set in this process's environment is kept, and not in the result.
    """
    wanted = dict.fromkeys(_MALLOPT, str(1 << 34)) | {"OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def use_cpu_settings() -> None:
    """Set the same in this process, which must not have imported torch yet; what it starts inherits them.

    OpenMP reads its variable when torch is imported; malloc read its own at process start and is called instead.
    """
    missing = cpu_environment()
    os.environ.update(missing)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        for name, option in _MALLOPT.items():
            if name in missing:
                mallopt(option, (1 << 31) - 1)  # the largest int


def free_heap() -> None:
    """Hand back to the system what glibc keeps of freed memory: 1.1 GB after a training of the tiny actor."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_gpu_cache() -> None:
    """Hand back to the driver the GPU memory that torch keeps for this process and does not use."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


_OUTER_PATH = "WEBRL_OUTER_PYTHONPATH"


def own_python(module: str, *arguments: str) -> list[str]:
    """Return the command; the working folder, whose files may be called as any module is, is not searched (`-P`)."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """Return the variables of this process, with its whole `sys.path` as PYTHONPATH ("" is the working folder)."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, _OUTER_PATH: os.environ.get("PYTHONPATH", "")}


def restore_python_path() -> None:
    """What is started in turn (a site's server, a scorer) may be of another environment than webrl's."""
    outer = os.environ.pop(_OUTER_PATH, None)
    if outer:
        os.environ["PYTHONPATH"] = outer
    elif outer is not None:
        os.environ.pop("PYTHONPATH", None)
