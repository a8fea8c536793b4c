"""Step records, as plain objects, from every kind of input: the hot path of `process_data`.

Lines go from one `orjson` object to another; token ids are passed on untouched, never looked at one by one. What
comes out is field for field what `build_records` gives.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from webrl.config import RunConfig
from webrl.errors import DataError, PolicyError
from webrl.interop.problems import ProblemLog
from webrl.interop.released import read_released
from webrl.interop.vab import is_vab_folder, read_vab, score_label, trace_paths
from webrl.llm.fingerprint import tokenizer_fingerprint
from webrl.llm.loading import load_tokenizer
from webrl.llm.turns import end_token_ids
from webrl.replay.demonstrations import judged_demonstrations
from webrl.replay.records import NextPrompt, StepEncoder, build_records, open_encoder, released_next_prompt
from webrl.replay.score import Scorer
from webrl.reward.labels import outcome_key, read_outcomes
from webrl.runs.store import read_lines
from webrl.types import Label, Status, Step, StepRecord, Trajectory

Kind = Literal["records", "trajectories", "vab", "released", "demonstrations"]
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
    """A JSONL file, a trace folder, a released `.pt` file, or what `read_demonstrations` takes."""
    kind: Kind
    """How to read it."""

    @property
    def labels(self) -> Path:
        """The judgements that belong to a trajectory file."""
        return self.path.with_name("labels.jsonl")

    @property
    def num_bytes(self) -> int:
        """Size, for progress; of demonstrations none, whose reader does not tell how far it is."""
        if self.kind == "demonstrations":
            return 0
        if self.kind != "vab":
            return self.path.stat().st_size
        return sum(p.lstat().st_size for p in trace_paths(self.path))


@dataclass(frozen=True)
class Tools:
    """What making training records needs, and what it leaves; without an actor only stored ids and scores are used."""

    problems: ProblemLog
    """Everything that could not be used."""
    counts: Counter[str] = field(default_factory=Counter)
    """`trajectories`, `steps`, and what was left out: see `build_records`; also `duplicate`, `unusable`."""
    outcomes: Mapping[bytes, int | None] | None = None
    """Outcome by `outcome_key(trajectory_id)`; None adds no reward (a trace folder's own scores count then)."""
    encode: StepEncoder | None = None
    """Tokenises steps without ids; None leaves them out."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer; "" is not known."""
    next_prompt: NextPrompt | None = None
    """Fills `next_prompt_ids` (released objective)."""
    end_token_ids: tuple[int, ...] = ()
    """Left out of an action's perplexity."""
    scorer: Scorer | None = None
    """Scores steps under the current actor; None takes the `ref_logprobs` that are stored."""
    on_bytes: Callable[[int], Any] = lambda _: None
    """Progress."""
    run_dir: Path | None = None
    """Pictures below it are named from there, so that the folder can move; None: all by absolute path."""

    def judged(self, outcomes: Mapping[bytes, int | None] | None) -> Tools:
        """The same for another source, of which nothing is counted yet."""
        return replace(self, counts=Counter(), outcomes=outcomes)


@contextlib.contextmanager
def open_tools(actor: str, config: RunConfig, cache: Path, problems: ProblemLog) -> Iterator[Tools]:
    """The tools of an actor: its tokenizer, and its scores, which are kept in `cache`.

    Raises:
        ModelError: an unusable model folder.
        DataError: an unusable cache.
    """
    tokenizer = load_tokenizer(actor)
    with Scorer(actor, config, cache) as scorer:
        yield Tools(
            problems,
            encode=open_encoder(tokenizer, actor, config),
            tokenizer=tokenizer_fingerprint(tokenizer),
            next_prompt=released_next_prompt(config, tokenizer),
            end_token_ids=tuple(end_token_ids(actor, tokenizer)),
            scorer=scorer,
            run_dir=config.run_dir,
        )


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


def read_steps(source: Source, tools: Tools) -> Iterator[StepObject]:
    """Stream the usable steps of a source; the rest is counted, and listed where it is a defect."""
    if source.kind == "records":
        return _read_record_lines(source.path, tools)
    if source.kind == "trajectories":
        return _read_trajectory_lines(source, tools)
    return _read_imported(source, tools)


def _read_record_lines(path: Path, tools: Tools) -> Iterator[StepObject]:
    for number, data in read_lines(path, tools.problems.on_line, tools.on_bytes):
        missing = next((name for name in _REQUIRED if name not in data), None) if isinstance(data, dict) else "step_id"
        if missing:
            tools.problems.add("broken_line", f"{path}:{number}", f"no field {missing!r}; left out")
            continue
        if type(data["index"]) is not int:
            tools.problems.add("broken_line", f"{path}:{number}", f"index {data['index']!r:.80}: no number; left out")
            continue
        tools.counts["steps"] += 1
        yield data


def _read_trajectory_lines(source: Source, tools: Tools) -> Iterator[StepObject]:
    seen: set[bytes] = set()
    for number, data in read_lines(source.path, tools.problems.on_line, tools.on_bytes):
        place = f"{source.path}:{number}"
        try:
            objects = _trajectory_steps(data, tools, seen, place)
        except (KeyError, TypeError, ValueError, PolicyError) as error:
            reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
            tools.problems.add("bad_trajectory", place, f"{reason}; left out")
            tools.counts["unusable"] += 1
            continue
        for step in objects:
            tools.counts["steps"] += 1
            yield step


def _trajectory_steps(data: Any, tools: Tools, seen: set[bytes], place: str) -> list[StepObject]:
    if not isinstance(data, dict):
        raise TypeError(f"expected a trajectory, found {type(data).__name__}")
    trajectory_id, steps, task = data["trajectory_id"], data["steps"], data["task"]
    if not isinstance(trajectory_id, str) or not isinstance(steps, list) or not isinstance(task, dict):
        raise TypeError(f"`trajectory_id` must be text, `steps` a list, `task` an object, found {data!r:.80}")
    key = outcome_key(trajectory_id)
    if key in seen:
        tools.problems.add("duplicate_id", place, f"trajectory {trajectory_id!r} was here before; left out")
        tools.counts["duplicate"] += 1
        return []
    seen.add(key)
    if data["status"] not in _FINISHED:
        Status(data["status"])  # an unknown status is a defect, not an unfinished episode
        tools.counts["unfinished"] += 1
        return []
    if not steps:
        raise ValueError("a finished trajectory without steps")
    outcome = None
    if tools.outcomes is not None:
        outcome = tools.outcomes.get(key)
        if outcome is None:
            tools.counts["unlabelled"] += 1
            return []
    tools.counts["trajectories"] += 1
    if tools.next_prompt or not all(step["prompt_ids"] for step in steps):
        return _encoded_steps(data, outcome, tools)
    return [_step_object(data, task, step, len(steps), outcome, tools) for step in steps if step["action_ids"]]


def _step_object(
    data: StepObject, task: StepObject, step: StepObject, num_steps: int, outcome: int | None, tools: Tools
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
        "tokenizer": tools.tokenizer,
        "next_prompt_ids": [],
        "group": task["task_id"],
        "screenshot": step["screenshot"] if step.get("screenshot_sha256") else "",
        "screenshot_sha256": step.get("screenshot_sha256", ""),
        "next_screenshot": "",
        "next_screenshot_sha256": "",
    }


def _encoded_steps(data: StepObject, outcome: int | None, tools: Tools) -> list[StepObject]:
    trajectory = Trajectory.from_json(data)
    label = {trajectory.trajectory_id: Label(trajectory.trajectory_id, None, outcome)}
    counts: Counter[str] = Counter()
    objects = [record.to_json() for record in _records(trajectory, None if outcome is None else label, tools, counts)]
    counts -= Counter(trajectories=1, steps=len(objects))
    tools.counts.update(counts)
    return objects


def _read_imported(source: Source, tools: Tools) -> Iterator[StepObject]:
    """Traces, released files, demonstrations: text, tokenised here; recorded scores are the outcome by default."""
    for trajectory, recorded in _imported(source, tools):
        label = recorded
        if tools.outcomes is not None:
            outcome = tools.outcomes.get(outcome_key(trajectory.trajectory_id))
            label = Label(trajectory.trajectory_id, None, outcome)
        if tools.encode is None:
            tools.counts["no_token_ids"] += len(trajectory.steps)
            continue
        try:
            labels = {trajectory.trajectory_id: label}
            records = list(_records(trajectory, labels, tools, tools.counts))
        except (ValueError, PolicyError) as error:
            tools.problems.add("bad_trajectory", f"{source.path}:{trajectory.trajectory_id}", f"{error}; left out")
            tools.counts["unusable"] += 1
            continue
        yield from (record.to_json() for record in records)


def _records(
    trajectory: Trajectory, labels: Mapping[str, Label] | None, tools: Tools, counts: Counter[str]
) -> Iterator[StepRecord]:
    return build_records(
        [trajectory],
        labels,
        counts,
        encode=tools.encode,
        tokenizer=tools.tokenizer,
        next_prompt=tools.next_prompt,
    )


def _imported(source: Source, tools: Tools) -> Iterator[tuple[Trajectory, Label]]:
    if source.kind == "demonstrations":
        yield from _demonstrations(source, tools)
        return
    if source.kind == "released":
        yield from read_released(source.path, tools.problems)
        tools.on_bytes(source.path.stat().st_size)
        return
    for trajectory in read_vab(source.path, tools.problems, lambda p: tools.on_bytes(p.lstat().st_size)):
        yield trajectory, score_label(trajectory)


def _demonstrations(source: Source, tools: Tools) -> Iterator[tuple[Trajectory, Label]]:
    """As old as the supervised start; without token ids, which may be another tokenizer's.

    Each has a name of its own: another source, or the run itself, may call another trajectory the same.
    """
    here = f"{tools.run_dir.resolve()}/" if tools.run_dir else ""
    for number, (trajectory, reward) in enumerate(judged_demonstrations(source.path, tools.problems)):
        name = f"{source.path}:{number}:{trajectory.trajectory_id}"
        steps = tuple(_as_text(step, here) for step in trajectory.steps)
        yield replace(trajectory, trajectory_id=name, steps=steps, phase=0), Label(name, None, reward)


def _as_text(step: Step, here: str) -> Step:
    return replace(step, prompt_ids=(), action_ids=(), logprobs=(), screenshot=step.screenshot.removeprefix(here))


def labelled_outcomes(source: Source, problems: ProblemLog) -> Mapping[bytes, int | None] | None:
    """Outcomes of a trajectory file's `labels.jsonl`; None if there is none."""
    if source.kind != "trajectories" or not source.labels.is_file():
        return None
    return read_outcomes(source.labels, problems.on_line)
