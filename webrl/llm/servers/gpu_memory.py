"""Is there room on the GPUs for a vLLM server? Asked of the driver; CUDA is not initialised."""

from __future__ import annotations

import re
from collections.abc import Sequence

from webrl.config import EngineConfig
from webrl.errors import ModelError
from webrl.runs.machine import query_gpus

_MIB_PER_GIB = 1024
_SLACK_MIB = 512
"""The driver counts a little differently from CUDA; in between, vLLM's own check decides."""
_OUT_OF_MEMORY = re.compile(r"out of memory|gpu_memory_utilization|No available memory for the cache blocks", re.I)


def check_room(gpus: Sequence[str], engine: EngineConfig, model: str) -> None:
    """Refuse to start a server where its share of the GPUs is taken, e.g. by a trainer in this process.

    Raises:
        ModelError: how much there is, how much is wanted, and which option to change.
    """
    for gpu, (free, total) in zip(gpus, gpu_memory(gpus), strict=False):
        wanted = engine.gpu_memory_utilization * total
        if free + _SLACK_MIB < wanted:
            share = int(free / total * 20) / 20
            advice = f"lower it (rollout.engine.gpu_memory_utilization={share:g}), or " if share > 0 else ""
            raise ModelError(
                f"GPU {gpu} has {free / _MIB_PER_GIB:.1f} of {total / _MIB_PER_GIB:.1f} GiB free, and the vLLM server "
                f"of {model} wants {wanted / _MIB_PER_GIB:.1f} (engine.gpu_memory_utilization="
                f"{engine.gpu_memory_utilization:g}); {advice}end what else runs on this GPU"
            )


def gpu_memory(gpus: Sequence[str]) -> list[tuple[int, int]]:
    """(free, total) MiB of each GPU; nothing where the driver does not tell."""
    if not gpus:
        return []
    try:
        return [(int(free), int(total)) for free, total in query_gpus("memory.free,memory.total", gpus)]
    except ValueError:  # [N/A]
        return []


def add_memory_hint(error: ModelError, engine: EngineConfig) -> ModelError:
    """The same error; if a GPU was too small, it begins with the option to change."""
    if not _OUT_OF_MEMORY.search(str(error)):
        return error
    return ModelError(
        f"GPU memory is too small for this vLLM server with engine.gpu_memory_utilization="
        f"{engine.gpu_memory_utilization:g}: raise it if nothing else uses the GPU, lower it if something does "
        f"(rollout.engine.gpu_memory_utilization=0.5), or lower models.max_prompt_tokens; {error}"
    )
