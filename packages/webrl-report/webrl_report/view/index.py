"""The index: where each trajectory lies, and what it is filtered on. The trajectories themselves stay on the disk.

It is a SQLite database in memory, built by every `webrl view` from the JSONL files of the run folders and kept up as
they grow (`refresh`); nothing here writes to them, or takes a lock. Lines that are no trajectories are kept apart, with
file and line.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from webrl.errors import DataError, UsageError
from webrl.evaluate import is_success
from webrl.reward.data import JudgedExample
from webrl.runs.store import numbered_lines, open_input, parse_line
from webrl.types import Label, Record, StepRecord, Trajectory

R = TypeVar("R", bound=Record)

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
_BATCH = 64
"""Lines that are put in at once: a query waits for no more."""
_MAX_PROBLEMS = 100
_MAX_REASON = 500
_TORN = "its last line is not whole: it is being written, or its writer was killed"

SEARCHED_CHARS = 4000
"""The search looks at so much of an instruction, of a message, and of all answers of an episode."""

SCHEMA = """
CREATE TABLE file (id INTEGER PRIMARY KEY, run INTEGER, name TEXT, kind TEXT, torn INTEGER DEFAULT 0);
CREATE TABLE trajectory (
    file INTEGER, line INTEGER, start INTEGER, length INTEGER, trajectory_id TEXT, task_id TEXT, instruction TEXT,
    site TEXT, split TEXT, phase INTEGER, status TEXT, num_steps INTEGER, truth INTEGER, policy TEXT, words TEXT,
    PRIMARY KEY (file, line));
CREATE INDEX by_task ON trajectory (site, instruction);
CREATE TABLE label (
    file INTEGER, judged INTEGER, trajectory_id TEXT, reward INTEGER, p_yes REAL, judge TEXT, error TEXT,
    PRIMARY KEY (judged, trajectory_id)) WITHOUT ROWID;
CREATE TABLE hand (
    file INTEGER, run INTEGER, trajectory_id TEXT, success INTEGER, PRIMARY KEY (run, trajectory_id)) WITHOUT ROWID;
CREATE TABLE step (file INTEGER, run INTEGER, step_id TEXT, phase INTEGER, start INTEGER, length INTEGER);
CREATE INDEX by_step ON step (run, step_id);
CREATE TABLE problem (file INTEGER, text TEXT);
"""
TABLES = ("trajectory", "label", "hand", "step", "problem")
"""Those whose rows come from a file (`file`)."""


@dataclass(frozen=True)
class Found:
    """A file to index."""

    name: str
    """Path relative to the run folder: `phase_01/trajectories.jsonl`."""
    kind: str
    """`rollout`, `eval` or `trial` (trajectories), `labels`, `steps` or `hand`."""
    of: str = ""
    """`labels`: name of the trajectory file that they judge."""


def check_run(run: Path) -> None:
    """Return if this is a folder with trajectories, or a run that has none yet.

    Raises:
        UsageError: it is not there, or nothing of the kind.
    """
    if not run.is_dir():
        raise UsageError(
            f"{str(run)!r:.200}: {'not a folder' if run.exists() else 'no such folder'}; name a run folder"
        )
    if not (run / "config.yaml").is_file() and not any(f.kind in _EPISODES.values() for f in find_files(run)):
        raise UsageError(
            f"{str(run)!r:.200} is not a run folder: neither config.yaml nor trajectories.jsonl (or eval.jsonl) in it "
            "or in the folders right below it"
        )


def find_files(run: Path) -> list[Found]:
    """List what there is to index now: trajectories first, newest phase first, then labels, then scored steps."""
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

    def change(self) -> str:
        """Return `same`, `grown` (what was read last is still there), `new` (`read` starts over) or `gone`."""
        try:
            stat = self.path.stat()
        except OSError:
            return "gone"
        inode, size, _ = self._state
        if (stat.st_ino, stat.st_size, stat.st_mtime_ns) == self._state:
            return "same"
        if self.end and stat.st_ino == inode and stat.st_size > size:
            try:
                with open_input(self.path) as file:
                    file.seek(self.end - len(self._last))
                    if file.read(len(self._last)) == self._last:
                        return "grown"
            except (DataError, OSError):
                pass
        self.end, self._line, self._last = 0, 0, b""
        return "new"

    def read(self, on_error: Callable[[str], None]) -> Iterator[tuple[int, int, bytes]]:
        """Yield (line number, byte offset, line) of what was added; errors as in `webrl.runs.store.read_lines`.

        Raises:
            DataError: the file cannot be opened.
            OSError: it cannot be read; it is not tried again before it has changed.
        """
        stat = self.path.stat()
        self._state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
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


@dataclass(frozen=True)
class Place:
    """Where a trajectory lies. In addresses `0/phase_01/trajectories.jsonl/17`: looked up in the index, not opened."""

    run: int
    """Position of the run on the command line."""
    name: str
    """File, relative to the run folder."""
    line: int
    """From 1."""

    def __str__(self) -> str:
        return f"{self.run}/{self.name}/{self.line}"


class TrajectoryNotFound(Exception):
    """Nothing of that name is in the index."""


class FileChanged(Exception):
    """A line is not what was indexed: its file was rewritten since."""


class Index:
    """All trajectories of some runs."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.runs = tuple(runs)
        self.version = 0
        """Counts the changes."""
        self.is_complete = False
        """Whether everything that was there at the start is in."""
        self._tails: dict[int, Tail] = {}
        self._numbers: dict[tuple[int, str], int] = {}
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(SCHEMA)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._stopped = False

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a statement that reads."""
        with self._lock:
            return self._database.execute(sql, values).fetchall()

    def refresh(self) -> None:
        """Take in what the files hold more than last time; returns at once while another thread does so."""
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            for run, folder in enumerate(self.runs):
                found = find_files(folder)
                names = {file.name for file in found}
                with self._lock:
                    gone = [n for (of, name), n in self._numbers.items() if of == run and name not in names]
                for number in gone:
                    if self._tails.pop(number, None):
                        self._clear(number)
                for file in found:
                    self._take_in(run, file)
            self.is_complete = self.is_complete or not self._stopped
        finally:
            self._refreshing.release()

    def close(self) -> None:
        """End a refresh in another thread."""
        self._stopped = True

    def progress(self) -> tuple[int, int]:
        """Return the bytes taken in, and the bytes that there are."""
        done = total = 0
        for run, folder in enumerate(self.runs):
            for found in find_files(folder):
                tail = self._tails.get(self._numbers.get((run, found.name), 0))
                size = (folder / found.name).stat().st_size
                total += size
                done += min(size, tail.end) if tail else 0
        return done, total

    def problems(self) -> tuple[list[str], int]:
        """Return `file:line: what is wrong` of the first lines that are left out, and the number of all.

        A file's last line that is not whole is one of them.
        """
        torn = self.query("SELECT run, name FROM file WHERE torn ORDER BY id")
        rows = self.query("SELECT text FROM problem ORDER BY file, rowid LIMIT ?", (_MAX_PROBLEMS,))
        number = self.query("SELECT count(*) AS number FROM problem")[0]["number"]
        shown = [f"{self.runs[row['run']] / row['name']}: {_TORN}" for row in torn] + [row["text"] for row in rows]
        return shown, number + len(torn)

    def put_hand_label(self, run: int, trajectory_id: str, success: int | None) -> None:
        """Know at once of a label that was set by hand, or taken back; the file that holds it is read later."""
        number = self._number(run, HAND_LABELS, "hand")
        with self._lock:
            self._database.execute("DELETE FROM hand WHERE run = ? AND trajectory_id = ?", (run, trajectory_id))
            if success is not None:
                self._database.execute("INSERT INTO hand VALUES (?, ?, ?, ?)", (number, run, trajectory_id, success))
            self.version += 1

    def read(self, place: Place) -> tuple[Trajectory, bytes]:
        """Read a trajectory and its line.

        Raises:
            TrajectoryNotFound: there is none at this place.
            FileChanged: the file is another one now.
        """
        rows = self.query(
            "SELECT start, length, trajectory_id FROM trajectory JOIN file ON file.id = file "
            "WHERE run = ? AND name = ? AND line = ?",
            (place.run, place.name, place.line),
        )
        if not rows:
            raise TrajectoryNotFound(str(place))
        line = self._read_line(place.run, place.name, rows[0])
        try:
            trajectory = parse(Trajectory, line)
        except ValueError as error:
            raise FileChanged(f"{place}: {error}") from None
        if trajectory.trajectory_id != rows[0]["trajectory_id"]:
            raise FileChanged(f"{place} is another trajectory now")
        return trajectory, line

    def read_steps(self, run: int, step_id: str) -> list[tuple[int, StepRecord]]:
        """Read (phase in whose training it was, record) of a step, by phase; what has changed since is left out."""
        rows = self.query(
            "SELECT name, phase, start, length FROM step JOIN file ON file.id = file "
            "WHERE step.run = ? AND step_id = ? ORDER BY phase",
            (run, step_id),
        )
        records = []
        for row in rows:
            try:
                record = parse(StepRecord, self._read_line(run, row["name"], row))
            except (FileChanged, ValueError):
                continue
            if record.step_id == step_id:
                records.append((row["phase"], record))
        return records

    def _read_line(self, run: int, name: str, row: sqlite3.Row) -> bytes:
        try:
            with open_input(self.runs[run] / name) as file:
                file.seek(row["start"])
                line = file.read(row["length"])
        except (DataError, OSError) as error:
            raise FileChanged(str(error)) from None
        if len(line) != row["length"]:
            raise FileChanged(f"{self.runs[run] / name} is shorter than it was")
        return line

    def _number(self, run: int, name: str, kind: str) -> int:
        with self._lock:
            number = self._numbers.get((run, name))
            if number is None:
                number = self._numbers[run, name] = len(self._numbers) + 1
                row = (number, run, name, kind)
                self._database.execute("INSERT INTO file (id, run, name, kind) VALUES (?, ?, ?, ?)", row)
            return number

    def _take_in(self, run: int, found: Found) -> None:
        """Read what a file holds more than last time, in batches."""
        number = self._number(run, found.name, found.kind)
        judged = self._number(run, found.of, "rollout") if found.of else 0
        tail = self._tails.setdefault(number, Tail(self.runs[run] / found.name))
        change = tail.change()
        if change in ("same", "gone"):
            return
        if change == "new":
            self._clear(number)
        table = {"labels": "label", "hand": "hand", "steps": "step"}.get(found.kind, "trajectory")
        batch: list[tuple[Any, ...]] = []
        try:
            for line_number, start, line in tail.read(lambda text: self._add_problem(number, text)):
                try:
                    row = _row(found, run, number, judged, line_number, start, line)
                    if any(isinstance(value, int) and abs(value) >= 1 << 63 for value in row):
                        raise ValueError("a number of more than 64 bits")
                    batch.append(row)
                except ValueError as error:
                    self._add_problem(number, f"{tail.path}:{line_number}: {error}")
                if len(batch) >= _BATCH:
                    self._insert(table, batch)
                    batch = []
                if self._stopped:
                    return
            self._insert(table, batch)
            with self._lock:
                self._database.execute("UPDATE file SET torn = ? WHERE id = ?", (tail.is_torn, number))
        except (DataError, OSError) as error:
            self._add_problem(number, str(error))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            places = ", ".join("?" * len(rows[0]))
            with self._lock:
                self._database.execute("BEGIN")
                self._database.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)
                self._database.execute("COMMIT")
                self.version += 1

    def _clear(self, number: int) -> None:
        with self._lock:
            for table in TABLES:
                self._database.execute(f"DELETE FROM {table} WHERE file = ?", (number,))
            self._database.execute("UPDATE file SET torn = 0 WHERE id = ?", (number,))
            self.version += 1

    def _add_problem(self, number: int, text: str) -> None:
        with self._lock:
            self._database.execute("INSERT INTO problem VALUES (?, ?)", (number, text[:_MAX_REASON]))
            self.version += 1


def _row(found: Found, run: int, file: int, judged: int, number: int, start: int, line: bytes) -> tuple[Any, ...]:
    """Make a table's row of a line.

    Args:
        file: the file's number.
        judged: number of the trajectory file that a file of labels is about.
        number: of the line.
        start: the line's byte offset.

    Raises:
        ValueError: a line of another kind.
    """
    if found.kind == "labels":
        label = parse(Label, line)
        return file, judged, label.trajectory_id, label.reward, label.p_yes, label.judge, label.error
    if found.kind == "hand":
        example = parse(JudgedExample, line)
        return file, run, example.trajectory_id, example.success
    if found.kind == "steps":
        step = parse(StepRecord, line)
        folder = re.match(r"phase_(\d{1,9})/", found.name)
        return file, run, step.step_id, int(folder[1]) if folder else step.phase, start, len(line)
    made = parse(Trajectory, line)
    truth = None if made.env_reward is None else int(is_success(made))
    said = "\n".join(step.response for step in made.steps)
    texts = (made.trajectory_id, made.instruction, made.message, made.env_error, said)
    words = "\n".join(text[:SEARCHED_CHARS] for text in texts).casefold()
    return (
        file, number, start, len(line), made.trajectory_id, made.task.task_id, made.instruction, made.task.site,
        made.task.split, made.phase, made.status.value, len(made.steps), truth, made.policy, words,
    )  # fmt: skip


def parse(cls: type[R], line: bytes) -> R:
    """Parse a line into a record. Raises ValueError."""
    return cls.from_json(parse_line(line))
