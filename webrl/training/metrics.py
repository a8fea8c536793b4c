"""Numbers of a training run: one JSON object a line, `{"name", "step", "<name>/loss": …}`.

Values that are lists are histograms' samples. The file is the record; trackers get its numbers
(`webrl/reports/trackers.py`).
"""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from webrl.errors import UsageError
from webrl.runs.disk import full_disk_named, make_folder, sync_folder
from webrl.runs.store import cut_torn_line, write_text

_LAST = frozenset(("lr", "peak_gib", "val_loss", "trust_kl", "trust_success_drop"))


class MetricLog:
    """Metric lines of one job in a file that other jobs share."""

    def __init__(self, path: Path, name: str, resumed_step: int = 0) -> None:
        """Lines of this job after `resumed_step` (written before an interruption) are taken out first."""
        self._path, self._name = path, name
        make_folder(path.parent)
        cut_torn_line(path)
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            parsed = map(json.loads, lines)
            stale = [data.get("name") == name and data.get("step", 0) > resumed_step for data in parsed]
            kept = [line for line, is_stale in zip(lines, stale, strict=True) if not is_stale]
            if len(kept) != len(lines):
                write_text(path, "".join(line + "\n" for line in kept))
        else:
            path.touch()
            sync_folder(path.parent)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line, on the disk when this returns; keys get the job's name in front."""
        line = {"name": self._name, "step": step} | {f"{self._name}/{key}": value for key, value in values.items()}
        with full_disk_named(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path, name: str) -> list[dict[str, Any]]:
    """Lines of one job, keys without the job's name; empty if there is no file."""
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [
        {key.removeprefix(f"{name}/"): value for key, value in line.items() if key != "name"}
        for line in lines
        if line.get("name") == name
    ]


def summarize(lines: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Mean of every scalar over the logged steps, as `<name>_<key>`; the last value of those in `_LAST`."""
    keys = {key for line in lines for key, value in line.items() if isinstance(value, int | float) and key != "step"}
    summary: dict[str, Any] = {}
    for key in sorted(keys):
        values = [line[key] for line in lines if key in line]
        summary[f"{name}_{key}"] = values[-1] if key in _LAST else sum(values) / len(values)
    return summary


@dataclass(frozen=True)
class TrainingPaths:
    """Paths of a model that is trained outside a run's phases: the supervised start, the outcome model."""

    data: tuple[Path, ...]
    """Training data: demonstrations, or judged trajectories."""
    init: str
    """Model to start from: folder or hub name."""
    out: Path
    """Folder of the new model."""

    def __post_init__(self) -> None:
        """Raise UsageError for an output that is not a new folder, and for data that would count twice."""
        if self.out.name in ("", ".."):
            raise UsageError(f"--out {str(self.out)!r} has no name of its own; name a new folder for the model")
        if self.out.is_dir() and self.out.resolve() == Path(self.init).expanduser().resolve():
            raise UsageError(f"--out {self.out} is the model that the training starts from; name a new folder")
        path, times = Counter(path.resolve() for path in self.data).most_common(1)[0]
        if times > 1:
            raise UsageError(f"--data {path} is named {times} times, and would count each time; name it once")

    @property
    def report(self) -> Path:
        """Folder next to the model: report.json, a plot, metrics.jsonl, problems.txt."""
        return self.out.with_name(self.out.name + "_report")
