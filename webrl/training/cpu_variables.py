"""Settings of malloc and OpenMP that make torch fast on a CPU.

Measured on two cores: large malloc thresholds keep freed activations in the process (+15-60 % tokens/s), and a
passive OpenMP wait policy keeps two-thread training from collapsing (10x) when a browser needs a core as well.
"""

from __future__ import annotations

import ctypes
import os

_KEEP_FREED_MEMORY = str(1 << 34)
_MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables, and numbers of the same options of `mallopt` in <malloc.h>."""


def cpu_environment() -> dict[str, str]:
    """Variables a parent exports before it starts a Python process that trains or scores on the CPU.

    What the user has set in this process's environment is kept, and not in the result.
    """
    wanted = {
        "MALLOC_MMAP_THRESHOLD_": _KEEP_FREED_MEMORY,
        "MALLOC_TRIM_THRESHOLD_": _KEEP_FREED_MEMORY,
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
    }
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
