"""Lines of a run's files as rows of the index: what a selection needs to know of them, and where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from webrl.evaluate import is_success
from webrl.reward.data import JudgedExample
from webrl.runs.store import parse_line
from webrl.types import Label, Record, StepRecord, Trajectory
from webrl.view.files import Found

R = TypeVar("R", bound=Record)

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
