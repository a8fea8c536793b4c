"""What this machine has to offer, and what a run takes of it now: cores, browsers, memory, GPUs, free ports.

GPUs are asked of the driver (no torch, no CUDA context); usage is read from outside, from the run's processes.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import PurePath
from time import monotonic

import psutil


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

    It is below the ports that systems choose for outgoing connections, and above those of Ray's workers: either would
    take one in the minute that a model server needs before it listens.
    """
    draw = random.SystemRandom()
    for port in draw.sample(range(20_000, 32_768), 1000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("of 1,000 TCP ports of 127.0.0.1 that were tried, none can be listened on")


BUSY = 0.05
"""Cores above which a browser counts as busy: an idle one wakes now and then."""
_GPU_EVERY_S = 10.0
"""Asking the driver starts a process."""
_BROWSER = re.compile("chrom|headless[_-]shell")
_GONE = (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess)


@dataclass(frozen=True)
class Usage:
    """One reading."""

    mib: float
    """Memory of all processes; shared pages count once where the OS tells."""
    cores: float
    """Cores' worth of work since the reading before; 0 at the first."""
    browsers: int
    busy_browsers: int
    browser_cores: float
    browser_mib: float
    gpus: tuple[tuple[float, float, float], ...]
    """(percent of the time at work, MiB used, MiB there) of each visible GPU."""

    def texts(self) -> dict[str, str]:
        """Return `cores`, `browsers` and `gpu` in words; what there is none of is left out."""
        texts = {"cores": f"{self.cores:.1f} of {os.cpu_count() or 1} cores, {self.mib / 1024:.1f} GiB"}
        if self.browsers:
            took = f"{self.browser_cores:.1f} cores, {self.browser_mib / 1024:.1f} GiB"
            texts["browsers"] = f"{self.busy_browsers} of {self.browsers} browsers busy ({took})"
        if self.gpus:
            used, there = (sum(gpu[k] for gpu in self.gpus) / 1024 for k in (1, 2))
            work = sum(gpu[0] for gpu in self.gpus) / len(self.gpus)
            many = f"{len(self.gpus)} GPUs" if len(self.gpus) > 1 else "GPU"
            texts["gpu"] = f"{many} {work:.0f} % at work, {used:.1f} of {there:.1f} GiB"
        return texts


class Meter:
    """Reads the usage of a process and of all that it started; rates are from one reading to the next."""

    def __init__(self, pid: int | None = None) -> None:
        self._root = psutil.Process(pid)
        self._seconds: dict[int, float] = {}
        self._at = 0.0
        self._gpus: tuple[tuple[float, float, float], ...] = ()
        self._gpus_at: float | None = None

    def read(self) -> Usage:
        """Read the usage now.

        Raises:
            psutil.NoSuchProcess: the process has ended.
        """
        now, before, self._seconds = monotonic(), self._seconds, {}
        passed, self._at = now - self._at, now
        memory: dict[int, float] = {}
        cores: dict[int, float] = {}
        browser_of: dict[int, int] = {}
        for process in [self._root, *self._root.children(recursive=True)]:
            pid = process.pid
            try:
                info, times = process.memory_full_info(), process.cpu_times()
                # a process belongs to its parent's browser, or is one itself; parents come before their children
                browser = browser_of.get(process.ppid())
                if browser is None and _BROWSER.search(PurePath(next(iter(process.cmdline()), "")).name):
                    browser = pid
            except _GONE:
                continue
            memory[pid] = getattr(info, "pss", info.rss) / 2**20
            self._seconds[pid] = times.user + times.system
            cores[pid] = max(0.0, self._seconds[pid] - before[pid]) / passed if pid in before and passed > 0 else 0.0
            if browser is not None:
                browser_of[pid] = browser
        if self._gpus_at is None or (self._gpus and now - self._gpus_at >= _GPU_EVERY_S):
            self._gpus_at = now
            gpus = visible_gpus()
            table = query_gpus("utilization.gpu,memory.used,memory.total", gpus) if gpus else []
            known = [row for row in table if all(value.replace(".", "", 1).isdecimal() for value in row)]
            self._gpus = tuple((float(a), float(b), float(c)) for a, b, c in known)
        work = dict.fromkeys(browser_of.values(), 0.0)
        for pid, browser in browser_of.items():
            work[browser] += cores[pid]
        return Usage(
            mib=sum(memory.values()),
            cores=sum(cores.values()),
            browsers=len(work),
            busy_browsers=sum(part > BUSY for part in work.values()),
            browser_cores=sum(work.values()),
            browser_mib=sum(memory[pid] for pid in browser_of),
            gpus=self._gpus,
        )
