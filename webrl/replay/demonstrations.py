"""Demonstrations of every kind as trajectories: recorded experts, trace folders, released files, people, past runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.evaluate import is_success
from webrl.interop.problems import ProblemLog
from webrl.interop.released import read_released
from webrl.interop.vab import is_vab_folder, read_vab, score_label
from webrl.replay.records import read_picture
from webrl.reward.labels import read_outcomes
from webrl.runs.store import read_lines
from webrl.types import Record, Status, Step, Task, Trajectory


@dataclass(frozen=True)
class HumanStep(Record):
    """One step of a person's demonstration."""

    observation: str
    """The page, in the text form that the policy will see (`rollout.observation`)."""
    response: str
    """What the policy should answer: an action, with its reasoning before it if it is to learn that."""


@dataclass(frozen=True)
class HumanDemonstration(Record):
    """A line of a human file.

    Example: `{"instruction": "Click on …", "steps": [{"observation": "RootWebArea …", "response": "click('12')"}]}`
    """

    instruction: str
    """The user's goal."""
    steps: tuple[HumanStep, ...]
    """In order; the last one ends the task."""
    site: str = ""
    """The task's site."""
    success: int = 1
    """0 for an attempt that is not to be imitated."""


def read_demonstrations(
    paths: Sequence[Path], problems: ProblemLog, outcome: Literal["success", "all"], counts: Counter[str]
) -> Iterator[Trajectory]:
    """Stream the finished trajectories to imitate from all sources.

    Args:
        paths: each a trajectories.jsonl, a phase or run folder of ours, a VAB result folder, a released `.pt` file, or
            a human file (JSONL of `HumanDemonstration`).
        outcome: `success` leaves failures and trajectories of unknown outcome out.
        counts: is counted up: `trajectories`, and what was left out: `failed`, `unjudged`, `unfinished`.

    Raises:
        DataError: a source is none of these.
    """
    for path in paths:
        for trajectory, reward in judged_demonstrations(path, problems):
            if not trajectory.status.finished or not trajectory.steps:
                counts["unfinished"] += 1
            elif outcome == "success" and reward != 1:
                counts["unjudged" if reward is None else "failed"] += 1
            else:
                counts["trajectories"] += 1
                yield trajectory


def judged_demonstrations(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, int | None]]:
    """Stream (trajectory, 1 or 0, or None if it has not been judged) of one source.

    Raises:
        DataError: a source is none of these.
    """
    if path.is_dir():
        files = [path / "trajectories.jsonl", *sorted(path.glob("phase_[0-9]*/trajectories.jsonl"))]
        found = [file for file in files if file.is_file()]
        if found:
            for file in found:
                yield from _read_lines(file, problems)
        elif is_vab_folder(path):
            yield from ((trajectory, score_label(trajectory).reward) for trajectory in read_vab(path, problems))
        else:
            raise DataError(
                f"{path}: no demonstrations; expected trajectories.jsonl, phase_NN/ of a run, or traces/ (VAB)"
            )
    elif not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    elif path.suffix in (".pt", ".pth", ".pkl"):
        yield from ((trajectory, label.reward) for trajectory, label in read_released(path, problems))
    else:
        yield from _read_lines(path, problems)


def _read_lines(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, int | None]]:
    """Read a trajectory file, judged by its `labels.jsonl`, else by the environment's reward; or a human file."""
    labels = path.with_name("labels.jsonl")
    outcomes = read_outcomes(labels, problems.on_line) if labels.is_file() else None
    root = path.parent.resolve().parent
    for number, data in read_lines(path, problems.on_line):
        try:
            if isinstance(data, dict) and "trajectory_id" not in data:
                shown = HumanDemonstration.from_json(data)
                if shown.success not in (0, 1):
                    raise ValueError(f"success must be 0 or 1, found {shown.success}")
                name, page = f"{path.stem}:{number}", shown.steps[-1].observation if shown.steps else ""
                steps = tuple(Step(i, s.observation, s.response, s.response) for i, s in enumerate(shown.steps))
                task = Task(task_id=name, site=shown.site, instruction=shown.instruction)
                human = Trajectory(name, task, shown.instruction, 0, steps, page, Status.AGENT_DONE)
                yield human, shown.success
                continue
            trajectory = Trajectory.from_json(data)
        except ValueError as error:
            problems.add("bad_demonstration", f"{path}:{number}", f"{error}; left out")
            continue
        if any(step.screenshot for step in trajectory.steps):  # they lie next to the file, in any run
            steps = tuple(replace(s, screenshot=s.screenshot and str(root / s.screenshot)) for s in trajectory.steps)
            trajectory = replace(trajectory, steps=steps)
        if outcomes is not None:
            yield trajectory, outcomes.get(trajectory.trajectory_id)
        else:
            yield trajectory, None if trajectory.env_reward is None else int(is_success(trajectory))


def check_demonstrations(config: RunConfig) -> None:
    """Check that each of `replay.demos` can be imitated, or begin the replay buffer.

    Raises:
        UsageError: one is missing or holds no success, or a screenshot that the run's actor needs is missing.
    """
    for path in config.used_demos:
        shown = None
        try:
            for shown in read_demonstrations([path], ProblemLog(), "success", Counter()):
                if config.rollout.image_size is None:
                    break
                for index in range(len(shown.steps)):
                    read_picture(shown, index, config)
        except DataError as error:
            raise UsageError(f"replay.demos: {error}") from None
        if shown is None:
            raise UsageError(f"replay.demos: {str(path)!r} has no finished trajectory that succeeded; leave it out")
