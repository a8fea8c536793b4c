"""Token ids and pictures of steps that our policy did not sample, as if it had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.llm.pictures import Example, Picture, png_size, shown_size
from webrl.llm.prompts import build_policy_prompt
from webrl.llm.tokens import CLOSE, OPEN, closing_ids, encode_plain, encode_text, split_thinking
from webrl.types import Trajectory

StepEncoder = Callable[[Trajectory, int], Example]
"""Tokenises step `index` of a trajectory (`open_encoder` makes one)."""
NextPrompt = Callable[[Trajectory], Sequence[int]]
"""[P] the prompt after a trajectory's last step (the released objective's s')."""


def open_encoder(tokenizer: Any, actor: str, config: RunConfig) -> StepEncoder:
    """Tokenise a step as it would be if the policy had produced its response: prompt, response, end token.

    A vision actor gets the step's screenshot. Prompt and response are tokenised separately, as they are when the
    policy acts. The end token is that of the prompt format (`closing_ids`).

    Raises:
        ModelError: `rollout.image_size` is set, and the model has no vision.
    """
    models, rollout, eyes = config.models, config.rollout, None
    if rollout.image_size is not None:
        from webrl.llm.eyes import Eyes

        eyes = Eyes(actor)
        tokenizer = eyes.tokenizer
    end = closing_ids(tokenizer, models.prompt_format)

    def encode(trajectory: Trajectory, index: int) -> Example:
        step, past = trajectory.steps[index], trajectory.steps[:index]
        picture, png = read_picture(trajectory, index, config) if eyes else (None, None)
        prompt = build_policy_prompt(
            tokenizer, trajectory.instruction, past, step.observation, models, rollout.dialect, eyes=eyes, image=png,
            image_size=rollout.image_size or 0, show_text=rollout.show_text,
        )  # fmt: skip
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
