"""Training records (`train.jsonl`) from judged trajectories, and token ids for steps that our policy did not sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.llm.pictures import Picture, png_size, shown_size
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import CLOSE, OPEN, encode_plain, encode_text, split_thinking
from webrl.llm.turns import closing_ids
from webrl.types import Label, StepRecord, Trajectory


class EncodedStep(NamedTuple):
    """Token ids of a step that was not sampled by our own policy (demonstration, imported trace)."""

    prompt_ids: Sequence[int]
    """[P] the policy prompt."""
    action_ids: Sequence[int]
    """[A] the response and the end token."""
    picture: Picture | None = None
    """What the picture tokens of the prompt stand for."""


StepEncoder = Callable[[Trajectory, int], EncodedStep]
"""Tokenises step `index` of a trajectory (`open_encoder` makes one)."""
NextPrompt = Callable[[Trajectory], Sequence[int]]
"""[P] the prompt after a trajectory's last step (the released objective's s')."""


def build_records(
    trajectories: Iterable[Trajectory],
    labels: Mapping[str, Label] | None,
    counts: Counter[str],
    *,
    encode: StepEncoder | None = None,
    tokenizer: str = "",
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
            ids = EncodedStep(step.prompt_ids, step.action_ids) if step.prompt_ids else None
            if ids is None and encode:
                ids = encode(trajectory, step.index)
            if ids is None or not ids.action_ids:
                counts["no_token_ids" if ids is None else "empty_action"] += 1
                continue
            counts["steps"] += 1
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
                outcome=outcome,
                logprobs=step.logprobs if is_sampled else None,
                source="current",
                tokenizer=tokenizer,
                group=trajectory.task.task_id,
                screenshot=step.screenshot if is_shown else "",
                screenshot_sha256=step.screenshot_sha256 if is_shown else "",
            )
            if next_prompt and record.is_last:
                record = replace(record, next_prompt_ids=tuple(next_prompt(trajectory)))
            yield record


def open_encoder(tokenizer: Any, actor: str, config: RunConfig) -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    An actor that sees is shown the step's screenshot. Prompt and response are tokenised apart, as they are when the
    policy acts. The end token is that of the prompt format (`closing_ids`).

    Raises:
        ModelError: `rollout.image_size`, and a model that cannot see.
    """
    models, rollout, eyes = config.models, config.rollout, None
    if rollout.image_size is not None:
        from webrl.llm.eyes import Eyes

        eyes = Eyes(actor)
        tokenizer = eyes.tokenizer
    end = closing_ids(tokenizer, models.prompt_format)

    def encode(trajectory: Trajectory, index: int) -> EncodedStep:
        step, past = trajectory.steps[index], trajectory.steps[:index]
        picture, png = read_picture(trajectory, index, config) if eyes else (None, None)
        prompt = build_policy_prompt(
            tokenizer, trajectory.instruction, past, step.observation, models, rollout.dialect, eyes=eyes, image=png,
            image_size=rollout.image_size or 0, show_text=rollout.show_text,
        )  # fmt: skip
        return EncodedStep(prompt.ids, (*encode_response(tokenizer, step.response), *end), picture)

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
            f"{config.rollout.image_size} asks for: record it with rollout.screenshots=true and that size"
        )
    png, image_size = picture.read(), config.rollout.image_size or 0
    found, wanted = png_size(png), shown_size(png, image_size)
    if found != wanted:
        raise DataError(
            f"{trajectory.trajectory_id}:{index}: its screenshot is {found[0]}x{found[1]} pixels, and "
            f"rollout.image_size={image_size} shows that page at {wanted[0]}x{wanted[1]}: record it in that size"
        )
    return picture, png


def released_next_prompt(config: RunConfig, tokenizer: Any) -> NextPrompt | None:
    """Return the prompt of the round after the last one, with the last page again, where the objective asks for it.

    Only `webrl_released` values that state (THUDM/WebRL); None for the others.
    """
    if config.actor.objective != "webrl_released":
        return None

    def encode(trajectory: Trajectory) -> Sequence[int]:
        goal, steps, dialect = trajectory.instruction, trajectory.steps, config.rollout.dialect
        return build_policy_prompt(tokenizer, goal, steps, steps[-1].observation, config.models, dialect).ids

    return encode


def encode_response(tokenizer: Any, text: str) -> list[int]:
    """Token ids of an answer: the tags of its reasoning as the model writes them, everything else as plain text."""
    thinking, rest = split_thinking(text)
    if not thinking:
        return encode_plain(tokenizer, text)
    inner, close, gap = thinking.removeprefix(OPEN).partition(CLOSE)
    parts = [(OPEN if thinking.startswith(OPEN) else "", True), (inner, False), (close, True), (gap + rest, False)]
    return encode_text(tokenizer, parts, add_prefix=False)
