"""Full training state on disk: model, optimizer, RNG and position in the data; atomic, the last N kept.

States live beside the output in `.<name>.state/step_<n>/` and are removed when the output is finished. Whether a
state fits is decided by a digest of config and data: a state of another run is refused, never half used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from webrl.config import OptimConfig
from webrl.errors import TrainingError
from webrl.store import read_json, write_json
from webrl.training.engine import Engine
from webrl.training.packing import Item

logger = logging.getLogger(__name__)

_FREE_TO_CHANGE = {"save_every", "keep_checkpoints", "log_every", "checkpointing", "max_tokens"}
"""Options that do not change what is computed (rows differ by rounding only)."""


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    step: int
    """Optimizer steps done."""
    digest: str
    """Of config, seed and data."""
    num_ranks: int
    """Processes that wrote the state."""


def run_digest(config: OptimConfig, seed: int, items: Sequence[Item]) -> str:
    """16 hex digits over everything that decides the result."""
    digest = hashlib.sha256(json.dumps([config.model_dump(exclude=_FREE_TO_CHANGE), seed], default=str).encode())
    for item in items:
        digest.update(json.dumps([item.ids, item.num_targets]).encode())
    return digest.hexdigest()[:16]


class Checkpoints:
    """The training states of one output folder."""

    def __init__(self, out: Path, config: OptimConfig, digest: str) -> None:
        self._root = out.with_name(f".{out.name}.state")
        self._config, self._digest = config, digest

    def is_due(self, step: int) -> bool:
        """True if a state is to be written after optimizer step `step` (1-based)."""
        return self._config.save_every > 0 and step % self._config.save_every == 0

    def save(self, engine: Engine, step: int) -> None:
        """Write a state under a temporary name, rename it, remove the oldest."""
        target = self._root / f"step_{step:08d}"
        temporary = self._root / f".step_{step:08d}.tmp"
        if engine.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        engine.accelerator.wait_for_everyone()
        engine.accelerator.save_state(str(temporary))
        engine.accelerator.wait_for_everyone()
        if engine.is_main:
            write_json(temporary / "position.json", asdict(Position(step, self._digest, engine.num_ranks)))
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            for old in self._finished()[: -self._config.keep_checkpoints]:
                shutil.rmtree(old)
        engine.accelerator.wait_for_everyone()

    def restore(self, engine: Engine) -> int:
        """Load the newest state; gives the number of optimizer steps done (0 without one).

        Raises:
            TrainingError: the state is of another config or data.
        """
        states = self._finished()
        if not states:
            return 0
        position = Position(**read_json(states[-1] / "position.json"))
        if position.digest != self._digest:
            raise TrainingError(
                f"{states[-1]} is a training state of another config or other data (digest {position.digest}, this "
                f"run's is {self._digest}); restore the old settings, or delete {self._root} to start anew"
            )
        engine.accelerator.load_state(str(states[-1]))
        logger.info("resumed from %s", states[-1])
        return position.step

    def discard(self) -> None:
        """Remove all states (the output is finished)."""
        shutil.rmtree(self._root, ignore_errors=True)

    def _finished(self) -> list[Path]:
        return sorted(p for p in self._root.glob("step_*") if (p / "position.json").is_file())
