"""An actor that sees, as a module that takes one sample a row: its prompt with its picture, as it was sampled.

Its log-probabilities are those of transformers' own forward pass, whatever the family. Left out: packing, LoRA, other
engines than ddp, other precisions (`webrl/preflight.py` refuses them by name).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from webrl.config import RunConfig
from webrl.errors import TrainingError
from webrl.llm.eyes import Eyes
from webrl.llm.loading import load_seeing_lm
from webrl.llm.pictures import Picture
from webrl.training.layers.attention import Layout
from webrl.training.models import PackedActor
from webrl.training.packing import Example, Pack, actor_inputs
from webrl.training.selfcheck import turn_off_dropout
from webrl.types import StepRecord


class SeeingActor(PackedActor):
    """A vision-language model that returns the log-probabilities of one sample's action tokens."""

    def __init__(self, lm: Any, eyes: Eyes) -> None:
        super().__init__(lm, "plain")
        self.eyes = eyes

    def inputs(self, row: Pack) -> dict[str, Any]:
        """Keyword arguments of `forward` from a row.

        Raises:
            DataError: its picture is not there, or another one.
            TrainingError: there is none, or the prompt was written for another one.
        """
        (picture,) = row.pictures
        if picture is None:
            raise TrainingError("a sample without its screenshot: nothing is trained blind")
        png = picture.read()
        look, found = self.eyes.look(png), self.eyes.count(row.input_ids[0].tolist())
        if found != look.num_tokens:
            raise TrainingError(
                f"{picture.path}: a prompt has {found} picture tokens, and the processor of {self.eyes.name!r} gives "
                f"its picture {look.num_tokens}: collect the episodes again with this model"
            )
        return {**actor_inputs(row), "seen": self.eyes.inputs(row.input_ids, [png])}

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, position_ids: Tensor, layout: Layout, targets: Tensor, seen: dict[str, Tensor]
    ) -> Tensor:
        """[1, T] ids -> [N] float32 log-probabilities of `targets`.

        Args:
            position_ids: not used: each family has its own for pictures, which it makes of ids and picture.
            seen: of `Eyes.inputs`.

        Raises:
            TrainingError: a family that gives logits of other positions than it was asked for.
        """
        del position_ids
        logits: Tensor = self.lm(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            use_cache=False,
            logits_to_keep=layout.keep,
            **seen,
        ).logits[0]  # [N, V]
        if len(logits) != len(targets):
            raise TrainingError(
                f"{type(self.lm).__name__} gives logits of {len(logits)} positions where {len(targets)} were asked "
                "for: it cannot be trained here"
            )
        return logits.float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


def load_seeing_actor(folder: str | Path, dtype: torch.dtype = torch.float32) -> SeeingActor:
    """A vision-language model on the CPU, without dropout.

    Raises:
        ModelError: a model that cannot see, or an unusable folder.
    """
    eyes = Eyes(str(folder))
    lm = load_seeing_lm(str(folder), dtype=dtype)
    turn_off_dropout(lm)
    return SeeingActor(lm, eyes)


def examples_of(records: Sequence[StepRecord], config: RunConfig) -> list[Example]:
    """Prompt, action and picture of each step.

    Raises:
        TrainingError: a step that was played blind where the run's actor sees, or the other way round.
    """
    size = config.rollout.image_size
    for record in records:
        if bool(record.screenshot_sha256) != (size is not None):
            raise TrainingError(
                f"step {record.step_id!r} was played {'with' if size is None else 'without'} a screenshot, and "
                f"rollout.image_size={size}: nothing is trained on another input than it was played with"
            )
    return [Example(r.prompt_ids, r.action_ids, Picture.of(r, config.run_dir)) for r in records]
