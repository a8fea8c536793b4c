"""The JSONL files of a run folder, and reading what was appended to them; nothing here writes, or takes a lock.

API: `find_files(run)` lists them; `Tail(path).read()` yields the lines that came since the last call.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from webrl.errors import DataError, UsageError
from webrl.runs.store import numbered_lines, open_input

HAND_LABELS = "hand_labels.jsonl"
"""Labels set by hand, in the run folder: JSONL of `JudgedExample`, for `webrl train-orm --data`."""
_EPISODES = {"trajectories.jsonl": "rollout", "eval.jsonl": "eval", "trials.jsonl": "trial"}
_LABELS = {
    "labels.jsonl": "trajectories.jsonl",
    "trial_labels.jsonl": "trials.jsonl",
    "eval_labels.jsonl": "eval.jsonl",
}
_SCORED = ("train_scored.jsonl", "train_filter.jsonl", "train.jsonl")
"""The same steps, in the order of how much is known of them."""
_CHECKED_BYTES = 256


@dataclass(frozen=True)
class Found:
    """A file to index."""

    name: str
    """Path relative to the run folder: `phase_01/trajectories.jsonl`."""
    kind: str
    """`rollout`, `eval` or `trial` (trajectories), `labels`, `steps` or `hand`."""
    of: str = ""
    """`labels`: name of the trajectory file that they judge."""

    @property
    def phase(self) -> int:
        """Number of its phase folder; -1 outside of one."""
        found = re.match(r"phase_(\d{1,9})/", self.name)
        return int(found[1]) if found else -1

    @property
    def has_trajectories(self) -> bool:
        """Whether its lines are trajectories."""
        return self.kind in _EPISODES.values()


def check_run(run: Path) -> None:
    """Return if this is a folder with trajectories, or a run that has none yet.

    Raises:
        UsageError: it is not there, or nothing of the kind.
    """
    if not run.is_dir():
        raise UsageError(
            f"{str(run)!r:.200}: {'not a folder' if run.exists() else 'no such folder'}; name a run folder"
        )
    if not (run / "config.yaml").is_file() and not any(found.has_trajectories for found in find_files(run)):
        raise UsageError(
            f"{str(run)!r:.200} is not a run folder: neither config.yaml nor trajectories.jsonl (or eval.jsonl) in it "
            "or in the folders right below it"
        )


def find_files(run: Path) -> list[Found]:
    """What there is to index now: trajectories first, newest phase first, then labels, then scored steps."""
    try:
        folders = sorted((f.name for f in os.scandir(run) if f.is_dir() and not f.name.startswith(".")), reverse=True)
    except OSError:
        return []
    found: list[Found] = []
    for folder in [*folders, ""]:
        prefix = f"{folder}/" if folder else ""
        there = {name for name in (*_EPISODES, *_LABELS, *_SCORED) if (run / prefix / name).is_file()}
        found += [Found(prefix + name, kind) for name, kind in _EPISODES.items() if name in there]
        found += [Found(prefix + name, "labels", prefix + of) for name, of in _LABELS.items() if name in there]
        found += [Found(prefix + name, "steps") for name in _SCORED if name in there][:1]
    if (run / HAND_LABELS).is_file():
        found.append(Found(HAND_LABELS, "hand"))
    order = ("rollout", "eval", "trial", "labels", "hand", "steps")
    return sorted(found, key=lambda f: (order.index(f.kind) > 2, order.index(f.kind) > 4))


class Tail:
    """How far a growing file has been read. It may also be replaced, or cut short: then it is read from the start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        """Bytes read: the end of the last whole line."""
        self.is_torn = False
        """The file goes on after its last whole line: that line is being written, or its writer was killed."""
        self._line = 0
        self._state = (0, 0, 0)
        self._last = b""

    def look(self) -> str:
        """`same`, `grown`, `new` (to be read from the start) or `gone`."""
        try:
            stat = self.path.stat()
        except OSError:
            return "gone"
        if (stat.st_ino, stat.st_size, stat.st_mtime_ns) == self._state:
            return "same"
        return "grown" if self._is_continued(stat.st_ino, stat.st_size) else "new"

    def forget(self) -> None:
        """Read from the start next time."""
        self.end = self._line = 0
        self._state, self._last = (0, 0, 0), b""

    def give_up(self) -> None:
        """Read from the start once the file has changed: it cannot be read as it is."""
        self.forget()
        with contextlib.suppress(OSError):
            stat = self.path.stat()
            self._state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def read(self, on_error: Callable[[str], None]) -> Iterator[tuple[int, int, bytes]]:
        """Yield (line number, byte offset, line) of what was added; errors as in `webrl.runs.store.read_lines`.

        Raises:
            DataError: the file cannot be opened.
        """
        with open_input(self.path) as file:
            stat = os.fstat(file.fileno())
            file.seek(self.end)
            self.is_torn = False
            for number, line in numbered_lines(file, self.path, on_error, before=self._line):
                if not line.endswith(b"\n"):
                    self.is_torn = True
                    break
                self._line = number
                self.end, self._last = file.tell(), line[-_CHECKED_BYTES:]
                if line.strip():
                    yield number, self.end - len(line), line
            self._state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)

    def _is_continued(self, inode: int, size: int) -> bool:
        """Whether the file only grew: what was read last is still there."""
        if inode != self._state[0] or size <= self._state[1] or size < self.end:
            return False
        try:
            with open_input(self.path) as file:
                file.seek(self.end - len(self._last))
                return file.read(len(self._last)) == self._last
        except (DataError, OSError):
            return False
