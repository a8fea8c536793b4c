"""Inputs of others: their problems, counted by kind and listed with their place, in constant memory; and episodes of
other programs, which webrl-webarena reads.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Literal

from webrl.config import plugins
from webrl.errors import ExtraMissing
from webrl.runs.disk import full_disk_named
from webrl.types import Label, Trajectory

logger = logging.getLogger(__name__)


class ProblemLog(AbstractContextManager["ProblemLog"]):
    """Collects problems of data that is processed anyway; the first ones go to the log, all of them to a file."""

    def __init__(self, path: Path | None = None, num_shown: int = 20) -> None:
        """Begin an empty list; the first `num_shown` are logged, all written to the file, if any, one a line."""
        self.path = path
        self.counts: Counter[str] = Counter()
        self._num_shown = num_shown
        self._file: IO[str] | None = None
        if path:
            path.unlink(missing_ok=True)

    def add(self, kind: str, place: str, reason: str) -> None:
        """Note a problem at a place (`path` or `path:line`): what is wrong and what became of it, by kind."""
        self.counts[kind] += 1
        message = f"{place}: {reason}"
        if self.counts.total() <= self._num_shown:
            logger.warning("%s", message)
        if self.path:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self.path.open("w", encoding="utf-8", errors="backslashreplace")
            with full_disk_named(self.path):
                self._file.write(f"{kind}\t{message}\n")

    def on_line(self, message: str) -> None:
        """`on_error` of `webrl.runs.store.read_lines` and `read_records`: a bad line, "path:line: reason"."""
        place, _, reason = message.partition(": ")
        self.add("broken_line", place, reason)

    def __exit__(self, *exc: object) -> None:
        if self.path and self._file and not self._file.closed:
            with full_disk_named(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()


TRACES = ("traces", "fixed_traces")
"""Folders of trace files in a result folder; the second counts where only that is left."""


def kind_of(path: Path) -> Literal["vab", "released"] | None:
    """`vab` for a result folder or the folder of traces in one, `released` for an experience file (`.pt`), by name."""
    if path.is_dir():
        return "vab" if path.name in TRACES or any((path / name).is_dir() for name in TRACES) else None
    return "released" if path.is_file() and path.suffix in (".pt", ".pth", ".pkl") else None


def read_foreign(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, Label]]:
    """Stream the trajectories of what `kind_of` knows, each with its recorded outcome; what cannot be used is reported.
    Raises ExtraMissing: webrl-webarena is not installed; DataError as its `read_vab` and `read_released`.
    """
    try:
        read = plugins.load(plugins.HOOKS, f"read-{kind_of(path)}")
    except ExtraMissing as missing:
        raise ExtraMissing(f"{path}: {missing}") from None
    yield from read(path, problems)
