"""Environment variables that make torch fast on a CPU; they act only if set before the Python process starts.

Measured on two cores: large malloc thresholds keep freed activations in the process (+15-60 % tokens/s), and a
passive OpenMP wait policy keeps two-thread training from collapsing (10x) when a browser needs a core as well.
"""

from __future__ import annotations

import os

_KEEP_FREED_MEMORY = str(1 << 34)


def cpu_environment() -> dict[str, str]:
    """Variables a parent exports before it starts a Python process that trains or scores on the CPU.

    What the user has set in this process's environment is left as it is, and not in the result.
    """
    wanted = {
        "MALLOC_MMAP_THRESHOLD_": _KEEP_FREED_MEMORY,
        "MALLOC_TRIM_THRESHOLD_": _KEEP_FREED_MEMORY,
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: value for name, value in wanted.items() if name not in os.environ}
