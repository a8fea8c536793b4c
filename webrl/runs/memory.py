"""Peak memory of this process and everything it started (browsers, workers); memory that is not needed any more."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

from webrl.runs.machine import Meter, set_latest

_LONGEST_PAUSE_S = 8.0
"""A reading takes the kernel 35 ms for each GiB, in which the process itself gets no memory."""

_COLLECT_AFTER = 20_000


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
        meter, pause = Meter(), self._interval_s
        while True:
            usage = meter.read()
            set_latest(usage)
            self.peak_mib = max(self.peak_mib, usage.mib)
            if self._stop.wait(pause):
                set_latest(None)
                return
            pause = max(self._interval_s, min(2 * pause, _LONGEST_PAUSE_S))


def free_heap() -> None:
    """Hand back to the system what the C library keeps of freed memory: 1.1 GB after a training of the tiny actor.

    (glibc does it; elsewhere there is no `malloc_trim`.)
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def freeze_gc() -> None:
    """Leave what is there by now out of later searches for garbage, each of which takes 0.2 s for libraries alone.

    For a process of our own, while no model is loaded: of these objects, none in a cycle is ever freed.
    """
    gc.collect()
    gc.freeze()


def raise_gc_threshold() -> None:
    """Look for garbage after 20,000 new objects, not after every 700: one page's tree or template makes more.

    For a process of our own that serves pages or reads them; what is in no cycle is freed at once all the same.
    """
    gc.set_threshold(_COLLECT_AFTER)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """No search for garbage within the block: for imports and loading, whose objects all stay.

    What torch and transformers make at import is looked through again and again otherwise, a tenth of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def free_gpu_cache() -> None:
    """Hand back to the driver the GPU memory that torch keeps for this process and does not use."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
