"""Peak memory of this process and everything it started (browsers, workers); memory that is not needed any more."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from typing import Any

from webrl.runs.machine import measure

_LONGEST_PAUSE_S = 8.0
"""A reading takes the kernel 35 ms for each GiB, in which the process itself gets no memory."""


class PeakMemory:
    """Context manager; `peak_mib` is the largest sum of proportional set sizes seen (RSS where PSS is not known).

    The pauses between readings double from `interval_s` on, up to eight seconds.
    """

    def __init__(self, interval_s: float = 2.0) -> None:
        self.peak_mib = 0.0
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pause = self._interval_s
        while True:
            self.peak_mib = max(self.peak_mib, measure()[0])
            if self._stop.wait(pause):
                return
            pause = max(self._interval_s, min(2 * pause, _LONGEST_PAUSE_S))


def free_heap() -> None:
    """Hand back to the system what the C library keeps of freed memory: 1.1 GB after a training of the tiny actor.

    (glibc does it; elsewhere there is no `malloc_trim`.)
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_gpu_cache() -> None:
    """Hand back to the driver the GPU memory that torch keeps for this process and does not use."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
