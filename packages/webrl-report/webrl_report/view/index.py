"""The index: where each trajectory is, and what it is filtered on. Pages and prompts stay on the disk.

It is in memory, built by every `webrl view` from the JSONL files of the run folders and kept up as they grow
(`refresh`), by one thread; nothing here writes to them, or takes a lock. Lines that are no trajectories are kept apart,
with file and line.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from webrl.errors import DataError, UsageError
from webrl.evaluate import is_success
from webrl.reward.train import JudgedExample
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
    """By kind: line -> `Row`; trajectory -> `Label`, or success by hand; step -> (phase, `StepRecord` without ids)."""
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
        self._files: dict[tuple[int, str], File] = {}
        self._entries: defaultdict[tuple[int, str], dict[Any, Any]] = defaultdict(dict)  # of files, there or not yet

    def rows(self) -> list[Row]:
        """Return all trajectories."""
        files = [file for file in self._files.values() if file.kind in EPISODES.values()]
        return [row for file in files for row in file.entries.values()]

    def find(self, place: str) -> Row:
        """Return the trajectory at a place (`Row.place`). The place is looked up, never opened.

        Raises:
            TrajectoryNotFound: it does not exist.
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

    def refresh(self, on_bytes: Callable[[int], Any] = lambda _: None) -> None:
        """Take in what the files hold more than last time; `on_bytes` hears of each line's size."""
        for run, folder in enumerate(self.runs):
            found = find_files(folder)
            for place in [each for each in self._files if each[0] == run and each[1] not in found]:
                self._files.pop(place).entries.clear()
                self.version += 1
            for name, kind in found.items():
                new = File(run, name, kind, folder / name, self._entries[run, name])
                self._take_in(self._files.setdefault((run, name), new), on_bytes)

    def problems(self) -> tuple[list[str], int]:
        """Return `file:line: what is wrong` of the first lines that are left out, and the number of all.

        A file's last line that is not whole is one of them.
        """
        torn = [f"{file.path}: {_TORN}" for file in self._files.values() if file.is_torn]
        texts = [text for file in self._files.values() for text in file.problems]
        return torn + texts[:_MAX_PROBLEMS], len(torn) + len(texts)

    def read(self, row: Row) -> tuple[Trajectory, bytes]:
        """Read a trajectory and its line. Raises FileChanged if the file is another one now."""
        try:
            with open_input(row.file.path) as opened:
                opened.seek(row.start)
                line = opened.read(row.length)
            trajectory = parse(Trajectory, line)
        except (DataError, OSError, ValueError) as error:
            raise FileChanged(f"{row.place}: {error}") from None
        if trajectory.trajectory_id != row.trajectory.trajectory_id:
            raise FileChanged(f"{row.place} is another trajectory now")
        return trajectory, line

    def trained(self, run: int, step_id: str) -> list[tuple[int, StepRecord]]:
        """Return (phase in whose training it was, record) of a step, by phase."""
        files = [file for file in self._files.values() if (file.run, file.kind) == (run, "steps")]
        found = [file.entries[step_id] for file in files if step_id in file.entries]
        return sorted(found, key=lambda each: each[0])

    def _take_in(self, file: File, on_bytes: Callable[[int], Any]) -> None:
        """Read what a file holds more than last time; if it cannot be read, not again before it has changed."""
        try:
            stat = file.path.stat()
        except OSError:
            return
        state = stat.st_ino, stat.st_size, stat.st_mtime_ns
        if state == file.state:
            return
        self.version += 1
        if stat.st_ino != file.state[0] or stat.st_size <= file.state[1]:  # another file, or cut short
            file.entries.clear()
            file.problems, file.end, file.line = [], 0, 0
        file.state, file.is_torn = state, False
        try:
            with open_input(file.path) as opened:
                opened.seek(file.end)
                for number, line in numbered_lines(opened, file.path, file.problems.append, before=file.line):
                    file.is_torn = not line.endswith(b"\n")
                    if file.is_torn:
                        break
                    on_bytes(len(line))
                    file.line, file.end = number, opened.tell()
                    try:
                        if line.strip():
                            self._add(file, line)
                    except ValueError as error:
                        file.problems.append(f"{file.path}:{number}: {error}"[:_MAX_REASON])
        except (DataError, OSError) as error:
            file.problems.append(str(error)[:_MAX_REASON])

    def _add(self, file: File, line: bytes) -> None:
        """Put in the line that was read last. Raises ValueError for one of another kind."""
        match file.kind:
            case "labels":
                label = parse(Label, line)
                file.entries[label.trajectory_id] = label
            case "hand":
                example = parse(JudgedExample, line)
                file.entries[example.trajectory_id] = example.success
            case "steps":
                step = dataclasses.replace(
                    parse(StepRecord, line), prompt_ids=(), next_prompt_ids=(), logprobs=None, ref_logprobs=None
                )
                folder = re.match(r"phase_(\d{1,9})/", file.name)
                file.entries[step.step_id] = int(folder[1]) if folder else step.phase, step
            case _:
                made = parse(Trajectory, line)
                said = "\n".join(step.response for step in made.steps)
                texts = (made.trajectory_id, made.instruction, made.message, made.env_error, said)
                folder_name, _, name = file.name.rpartition("/")
                file.entries[file.line] = Row(
                    file=file,
                    line=file.line,
                    start=file.end - len(line),
                    length=len(line),
                    trajectory=dataclasses.replace(made, steps=(), final_observation=""),
                    truth=None if made.env_reward is None else int(is_success(made)),
                    num_steps=len(made.steps),
                    words="\n".join(text[:SEARCHED_CHARS] for text in texts).casefold(),
                    labels=self._entries[file.run, f"{folder_name}/{_LABELS[name]}".lstrip("/")],
                    hand_labels=self._entries[file.run, HAND_LABELS],
                )


def parse(cls: type[R], line: bytes) -> R:
    """Parse a line into a record. Raises ValueError."""
    return cls.from_json(parse_line(line))
