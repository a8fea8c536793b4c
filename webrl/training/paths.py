"""Paths of a model that is trained outside a run's phases: the supervised start, the outcome model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from webrl.errors import UsageError


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

    def __post_init__(self) -> None:
        """Raise UsageError for an output that is no new folder, and for data that would count twice."""
        if self.out.name in ("", ".."):
            raise UsageError(f"--out {str(self.out)!r} has no name of its own; name a new folder for the model")
        if self.out.is_dir() and self.out.resolve() == Path(self.init).expanduser().resolve():
            raise UsageError(f"--out {self.out} is the model that the training starts from; name a new folder")
        path, times = Counter(path.resolve() for path in self.data).most_common(1)[0]
        if times > 1:
            raise UsageError(f"--data {path} is named {times} times, and would count as often; name it once")

    @property
    def report(self) -> Path:
        """Folder next to the model: report.json, a plot, metrics.jsonl, problems.txt."""
        return self.out.with_name(self.out.name + "_report")
