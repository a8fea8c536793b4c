"""Full training state on disk: model, optimizer, RNG and position in the data; atomic, the last N kept.

States live next to the output in `.<name>.state/step_<n>/` and are removed when the output is finished. Whether a
state fits is decided by a digest of config and data: a state of another run is refused, never half used.

Trust: anyone who can write to the run folder can run code in the training process. The states are torch's files, and
DeepSpeed reads its own as pickles without restriction (accelerate reads the others' with `weights_only`). The digest
finds mistakes, not malice: delete `.*.state` from someone else's run folder before you resume it. Model folders,
which people exchange, are safetensors and need no such trust.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from webrl.config import OptimConfig
from webrl.errors import TrainingError
from webrl.runs.clock import spent_on
from webrl.runs.disk import full_disk_named, make_folder, replace, sync_tree
from webrl.runs.store import read_record, write_json
from webrl.training.engines.ddp import Engine
from webrl.training.packing import Item
from webrl.types import Record

logger = logging.getLogger(__name__)

_POSITION = "position.json"
"""Marks a complete state."""
_FREE_TO_CHANGE = {"save_every", "checkpointing", "max_tokens", "compile", "export_dtype"}
"""Options that do not change what is computed (up to rounding)."""


@dataclass(frozen=True)
class Position(Record):
    """Where a run stands."""

    step: int
    """Optimizer steps done."""
    digest: str
    """Of config, seed and data."""
    num_ranks: int
    """Processes that wrote the state."""
    engine: str
    """Engine that wrote it."""


def run_digest(config: OptimConfig, seed: int, items: Sequence[Item]) -> str:
    """16 hex digits over everything that decides the result."""
    settings = config.model_dump(exclude=_FREE_TO_CHANGE | {"engine"})
    digest = hashlib.sha256(json.dumps([settings, seed], default=str).encode())
    for item in items:
        seen = [item.picture.sha256] if item.picture else []
        digest.update(json.dumps([item.ids, item.num_targets, *seen]).encode())
    return digest.hexdigest()[:16]


class Checkpoints:
    """The training states of one output folder."""

    def __init__(self, out: Path, digest: str) -> None:
        self._root = out.with_name(f".{out.name}.state")
        self._digest = digest

    @spent_on("model files")
    def save(self, engine: Engine, step: int) -> None:
        """Write a state under a temporary name, sync it, rename it, remove the oldest; all ranks call it."""
        target = self._root / f"step_{step:08d}"
        temporary = self._root / f".step_{step:08d}.tmp"
        if engine.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
            make_folder(temporary)
        engine.barrier()
        try:
            with full_disk_named(temporary):
                engine.save_state(temporary)
        except OSError:  # half a state would fill the disk for nothing
            if engine.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        engine.barrier()
        sync_tree(temporary)  # on every rank: a machine syncs only what it wrote itself
        engine.barrier()
        if engine.is_main:
            position = Position(step, self._digest, engine.num_ranks, engine.plan.name)
            write_json(temporary / _POSITION, position.to_json())
            replace(temporary, target)
            _remove(self._finished()[:-1])
        engine.barrier()

    def restore(self, engine: Engine) -> int:
        """Load the newest state; returns the number of optimizer steps done (0 without one).

        Raises:
            DataError: its position cannot be read.
            TrainingError: the state is of another config, data or engine, or of another number of ranks where the
                engine's shards cannot be distributed again.
        """
        states = self._finished()
        if not states:
            return 0
        state, position = states[-1], read_record(states[-1] / _POSITION, Position)
        if position.digest != self._digest:
            raise TrainingError(
                f"{state} is a training state for another config or other data (digest {position.digest}, this "
                f"run's is {self._digest}); restore the old settings, or delete {self._root} to start over"
            )
        if position.engine != engine.plan.name:
            raise TrainingError(
                f"{state} was written by engine {position.engine!r}, this run uses {engine.plan.name!r}; "
                f"set engine={position.engine}, or delete {self._root} to start over"
            )
        if engine.plan.kind == "deepspeed" and position.num_ranks != engine.num_ranks:
            raise TrainingError(
                f"{state} holds DeepSpeed shards of {position.num_ranks} processes, this job has {engine.num_ranks}: "
                f"wrong world size; start {position.num_ranks} processes, or delete {self._root} to start over"
            )
        engine.load_state(state)
        logger.info("resumed from %s", state)
        return position.step

    def discard(self) -> None:
        """Remove all states (the output is finished)."""
        _remove(self._finished())
        shutil.rmtree(self._root, ignore_errors=True)

    def _finished(self) -> list[Path]:
        return sorted(p for p in self._root.glob("step_*") if (p / _POSITION).is_file())


def _remove(states: Sequence[Path]) -> None:
    """Delete all position files first, so an interrupted delete never leaves a partial state that looks complete."""
    for state in states:
        (state / _POSITION).unlink()
    for state in states:
        shutil.rmtree(state)
