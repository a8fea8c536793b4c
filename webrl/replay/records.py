"""Training records (`train.jsonl`) from judged trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from webrl.types import Label, Step, StepRecord, Trajectory


class EncodedStep(NamedTuple):
    """Token ids of a step that was not sampled by our own policy (demonstration, imported trace)."""

    prompt_ids: Sequence[int]
    """[P] the policy prompt."""
    action_ids: Sequence[int]
    """[A] the response and the end token."""


StepEncoder = Callable[[Trajectory, int], EncodedStep]
"""Tokenises step `index` of a trajectory (`webrl/replay/encode.py` makes one from a tokenizer)."""
NextPrompt = Callable[[Trajectory], Sequence[int]]
"""[P] the prompt after a trajectory's last step (the released objective's s')."""


def build_records(
    trajectories: Iterable[Trajectory],
    labels: Mapping[str, Label] | None,
    counts: Counter[str],
    *,
    encode: StepEncoder | None = None,
    tokenizer: str = "",
    source: str = "current",
    next_prompt: NextPrompt | None = None,
) -> Iterator[StepRecord]:
    """Stream the steps of judged, finished trajectories; sampled ids are taken over exactly, never made again.

    Args:
        labels: judgement by trajectory id; None adds no reward (`outcome` stays None and nothing is left out
            for want of a label).
        counts: is counted up: `trajectories`, `steps`, and what was left out: `unfinished`, `unlabelled`
            (trajectories), `no_token_ids`, `empty_action` (steps).
        encode: for steps without ids; None leaves those steps out.
        tokenizer: fingerprint of the tokenizer that made the ids.
        source: `current`, `replay` or `demonstration`.
        next_prompt: fills `next_prompt_ids` of each last step; None leaves them empty.
    """
    for trajectory in trajectories:
        outcome = None
        if not trajectory.status.finished:
            counts["unfinished"] += 1
            continue
        if labels is not None:
            label = labels.get(trajectory.trajectory_id)
            if label is None or label.reward is None:
                counts["unlabelled"] += 1
                continue
            outcome = label.reward
        counts["trajectories"] += 1
        for step in trajectory.steps:
            ids = _step_ids(trajectory, step, encode)
            if ids is None or not ids.action_ids:
                counts["no_token_ids" if ids is None else "empty_action"] += 1
                continue
            counts["steps"] += 1
            record = _record(trajectory, step, ids, outcome, tokenizer, source)
            if next_prompt and record.is_last:
                record = replace(record, next_prompt_ids=tuple(next_prompt(trajectory)))
            yield record


def _step_ids(trajectory: Trajectory, step: Step, encode: StepEncoder | None) -> EncodedStep | None:
    if step.prompt_ids:
        return EncodedStep(step.prompt_ids, step.action_ids)
    return encode(trajectory, step.index) if encode else None


def _record(
    trajectory: Trajectory, step: Step, ids: EncodedStep, outcome: int | None, tokenizer: str, source: str
) -> StepRecord:
    sampled = bool(step.prompt_ids) and len(step.logprobs) == len(step.action_ids)
    return StepRecord(
        step_id=f"{trajectory.trajectory_id}:{step.index}",
        trajectory_id=trajectory.trajectory_id,
        instruction=trajectory.instruction,
        site=trajectory.task.site,
        phase=trajectory.phase,
        index=step.index,
        num_steps=len(trajectory.steps),
        prompt_ids=tuple(ids.prompt_ids),
        action_ids=tuple(ids.action_ids),
        outcome=outcome,
        logprobs=step.logprobs if sampled else None,
        source=source,
        tokenizer=tokenizer,
        group=trajectory.task.task_id,
    )
