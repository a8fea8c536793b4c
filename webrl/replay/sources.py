"""Reads step records from every kind of input: our own files, VAB's traces, released files, demonstrations."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import DataError, PolicyError
from webrl.llm.loading import load_tokenizer, model_fingerprint, tokenizer_fingerprint
from webrl.llm.pictures import Example
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import end_token_ids
from webrl.replay.demonstrations import StepEncoder, judged_demonstrations, open_encoder, why_left_out
from webrl.replay.score import Scorer, score_steps
from webrl.reward.labels import read_outcomes
from webrl.runs.problems import ProblemLog, kind_of, read_foreign
from webrl.runs.store import read_lines, read_records
from webrl.types import Label, StepRecord, Trajectory

Kind = Literal["records", "trajectories", "vab", "released", "demonstrations"]


@dataclass(frozen=True)
class Source:
    """Where steps come from."""

    path: Path
    """A JSONL file, a trace folder, a released `.pt` file, or what `read_demonstrations` takes."""
    kind: Kind
    """How to read it."""


@dataclass(frozen=True)
class Tools:
    """What making training records needs, and what it leaves; without an actor only stored ids and scores are used."""

    problems: ProblemLog
    """Everything that could not be used."""
    counts: Counter[str] = field(default_factory=Counter)
    """`trajectories`, `steps`, and what was left out: see `build_records`; also `duplicate`, `unusable`."""
    outcomes: Mapping[str, int | None] | None = None
    """Outcome by trajectory id; None adds no reward (a trace folder's own scores count then)."""
    encode: StepEncoder | None = None
    """Tokenises steps without ids; None leaves them out."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer; "" is not known."""
    next_prompt: Callable[[Trajectory], Sequence[int]] | None = None
    """[P] the prompt after a trajectory's last step, for `next_prompt_ids` (released objective)."""
    end_token_ids: tuple[int, ...] = ()
    """Left out of an action's perplexity."""
    scorer: Scorer | None = None
    """Scores steps under the current actor; None takes the `ref_logprobs` that are stored."""
    run_dir: Path | None = None
    """Pictures below it are named from there, so that the folder can move; None: all by absolute path."""
    rollout: RolloutConfig | None = None
    """What the actor is shown and answers: demonstrations that do not fit are left out; None takes all."""

    def judged(self, source: Source, labels: Path | None = None) -> Tools:
        """Return a copy for a source, with nothing counted yet and the outcomes of a label file: the one named, or the
        `labels.jsonl` next to a trajectory file, if there is one.
        """
        beside = source.path.with_name("labels.jsonl")
        if labels is None and source.kind == "trajectories" and beside.is_file():
            labels = beside
        outcomes = read_outcomes(labels, self.problems.on_line) if labels else None
        return replace(self, counts=Counter(), outcomes=outcomes)


def tools_of(actor: str, config: RunConfig, problems: ProblemLog) -> Tools:
    """The tools of an actor that come of its tokenizer; ModelError for an unusable model folder."""
    tokenizer = load_tokenizer(actor)

    def next_prompt(played: Trajectory) -> Sequence[int]:
        """Of the round after the last one, with the last page again: THUDM/WebRL values that state."""
        steps = played.steps
        return build_policy_prompt(tokenizer, played.instruction, steps, steps[-1].observation, config).ids

    return Tools(
        problems,
        encode=open_encoder(tokenizer, actor, config),
        tokenizer=tokenizer_fingerprint(tokenizer),
        next_prompt=next_prompt if config.actor.objective == "webrl_released" else None,
        end_token_ids=tuple(end_token_ids(actor, tokenizer)),
        run_dir=config.run_dir,
        rollout=config.rollout,
    )


@contextlib.contextmanager
def open_tools(actor: str, config: RunConfig, cache: Path, problems: ProblemLog) -> Iterator[Tools]:
    """Open all tools of an actor, its scores too, which are kept in `cache`; DataError if that cannot be used."""
    tools = tools_of(actor, config, problems)
    fingerprint = model_fingerprint(actor)  # may raise, so before a file is made
    with Scorer(cache, fingerprint, lambda records: score_steps(records, actor, config)) as scorer:
        yield replace(tools, scorer=scorer)


def find_source(path: Path, *, prefer_records: bool = False) -> Source:
    """Detect the kind of `path`: one of our run folders' phases or files, a VAB trace folder, a released `.pt` file.

    Args:
        prefer_records: a phase folder means its `train.jsonl` (experience), not its trajectories (rollouts).

    Raises:
        DataError: none of these; the message names what was expected.
    """
    if path.is_dir():
        names = ("train.jsonl", "trajectories.jsonl") if prefer_records else ("trajectories.jsonl", "train.jsonl")
        for name in names:
            if (path / name).is_file():
                return find_source(path / name)
        if kind := kind_of(path):
            return Source(path, kind)
        raise DataError(f"{path}: neither a traces folder (RESULT/traces/*.jsonl) nor trajectories.jsonl inside")
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if kind := kind_of(path):
        return Source(path, kind)
    for number, data in read_lines(path, on_error=lambda _: None):
        if isinstance(data, dict) and "step_id" in data:
            return Source(path, "records")
        if isinstance(data, dict) and "steps" in data:
            return Source(path, "trajectories")
        raise DataError(f"{path}:{number}: neither a trajectory nor a training record: {data!r:.80}")
    return Source(path, "records")


def read_steps(source: Source, tools: Tools) -> Iterator[StepRecord]:
    """Stream the usable steps of a source; the rest is counted, and listed if it is a defect.

    Steps without token ids are tokenised by `tools.encode`. Recorded scores are the outcome unless `tools.outcomes` has
    the judge's.
    """
    if source.kind == "records":
        for record in read_records(source.path, StepRecord, tools.problems.on_line):
            tools.counts["steps"] += 1
            yield record
        return
    for place, trajectory, label in read_trajectories(source, tools):
        if tools.outcomes is not None:
            name = trajectory.trajectory_id
            label = Label(name, None, tools.outcomes.get(name))
        own = replace(tools, counts=Counter())
        try:
            usable = list(build_records(trajectory, label, own))
        except (ValueError, PolicyError) as error:
            tools.problems.add("bad_trajectory", place, f"{error}; left out")
            tools.counts["unusable"] += 1
            continue
        tools.counts.update(own.counts)
        due = tools.rollout if source.kind == "demonstrations" else None
        for record in usable:
            if due and (reason := why_left_out(trajectory, record.index, due)):
                tools.problems.add(reason[0], record.step_id, f"{reason[1]}; left out")
            else:
                yield record


def build_records(trajectory: Trajectory, label: Label | None, tools: Tools) -> Iterator[StepRecord]:
    """Stream the steps of a judged, finished trajectory; sampled ids are taken over exactly, never made again.

    Args:
        label: None adds no reward (`outcome` stays None and nothing is left out because it lacks a label).
        tools: its `counts` are counted up: `trajectories`, `steps`, and what was left out: `unfinished`, `unlabelled`
            (trajectories), `no_token_ids`, `empty_action` (steps).
    """
    if not trajectory.status.finished:
        tools.counts["unfinished"] += 1
        return
    if label is not None and label.reward is None:
        tools.counts["unlabelled"] += 1
        return
    tools.counts["trajectories"] += 1
    for step in trajectory.steps:
        ids = Example(step.prompt_ids, step.action_ids) if step.prompt_ids else None
        if ids is None and tools.encode:
            ids = tools.encode(trajectory, step.index)
        if ids is None or not ids.action_ids:
            tools.counts["no_token_ids" if ids is None else "empty_action"] += 1
            continue
        tools.counts["steps"] += 1
        is_sampled = bool(step.prompt_ids) and len(step.logprobs) == len(step.action_ids)
        # An actor of text reads demonstrations of one that sees as text.
        is_shown = bool(step.screenshot_sha256) and bool(step.prompt_ids or ids.picture)
        record = StepRecord(
            step_id=f"{trajectory.trajectory_id}:{step.index}",
            trajectory_id=trajectory.trajectory_id,
            instruction=trajectory.instruction,
            site=trajectory.task.site,
            phase=trajectory.phase,
            index=step.index,
            num_steps=len(trajectory.steps),
            prompt_ids=tuple(ids.prompt_ids),
            action_ids=tuple(ids.action_ids),
            outcome=None if label is None else label.reward,
            logprobs=step.logprobs if is_sampled else None,
            tokenizer=tools.tokenizer,
            group=trajectory.task.task_id,
            screenshot=step.screenshot if is_shown else "",
            screenshot_sha256=step.screenshot_sha256 if is_shown else "",
        )
        if tools.next_prompt and record.is_last:
            record = replace(record, next_prompt_ids=tuple(tools.next_prompt(trajectory)))
        yield record


def read_trajectories(source: Source, tools: Tools) -> Iterator[tuple[str, Trajectory, Label | None]]:
    """Stream (place for error messages, trajectory, recorded judgement or None if there is none) of a source."""
    if source.kind == "trajectories":
        seen: set[str] = set()
        for number, data in read_lines(source.path, tools.problems.on_line):
            place = f"{source.path}:{number}"
            try:
                trajectory = Trajectory.from_json(data)
                if trajectory.status.finished and not trajectory.steps:
                    raise ValueError("a finished trajectory without steps")
            except ValueError as error:
                tools.problems.add("bad_trajectory", place, f"{error}; left out")
                tools.counts["unusable"] += 1
                continue
            if trajectory.trajectory_id in seen:
                reason = f"trajectory {trajectory.trajectory_id!r} was here before; left out"
                tools.problems.add("duplicate_id", place, reason)
                tools.counts["duplicate"] += 1
                continue
            seen.add(trajectory.trajectory_id)
            yield place, trajectory, None
    elif source.kind == "demonstrations":
        # As old as the supervised start; without token ids, which may be another tokenizer's. Each gets a name of its
        # own: another source, or the run itself, may call another trajectory the same.
        run_dir = f"{tools.run_dir.resolve()}/" if tools.run_dir else ""
        for number, (trajectory, reward) in enumerate(judged_demonstrations(source.path, tools.problems)):
            name = f"{source.path}:{number}:{trajectory.trajectory_id}"
            blank: dict[str, Any] = {"prompt_ids": (), "action_ids": (), "logprobs": ()}
            steps = tuple(
                replace(step, screenshot=step.screenshot.removeprefix(run_dir), **blank) for step in trajectory.steps
            )
            renamed = replace(trajectory, trajectory_id=name, steps=steps, phase=0)
            yield f"{source.path}:{name}", renamed, Label(name, None, reward)
    else:
        for trajectory, label in read_foreign(source.path, tools.problems):
            yield f"{source.path}:{trajectory.trajectory_id}", trajectory, label
