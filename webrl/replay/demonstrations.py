"""Demonstrations of every kind as trajectories: recorded experts, trace folders, released files, people, past runs; and
the token ids and pictures of steps that our policy did not sample, as if it had.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import DataError, UsageError
from webrl.evaluate import is_success
from webrl.llm.pictures import Example, Picture, png_size, shown_size
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import CLOSE, OPEN, closing_ids, encode_plain, encode_text, without_end, without_thinking
from webrl.reward.labels import read_outcomes
from webrl.rollouts.actions import ACTIONS, ActionError, read_answer
from webrl.runs.problems import ProblemLog, kind_of, read_foreign
from webrl.runs.store import read_lines
from webrl.types import Outcome, Record, Status, Step, Task, Trajectory

_IDS = re.compile(r"(?:\[|\bid=[\"']?)(\w+)")
"""The ids of a page, as text and as HTML."""


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
    success: Outcome = 1
    """0 for an attempt that is not to be imitated."""


def read_demonstrations(
    paths: Sequence[Path], problems: ProblemLog, outcome: Literal["success", "all"], counts: Counter[str]
) -> Iterator[Trajectory]:
    """Stream the finished trajectories to imitate from all sources.

    Args:
        paths: each a trajectories.jsonl, a phase or run folder of ours, a VAB result folder, a released `.pt` file, or
            a human file (JSONL of `HumanDemonstration`).
        outcome: `success` leaves failures and trajectories of unknown outcome out.
        counts: is counted up: `trajectories`, `repeated` among them, and what was left out: `failed`, `unjudged`,
            `unfinished`.

    Raises:
        DataError: a source has another form.
    """
    seen: set[int] = set()
    for path in paths:
        for trajectory, reward in judged_demonstrations(path, problems):
            if not trajectory.status.finished or not trajectory.steps:
                counts["unfinished"] += 1
            elif outcome == "success" and reward != 1:
                counts["unjudged" if reward is None else "failed"] += 1
            else:
                counts["trajectories"] += 1
                same = hash((trajectory.instruction, *((step.observation, step.response) for step in trajectory.steps)))
                if same in seen:
                    counts["repeated"] += 1
                seen.add(same)
                yield trajectory


def judged_demonstrations(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, int | None]]:
    """Stream (trajectory, 1 or 0, or None if it has not been judged) of one source; DataError for another form."""
    files = [path / "trajectories.jsonl", *sorted(path.glob("phase_[0-9]*/trajectories.jsonl"))]
    if found := [file for file in files if file.is_file()]:
        for file in found:
            yield from _read_lines(file, problems)
    elif kind_of(path):
        yield from ((trajectory, label.reward) for trajectory, label in read_foreign(path, problems))
    elif path.is_dir():
        raise DataError(f"{path}: no demonstrations; expected trajectories.jsonl, phase_NN/ of a run, or traces/ (VAB)")
    else:
        yield from _read_lines(path, problems)


def _read_lines(path: Path, problems: ProblemLog) -> Iterator[tuple[Trajectory, int | None]]:
    """Read a trajectory file, judged by its `labels.jsonl`, else by the environment's reward; or a human file."""
    judged = set[str]()
    labels = path.with_name("labels.jsonl")
    outcomes = read_outcomes(labels, problems.on_line) if labels.is_file() else None
    root = path.parent.resolve().parent
    for number, data in read_lines(path, problems.on_line):
        try:
            if isinstance(data, dict) and "trajectory_id" not in data:
                shown = HumanDemonstration.from_json(data)
                name, page = f"{path.stem}:{number}", shown.steps[-1].observation if shown.steps else ""
                said = [without_end(step.response) for step in shown.steps]
                steps = tuple(Step(i, s.observation, said[i], said[i]) for i, s in enumerate(shown.steps))
                task = Task(task_id=name, site=shown.site, instruction=shown.instruction)
                yield Trajectory(name, task, shown.instruction, 0, steps, page, Status.AGENT_DONE), shown.success
                continue
            trajectory = Trajectory.from_json(data)
        except ValueError as error:
            problems.add("bad_demonstration", f"{path}:{number}", f"{error}; left out")
            continue
        if any(step.screenshot for step in trajectory.steps):  # they lie next to the file, in any run
            steps = tuple(replace(s, screenshot=s.screenshot and str(root / s.screenshot)) for s in trajectory.steps)
            trajectory = replace(trajectory, steps=steps)
        name = trajectory.trajectory_id
        if outcomes is not None and trajectory.status.finished:
            if name in judged:
                raise DataError(f"{path}:{number}: a second {name!r}; keep each run's files in a separate folder")
            judged.add(name)
        own = None if trajectory.env_reward is None else int(is_success(trajectory))
        yield trajectory, own if outcomes is None else outcomes.get(name)


def check_demonstrations(config: RunConfig) -> None:
    """Check that each of `replay.demos` can be imitated, or begin the replay buffer. Raises UsageError: one is missing,
    holds no success, no page or no action of the dialect, or lacks a screenshot that is needed.
    """
    for path in config.used_demos:
        shown: Trajectory | None = None
        reason: tuple[str, str] | None = ("", "")
        try:
            for shown in read_demonstrations([path], ProblemLog(), "success", Counter()):
                for index in range(len(shown.steps)):
                    reason = reason and why_left_out(shown, index, config.rollout)
                    if config.rollout.sees:
                        read_picture(shown, index, config)
                if reason is None and not config.rollout.sees:
                    break
        except DataError as error:
            raise UsageError(f"replay.demos: {error}; correct it, or leave it out") from None
        if shown is None:
            raise UsageError(f"replay.demos: {str(path)!r} has no finished trajectory that succeeded; leave it out")
        if reason:
            raise UsageError(f"replay.demos: {str(path)!r} has no step that can be imitated: {reason[1]}; leave it out")


def why_left_out(trajectory: Trajectory, index: int, rollout: RolloutConfig) -> tuple[str, str] | None:
    """Return why step `index` is not imitated, as a kind of problem and its text; None if it is."""
    step = trajectory.steps[index]
    said = f"answer {step.response!r:.80}"
    try:
        action = read_answer(step.response if step.action.strip() else "", rollout.dialect)
        taken = read_answer(step.action, rollout.dialect)
    except ActionError as error:
        return "unreadable_action", f"{said} is not an action of rollout.dialect={rollout.dialect} ({error})"
    if action != taken:
        return "other_action", f"{said} is not the action that was carried out, {step.action!r:.80}"
    if not trajectory.instruction.strip():
        return "no_instruction", "its instruction is empty, so it serves no goal"
    if not rollout.sees and not step.observation.strip():  # else its screenshot is the page
        return "no_page", "no page was recorded, so it answers to nothing"
    other = {"axtree": "<", "html": "RootWebArea"}[rollout.observation]  # how a page of the other form begins
    if rollout.show_text and step.observation.startswith(other):
        text = f"the page {step.observation[:40]!r} is not as rollout.observation={rollout.observation} shows it"
        return "other_page", f"{text}: set the one that it was recorded with"
    if action.name == "noop":
        return "wait", "a wait tells of a slow machine, not of the task"
    named = (action.arguments[parameter.name] for parameter in ACTIONS[action.name] if parameter.kind == "bid")
    known = _IDS.findall(step.observation) or re.findall(r"\w+", step.observation)
    missing = [bid for bid in named if rollout.show_text and bid not in known]
    if missing and step.observation.strip():
        return "no_such_element", f"{said} names element {missing[0]!r:.80}, which is not on the page it answers to"
    return None


StepEncoder = Callable[[Trajectory, int], Example]
"""Tokenises step `index` of a trajectory (`open_encoder` makes one)."""


def open_encoder(tokenizer: Any, actor: str, config: RunConfig) -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    A vision actor gets the step's screenshot. Prompt and response are tokenised separately, as they are when the
    policy acts. The end token is that of the prompt format (`closing_ids`).

    Raises:
        ModelError: `rollout.image_size` is set, and the model has no vision.
    """
    eyes = None
    if config.rollout.sees:
        from webrl.llm.eyes import Eyes

        eyes = Eyes(actor)
        tokenizer = eyes.tokenizer
    end = closing_ids(tokenizer, config.models.prompt_format)

    def encode(trajectory: Trajectory, index: int) -> Example:
        step, past = trajectory.steps[index], trajectory.steps[:index]
        picture, png = read_picture(trajectory, index, config) if eyes else (None, None)
        goal, page = trajectory.instruction, step.observation
        prompt = build_policy_prompt(tokenizer, goal, past, page, config, eyes=eyes, image=png)
        return Example(prompt.ids, (*encode_response(tokenizer, step.response), *end), picture)

    return encode


def read_picture(trajectory: Trajectory, index: int, config: RunConfig) -> tuple[Picture, bytes]:
    """Return the screenshot of a step that a run's actor is to see, and its bytes.

    Raises:
        DataError: the step has none, or one of another size than the actor is shown, or the file is not as it was.
    """
    picture = Picture.of(trajectory.steps[index], config.run_dir)
    if picture is None:
        raise DataError(
            f"{trajectory.trajectory_id}:{index} has no screenshot, which rollout.image_size="
            f"{config.rollout.image_size} needs: record it with rollout.screenshots=true at that size"
        )
    png, image_size = picture.read(), config.rollout.image_size or 0
    found, wanted = png_size(png), shown_size(png, image_size)
    if found != wanted:
        raise DataError(
            f"{trajectory.trajectory_id}:{index}: its screenshot is {found[0]}x{found[1]} pixels, and "
            f"rollout.image_size={image_size} shows that page at {wanted[0]}x{wanted[1]}: record it at that size"
        )
    return picture, png


def encode_response(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an answer: the tags of its reasoning as the model writes them, everything else as plain text."""
    rest = without_thinking(text)
    thinking = text.removesuffix(rest)
    if not thinking:
        return encode_plain(tokenizer, text)
    inner, close, gap = thinking.removeprefix(OPEN).partition(CLOSE)
    parts = [(OPEN if thinking.startswith(OPEN) else "", True), (inner, False), (close, True), (gap + rest, False)]
    return encode_text(tokenizer, parts, add_prefix=False)
