"""Step records, as plain objects, from every kind of input: the hot path of `process_data`.

Lines go from one `orjson` object to another; token ids are passed on untouched, never looked at one by one. What
comes out is field for field what `build_records` gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from webrl.errors import DataError, PolicyError
from webrl.interop.problems import ProblemLog
from webrl.interop.released import read_released
from webrl.interop.vab import is_vab_folder, read_vab, score_label, trace_paths
from webrl.replay.records import NextPrompt, StepEncoder, build_records
from webrl.reward.labels import outcome_key, read_outcomes
from webrl.runs.store import read_lines
from webrl.types import Label, Status, StepRecord, Trajectory

Kind = Literal["records", "trajectories", "vab", "released"]
StepObject = dict[str, Any]

_FINISHED = frozenset(str(s) for s in Status if s.finished)
_REQUIRED = (
    "step_id", "trajectory_id", "instruction", "site", "phase", "index", "num_steps", "action_ids", "prompt_ids",
    "outcome",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where steps come from."""

    path: Path
    """A JSONL file, a trace folder, or a released `.pt` file."""
    kind: Kind
    """How to read it."""

    @property
    def labels(self) -> Path:
        """The judgements that belong to a trajectory file."""
        return self.path.with_name("labels.jsonl")

    @property
    def num_bytes(self) -> int:
        """Size, for progress."""
        if self.kind != "vab":
            return self.path.stat().st_size
        return sum(p.lstat().st_size for p in trace_paths(self.path))


@dataclass
class Reading:
    """What reading a source needs and what it leaves."""

    problems: ProblemLog
    """Everything that could not be used."""
    counts: Counter[str]
    """`trajectories`, `steps`, and what was left out: see `build_records`; also `duplicate`, `unusable`."""
    outcomes: Mapping[bytes, int | None] | None = None
    """Outcome by `outcome_key(trajectory_id)`; None adds no reward (a trace folder's own scores count then)."""
    encode: StepEncoder | None = None
    """Tokenises steps without ids; None leaves them out."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer."""
    next_prompt: NextPrompt | None = None
    """Fills `next_prompt_ids` (released objective)."""
    on_bytes: Callable[[int], Any] = lambda _: None
    """Progress."""


def find_source(path: Path, *, prefer_records: bool = False) -> Source:
    """Tell what `path` is: one of our run folders' phases or files, a VAB trace folder, a released `.pt` file.

    Args:
        prefer_records: a phase folder means its `train.jsonl` (experience), not its trajectories (rollouts).

    Raises:
        DataError: nothing of the kind; says what was expected.
    """
    if path.is_dir():
        names = ("train.jsonl", "trajectories.jsonl") if prefer_records else ("trajectories.jsonl", "train.jsonl")
        for name in names:
            if (path / name).is_file():
                return find_source(path / name)
        if is_vab_folder(path):
            return Source(path, "vab")
        raise DataError(f"{path}: neither a traces folder (RESULT/traces/*.jsonl) nor trajectories.jsonl inside")
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix in (".pt", ".pth", ".pkl"):
        return Source(path, "released")
    for number, data in read_lines(path, on_error=lambda _: None):
        if isinstance(data, dict) and "step_id" in data:
            return Source(path, "records")
        if isinstance(data, dict) and "steps" in data:
            return Source(path, "trajectories")
        raise DataError(f"{path}:{number}: neither a trajectory nor a training record: {data!r:.80}")
    return Source(path, "records")


def read_steps(source: Source, reading: Reading) -> Iterator[StepObject]:
    """Stream the usable steps of a source; the rest is counted, and listed where it is a defect."""
    if source.kind == "records":
        return _read_record_lines(source.path, reading)
    if source.kind == "trajectories":
        return _read_trajectory_lines(source, reading)
    return _read_imported(source, reading)


def _read_record_lines(path: Path, reading: Reading) -> Iterator[StepObject]:
    for number, data in read_lines(path, reading.problems.on_line, reading.on_bytes):
        missing = next((name for name in _REQUIRED if name not in data), None) if isinstance(data, dict) else "step_id"
        if missing:
            reading.problems.add("broken_line", f"{path}:{number}", f"no field {missing!r}; left out")
            continue
        if type(data["index"]) is not int:
            reading.problems.add("broken_line", f"{path}:{number}", f"index {data['index']!r:.80}: no number; left out")
            continue
        reading.counts["steps"] += 1
        yield data


def _read_trajectory_lines(source: Source, reading: Reading) -> Iterator[StepObject]:
    seen: set[bytes] = set()
    for number, data in read_lines(source.path, reading.problems.on_line, reading.on_bytes):
        place = f"{source.path}:{number}"
        try:
            objects = _trajectory_steps(data, reading, seen, place)
        except (KeyError, TypeError, ValueError, PolicyError) as error:
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
            reading.problems.add("bad_trajectory", place, f"{reason}; left out")
            reading.counts["unusable"] += 1
            continue
        for step in objects:
            reading.counts["steps"] += 1
            yield step


def _trajectory_steps(data: Any, reading: Reading, seen: set[bytes], place: str) -> list[StepObject]:
    if not isinstance(data, dict):
        raise TypeError(f"expected a trajectory, found {type(data).__name__}")
    trajectory_id, steps, task = data["trajectory_id"], data["steps"], data["task"]
    if not isinstance(trajectory_id, str) or not isinstance(steps, list) or not isinstance(task, dict):
        raise TypeError(f"`trajectory_id` must be text, `steps` a list, `task` an object, found {data!r:.80}")
    key = outcome_key(trajectory_id)
    if key in seen:
        reading.problems.add("duplicate_id", place, f"trajectory {trajectory_id!r} was here before; left out")
        reading.counts["duplicate"] += 1
        return []
    seen.add(key)
    if data["status"] not in _FINISHED:
        Status(data["status"])  # an unknown status is a defect, not an unfinished episode
        reading.counts["unfinished"] += 1
        return []
    if not steps:
        raise ValueError("a finished trajectory without steps")
    outcome = None
    if reading.outcomes is not None:
        outcome = reading.outcomes.get(key)
        if outcome is None:
            reading.counts["unlabelled"] += 1
            return []
    reading.counts["trajectories"] += 1
    if reading.next_prompt or not all(step["prompt_ids"] for step in steps):
        return _encoded_steps(data, outcome, reading)
    return [_step_object(data, task, step, len(steps), outcome, reading) for step in steps if step["action_ids"]]


def _step_object(
    data: StepObject, task: StepObject, step: StepObject, num_steps: int, outcome: int | None, reading: Reading
) -> StepObject:
    action_ids, logprobs, index = step["action_ids"], step.get("logprobs") or (), step["index"]
    if not isinstance(step["prompt_ids"], list) or not isinstance(action_ids, list) or not isinstance(index, int):
        raise TypeError(f"step {index!r}: token ids must be lists and the index a number")
    return {
        "step_id": f"{data['trajectory_id']}:{index}",
        "trajectory_id": data["trajectory_id"],
        "instruction": data["instruction"],
        "site": task["site"],
        "phase": data["phase"],
        "index": index,
        "num_steps": num_steps,
        "prompt_ids": step["prompt_ids"],
        "action_ids": action_ids,
        "outcome": outcome,
        "logprobs": logprobs if len(logprobs) == len(action_ids) else None,
        "ref_logprobs": None,
        "value": None,
        "next_value": None,
        "source": "current",
        "tokenizer": reading.tokenizer,
        "next_prompt_ids": [],
        "group": task["task_id"],
        "screenshot": step["screenshot"] if step.get("screenshot_sha256") else "",
        "screenshot_sha256": step.get("screenshot_sha256", ""),
    }


def _encoded_steps(data: StepObject, outcome: int | None, reading: Reading) -> list[StepObject]:
    trajectory = Trajectory.from_json(data)
    label = {trajectory.trajectory_id: Label(trajectory.trajectory_id, None, outcome)}
    counts: Counter[str] = Counter()
    objects = [record.to_json() for record in _records(trajectory, None if outcome is None else label, reading, counts)]
    counts -= Counter(trajectories=1, steps=len(objects))
    reading.counts.update(counts)
    return objects


def _read_imported(source: Source, reading: Reading) -> Iterator[StepObject]:
    """Trace folders and released files: text, tokenised here; their recorded scores are the outcome by default."""
    for trajectory, recorded in _imported(source, reading):
        label = recorded
        if reading.outcomes is not None:
            outcome = reading.outcomes.get(outcome_key(trajectory.trajectory_id))
            label = Label(trajectory.trajectory_id, None, outcome)
        if reading.encode is None:
            reading.counts["no_token_ids"] += len(trajectory.steps)
            continue
        try:
            labels = {trajectory.trajectory_id: label}
            records = list(_records(trajectory, labels, reading, reading.counts))
        except (ValueError, PolicyError) as error:
            reading.problems.add("bad_trajectory", f"{source.path}:{trajectory.trajectory_id}", f"{error}; left out")
            reading.counts["unusable"] += 1
            continue
        yield from (record.to_json() for record in records)


def _records(
    trajectory: Trajectory, labels: Mapping[str, Label] | None, reading: Reading, counts: Counter[str]
) -> Iterator[StepRecord]:
    return build_records(
        [trajectory],
        labels,
        counts,
        encode=reading.encode,
        tokenizer=reading.tokenizer,
        next_prompt=reading.next_prompt,
    )


def _imported(source: Source, reading: Reading) -> Iterator[tuple[Trajectory, Label]]:
    if source.kind == "released":
        yield from read_released(source.path, reading.problems)
        reading.on_bytes(source.path.stat().st_size)
        return
    for trajectory in read_vab(source.path, reading.problems, lambda p: reading.on_bytes(p.lstat().st_size)):
        yield trajectory, score_label(trajectory)


def labelled_outcomes(source: Source, problems: ProblemLog) -> Mapping[bytes, int | None] | None:
    """Outcomes of a trajectory file's `labels.jsonl`; None if there is none."""
    if source.kind != "trajectories" or not source.labels.is_file():
        return None
    return read_outcomes(source.labels, problems.on_line)
