"""The index: where each trajectory lies, and what it is filtered on. The trajectories themselves stay on the disk.

It is a SQLite database in memory, made anew by every `webrl view` and kept up as files grow (`refresh`). Lines that
are no trajectories are kept apart, with file and line.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from webrl.errors import DataError
from webrl.evaluate import is_success
from webrl.reward.data import JudgedExample
from webrl.runs.store import open_input, parse_line
from webrl.types import Label, Record, StepRecord, Trajectory
from webrl.view.files import HAND_LABELS, Found, Tail, find_files

R = TypeVar("R", bound=Record)

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

MakeRow = Callable[[int, int, bytes], tuple[Any, ...]]
"""(line number, byte offset, line) -> row. Raises ValueError for a line of another kind."""


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


class Absent(Exception):
    """Nothing of that name is in the index."""


class Changed(Exception):
    """A line is not what was indexed: its file was written anew since."""


class Index:
    """All trajectories of some runs."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.runs = tuple(runs)
        self.version = 0
        """Counts the changes."""
        self.is_complete = False
        """Whether everything that was there at the start is in."""
        self._tails: dict[int, tuple[Found, Tail]] = {}
        self._numbers: dict[tuple[int, str], int] = {}
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.executescript(SCHEMA)
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._stopped = False

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a statement that reads."""
        with self._lock:
            return self._database.execute(sql, values).fetchall()

    def refresh(self) -> None:
        """Take in what the files hold more than last time; returns at once while another thread is at it."""
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            for run, folder in enumerate(self.runs):
                found = find_files(folder)
                self._forget_missing(run, {f.name for f in found})
                for file in found:
                    self._take_in(run, file)
            self.is_complete = self.is_complete or not self._stopped
        finally:
            self._refreshing.release()

    def close(self) -> None:
        """End a refresh that another thread is at."""
        self._stopped = True

    def progress(self) -> tuple[int, int]:
        """Bytes taken in, and bytes that there are."""
        done = total = 0
        for run, folder in enumerate(self.runs):
            for found in find_files(folder):
                _, tail = self._tails.get(self._numbers.get((run, found.name), 0), (None, None))
                size = (folder / found.name).stat().st_size
                total += size
                done += min(size, tail.end) if tail else 0
        return done, total

    def problems(self) -> tuple[list[str], int]:
        """`file:line: what is wrong` of the first lines that are left out, and the number of all.

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
        """A trajectory and its line.

        Raises:
            Absent: there is none at this place.
            Changed: the file is another one now.
        """
        rows = self.query(
            "SELECT start, length, trajectory_id FROM trajectory JOIN file ON file.id = file "
            "WHERE run = ? AND name = ? AND line = ?",
            (place.run, place.name, place.line),
        )
        if not rows:
            raise Absent(str(place))
        line = self._read_line(place.run, place.name, rows[0])
        try:
            trajectory = parse(Trajectory, line)
        except ValueError as error:
            raise Changed(f"{place}: {error}") from None
        if trajectory.trajectory_id != rows[0]["trajectory_id"]:
            raise Changed(f"{place} is another trajectory now")
        return trajectory, line

    def read_steps(self, run: int, step_id: str) -> list[tuple[int, StepRecord]]:
        """(phase in whose training it was, record) of a step, by phase; what has changed since is left out."""
        rows = self.query(
            "SELECT name, phase, start, length FROM step JOIN file ON file.id = file "
            "WHERE step.run = ? AND step_id = ? ORDER BY phase",
            (run, step_id),
        )
        records = []
        for row in rows:
            try:
                record = parse(StepRecord, self._read_line(run, row["name"], row))
            except (Changed, ValueError):
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
            raise Changed(str(error)) from None
        if len(line) != row["length"]:
            raise Changed(f"{self.runs[run] / name} is shorter than it was")
        return line

    def _forget_missing(self, run: int, names: set[str]) -> None:
        with self._lock:
            numbers = list(self._numbers.items())
        for (of_run, name), number in numbers:
            if of_run == run and name not in names and number in self._tails:
                del self._tails[number]
                self._clear(number)

    def _take_in(self, run: int, found: Found) -> None:
        number = self._number(run, found.name, found.kind)
        _, tail = self._tails.setdefault(number, (found, Tail(self.runs[run] / found.name)))
        look = tail.look()
        if look == "new":
            tail.forget()
            self._clear(number)
        if look in ("new", "grown"):
            try:
                self._read_lines(run, found, number, tail)
            except (DataError, OSError) as error:
                tail.give_up()
                self._add_problem(number, str(error))

    def _number(self, run: int, name: str, kind: str) -> int:
        with self._lock:
            number = self._numbers.get((run, name))
            if number is None:
                number = self._numbers[run, name] = len(self._numbers) + 1
                row = (number, run, name, kind)
                self._database.execute("INSERT INTO file (id, run, name, kind) VALUES (?, ?, ?, ?)", row)
            return number

    def _read_lines(self, run: int, found: Found, number: int, tail: Tail) -> None:
        judged = self._number(run, found.of, "rollout") if found.of else 0
        table, make = row_maker(found, run, number, judged)
        batch: list[tuple[Any, ...]] = []
        for line_number, start, line in tail.read(lambda text: self._add_problem(number, text)):
            try:
                row = make(line_number, start, line)
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


def row_maker(found: Found, run: int, file: int, judged: int) -> tuple[str, MakeRow]:
    """The table that a file's lines go to, and what makes a row of a line.

    Args:
        file: the file's number.
        judged: number of the trajectory file that a file of labels is about.
    """

    def label(_number: int, _start: int, line: bytes) -> tuple[Any, ...]:
        made = parse(Label, line)
        return file, judged, made.trajectory_id, made.reward, made.p_yes, made.judge, made.error

    def hand(_number: int, _start: int, line: bytes) -> tuple[Any, ...]:
        made = parse(JudgedExample, line)
        return file, run, made.trajectory_id, made.success

    def step(_number: int, start: int, line: bytes) -> tuple[Any, ...]:
        made = parse(StepRecord, line)
        return file, run, made.step_id, made.phase if found.phase < 0 else found.phase, start, len(line)

    def trajectory(number: int, start: int, line: bytes) -> tuple[Any, ...]:
        made = parse(Trajectory, line)
        truth = None if made.env_reward is None else int(is_success(made))
        return (
            file, number, start, len(line), made.trajectory_id, made.task.task_id, made.instruction, made.task.site,
            made.task.split, made.phase, made.status.value, len(made.steps), truth, made.policy, _words(made),
        )  # fmt: skip

    makers = {"labels": ("label", label), "hand": ("hand", hand), "steps": ("step", step)}
    return makers.get(found.kind, ("trajectory", trajectory))


def parse(cls: type[R], line: bytes) -> R:
    """A record of a line. Raises ValueError."""
    return cls.from_json(parse_line(line))


def _words(trajectory: Trajectory) -> str:
    """What the search looks at."""
    said = "\n".join(step.response for step in trajectory.steps)
    texts = (trajectory.trajectory_id, trajectory.instruction, trajectory.message, trajectory.env_error, said)
    return "\n".join(text[:SEARCHED_CHARS] for text in texts).casefold()
