"""Paths of a model that is trained outside a run's phases: the supervised start, the outcome model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingPaths:
    """See the module docstring."""

    data: tuple[Path, ...]
    """Training data: demonstrations, or judged trajectories."""
    init: str
    """Model to start from: folder or hub name."""
    out: Path
    """Folder of the new model."""
    rehearsed: tuple[Path, ...] = ()
    """Earlier data of an outcome model that is trained further: adds as many of its trajectories as `data` has."""

    @property
    def report(self) -> Path:
        """Folder next to the model: report.json, a plot, metrics.jsonl, problems.txt."""
        return self.out.with_name(self.out.name + "_report")
