"""The index: where each trajectory is, and what it is filtered on. Pages and prompts stay on the disk.

It is in memory, built by every `webrl view` from the JSONL files of the run folders and kept up as they grow
(`refresh`); nothing here writes to them, or takes a lock. Lines that are no trajectories are kept apart, with file and
line.
"""

from __future__ import annotations

import dataclasses
import os
import re
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
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
EPISODES = {"trajectories.jsonl": "rollout", "eval.jsonl": "eval"}
"""Files of trajectories, and their kind."""
_LABELS = dict(zip(EPISODES, ("labels.jsonl", "eval_labels.jsonl"), strict=True))
_SCORED = ("train_scored.jsonl", "train_filter.jsonl", "train.jsonl")
"""The same steps, in the order of how much is known of them."""
_MAX_PROBLEMS = 100
_MAX_REASON = 500
_TORN = "its last line is not whole: it is being written, or its writer was killed"

SEARCHED_CHARS = 4000
"""The search looks at so much of an instruction, of a message, and of all answers of an episode."""


class TrajectoryNotFound(Exception):
    """Nothing of that name is in the index."""


class FileChanged(Exception):
    """A line is not what was indexed: its file was rewritten since."""


@dataclass(eq=False)
class File:
    """A file of a run folder, and how far it has been read. It grows line by line, or is replaced."""

    run: int
    """Position of the run on the command line."""
    name: str
    """Path relative to the run folder: `phase_01/trajectories.jsonl`."""
    kind: str
    """`rollout` or `eval` (trajectories), `labels`, `steps` or `hand`."""
    path: Path
    entries: dict[Any, Any]
    """By kind: line -> `Row`; trajectory -> `Label`, or success by hand; step -> (phase, byte offset, bytes)."""
    problems: list[str] = field(default_factory=list)
    """`file:line: what is wrong` of the lines that are left out."""
    is_torn: bool = False
    """The last line is incomplete: it is still being written, or its writer was killed."""
    end: int = 0
    """Bytes read: the end of the last whole line."""
    line: int = 0
    state: tuple[int, int, int] = (0, 0, 0)
    """Inode, size and time of the last look."""


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """What is known of a trajectory without opening its file."""

    file: File
    line: int
    """From 1."""
    start: int
    """Byte offset."""
    length: int
    trajectory: Trajectory
    """With neither steps nor final page."""
    truth: int | None
    """The environment's verdict."""
    num_steps: int
    words: str
    """What the search looks at."""
    labels: dict[str, Label]
    """Of the outcome model, by trajectory."""
    hand_labels: dict[str, int]

    @property
    def place(self) -> str:
        """Its location, as written in addresses: `0/phase_01/trajectories.jsonl/17`."""
        return f"{self.file.run}/{self.file.name}/{self.line}"

    @property
    def label(self) -> Label | None:
        """The outcome model's."""
        return self.labels.get(self.trajectory.trajectory_id)

    @property
    def reward(self) -> int | None:
        """The label's."""
        return label.reward if (label := self.label) else None

    @property
    def p_yes(self) -> float | None:
        """The label's."""
        return label.p_yes if (label := self.label) else None

    @property
    def hand(self) -> int | None:
        """Success as a person judged it."""
        return self.hand_labels.get(self.trajectory.trajectory_id)

    @property
    def agrees(self) -> bool | None:
        """Whether the label is what the environment says; None if one of them is missing."""
        reward = self.reward
        return None if self.truth is None or reward is None else self.truth == reward


def check_run(run: Path) -> None:
    """Return if this is a folder with trajectories, or a run that has none yet.

    Raises:
        UsageError: it is not there, or nothing of the kind.
    """
    if not run.is_dir():
        raise UsageError(
            f"{str(run)!r:.200}: {'not a folder' if run.exists() else 'no such folder'}; name a run folder"
        )
    if not (run / "config.yaml").is_file() and not set(EPISODES.values()) & set(find_files(run).values()):
        raise UsageError(
            f"{str(run)!r:.200} is not a run folder: neither config.yaml nor trajectories.jsonl (or eval.jsonl) in it "
            "or in the folders right below it"
        )


def find_files(run: Path) -> dict[str, str]:
    """Return name -> kind of what there is to index now: trajectories first, newest phase first, then labels, steps."""
    try:
        folders = sorted((f"{f.name}/" for f in os.scandir(run) if f.is_dir() and f.name[0] != "."), reverse=True)
    except OSError:
        return {}

    def there(folder: str, names: Sequence[str]) -> list[str]:
        return [folder + name for name in names if (run / folder / name).is_file()]

    folders.append("")
    found = {name: EPISODES[Path(name).name] for folder in folders for name in there(folder, [*EPISODES])}
    found |= {name: "labels" for folder in folders for name in there(folder, [*_LABELS.values()])}
    found |= dict.fromkeys(there("", [HAND_LABELS]), "hand")
    return found | {name: "steps" for folder in folders for name in there(folder, _SCORED)[:1]}


class Index:
    """All trajectories of some runs."""

    def __init__(self, runs: Sequence[Path]) -> None:
        self.runs = tuple(runs)
        self.version = 0
        """Counts the changes."""
        self.is_complete = False
        """Whether everything that was there at the start is in."""
        self._files: dict[tuple[int, str], File] = {}
        self._entries: defaultdict[tuple[int, str], dict[Any, Any]] = defaultdict(dict)  # of files, there or not yet
        self._lock = threading.Lock()
        self._refreshing = threading.Lock()
        self._stopped = False

    def rows(self) -> list[Row]:
        """Return all trajectories."""
        with self._lock:
            files = [file for file in self._files.values() if file.kind in EPISODES.values()]
            return [row for file in files for row in file.entries.values()]

    def find(self, place: str) -> Row:
        """Return the trajectory at a place (`Row.place`). The place is looked up, never opened.

        Raises:
            TrajectoryNotFound: there is none.
        """
        run, _, rest = place.partition("/")
        name, _, line = rest.rpartition("/")
        try:
            row: Row = self._files[int(run), name].entries[int(line)]
        except (KeyError, ValueError):
            raise TrajectoryNotFound(
                f"{place!r:.200}; expected RUN/FILE/LINE such as 0/phase_01/eval.jsonl/3"
            ) from None
        return row

    def refresh(self) -> None:
        """Take in what the files hold more than last time; returns at once while another thread does so."""
        if not self._refreshing.acquire(blocking=False):
            return
        try:
            for run, folder in enumerate(self.runs):
                found = find_files(folder)
                with self._lock:
                    for place in [each for each in self._files if each[0] == run and each[1] not in found]:
                        self._files.pop(place).entries.clear()
                        self.version += 1
                    for name, kind in found.items():
                        new = File(run, name, kind, folder / name, self._entries[run, name])
                        self._files.setdefault((run, name), new)
                for name in found:
                    self._take_in(self._files[run, name])
            self.is_complete = self.is_complete or not self._stopped
        finally:
            self._refreshing.release()

    def close(self) -> None:
        """End a refresh in another thread."""
        self._stopped = True

    def problems(self) -> tuple[list[str], int]:
        """Return `file:line: what is wrong` of the first lines that are left out, and the number of all.

        A file's last line that is not whole is one of them.
        """
        with self._lock:
            files = list(self._files.values())
        torn = [f"{file.path}: {_TORN}" for file in files if file.is_torn]
        texts = [text for file in files for text in file.problems]
        return torn + texts[:_MAX_PROBLEMS], len(torn) + len(texts)

    def put_hand_label(self, run: int, trajectory_id: str, success: int | None) -> None:
        """Know at once of a label that was set by hand, or taken back; the file that holds it is read later."""
        with self._lock:
            labels = self._entries[run, HAND_LABELS]
            labels.pop(trajectory_id, None)
            if success is not None:
                labels[trajectory_id] = success
            self.version += 1

    def read(self, row: Row) -> tuple[Trajectory, bytes]:
        """Read a trajectory and its line.

        Raises:
            FileChanged: the file is another one now.
        """
        line = _read_line(row.file, row.start, row.length)
        try:
            trajectory = parse(Trajectory, line)
        except ValueError as error:
            raise FileChanged(f"{row.place}: {error}") from None
        if trajectory.trajectory_id != row.trajectory.trajectory_id:
            raise FileChanged(f"{row.place} is another trajectory now")
        return trajectory, line

    def read_steps(self, run: int, step_id: str) -> list[tuple[int, StepRecord]]:
        """Read (phase in whose training it was, record) of a step, by phase; what has changed since is left out."""
        with self._lock:
            files = [file for file in self._files.values() if (file.run, file.kind) == (run, "steps")]
        records = []
        for file in files:
            try:
                phase, start, length = file.entries[step_id]
                record = parse(StepRecord, _read_line(file, start, length))
            except (KeyError, FileChanged, ValueError):
                continue
            if record.step_id == step_id:
                records.append((phase, record))
        return sorted(records, key=lambda found: found[0])

    def _take_in(self, file: File) -> None:
        """Read what a file holds more than last time; if it cannot be read, not again before it has changed."""
        try:
            stat = file.path.stat()
        except OSError:
            return
        state = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if state == file.state:
            return
        if stat.st_ino != file.state[0] or stat.st_size <= file.state[1]:  # another file, or cut short
            self._clear(file)
        file.state = state
        try:
            with open_input(file.path) as opened:
                opened.seek(file.end)
                file.is_torn = False
                for number, line in numbered_lines(opened, file.path, file.problems.append, before=file.line):
                    file.is_torn = not line.endswith(b"\n")
                    if file.is_torn or self._stopped:
                        break
                    file.line, file.end = number, opened.tell()
                    try:
                        if line.strip():
                            self._add(file, number, file.end - len(line), line)
                    except ValueError as error:
                        file.problems.append(f"{file.path}:{number}: {error}"[:_MAX_REASON])
        except (DataError, OSError) as error:
            file.problems.append(str(error)[:_MAX_REASON])
        with self._lock:
            self.version += 1

    def _clear(self, file: File) -> None:
        with self._lock:
            file.entries.clear()
            file.problems, file.is_torn, file.end, file.line = [], False, 0, 0
            self.version += 1

    def _add(self, file: File, number: int, start: int, line: bytes) -> None:
        """Put in a line by its number and byte offset. Raises ValueError for a line of another kind."""
        key: Any
        entry: Any
        if file.kind == "labels":
            entry = parse(Label, line)
            key = entry.trajectory_id
        elif file.kind == "hand":
            example = parse(JudgedExample, line)
            key, entry = example.trajectory_id, example.success
        elif file.kind == "steps":
            step = parse(StepRecord, line)
            folder = re.match(r"phase_(\d{1,9})/", file.name)
            key, entry = step.step_id, (int(folder[1]) if folder else step.phase, start, len(line))
        else:
            made = parse(Trajectory, line)
            said = "\n".join(step.response for step in made.steps)
            texts = (made.trajectory_id, made.instruction, made.message, made.env_error, said)
            words = "\n".join(text[:SEARCHED_CHARS] for text in texts).casefold()
            folder_name, _, name = file.name.rpartition("/")
            labels = self._entries[file.run, f"{folder_name}/{_LABELS[name]}".lstrip("/")]
            kept = dataclasses.replace(made, steps=(), final_observation="")
            truth = None if made.env_reward is None else int(is_success(made))
            by_hand = self._entries[file.run, HAND_LABELS]
            key = number
            entry = Row(file, number, start, len(line), kept, truth, len(made.steps), words, labels, by_hand)
        with self._lock:
            file.entries[key] = entry
            self.version += 1


def _read_line(file: File, start: int, length: int) -> bytes:
    try:
        with open_input(file.path) as opened:
            opened.seek(start)
            line = opened.read(length)
    except (DataError, OSError) as error:
        raise FileChanged(str(error)) from None
    if len(line) != length:
        raise FileChanged(f"{file.path} is shorter than it was")
    return line


def parse(cls: type[R], line: bytes) -> R:
    """Parse a line into a record. Raises ValueError."""
    return cls.from_json(parse_line(line))
