"""Looking at processes that may end while being looked at."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def descendants(pid: int, name: str = "") -> list[psutil.Process]:
    """Processes below one whose name contains `name`; empty if it has ended."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if name in process.name():
                    found.append(process)
    return found


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; what has ended and only waits to be collected does not."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    """SIGKILL to each that is still there."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
