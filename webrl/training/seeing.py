"""Actor and critic that see, as modules that take one sample a row: its prompt with its picture, as it was sampled.

What they compute is transformers' own forward pass, whatever the family. Left out: packing, LoRA, other
engines than ddp, other precisions (`webrl/preflight.py` refuses them by name).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from webrl.config import RunConfig
from webrl.errors import ModelError, TrainingError
from webrl.llm.eyes import Eyes
from webrl.llm.loading import first_line, load_seeing_lm, quiet, refuse_gaps
from webrl.llm.pictures import Picture
from webrl.runs.clock import spent_on
from webrl.training.critic import classifier_of, critic_config
from webrl.training.layers.attention import Layout
from webrl.training.layers.decoder import decoder_of
from webrl.training.models import PackedActor, PackedCritic
from webrl.training.packing import Example, Pack, actor_inputs, critic_inputs
from webrl.training.selfcheck import turn_off_dropout
from webrl.types import StepRecord


class SeeingActor(PackedActor):
    """A vision-language model that returns the log-probabilities of one sample's action tokens."""

    def __init__(self, lm: Any, eyes: Eyes) -> None:
        super().__init__(lm, "plain")
        self.eyes = eyes

    def inputs(self, row: Pack) -> dict[str, Any]:
        """Keyword arguments of `forward` from a row; errors as of `_seen`."""
        return {**actor_inputs(row), "seen": _seen(self.eyes, row)}

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


class SeeingCritic(PackedCritic):
    """A vision-language model that returns the value logits at one sample's last token."""

    def __init__(self, lm: Any, eyes: Eyes) -> None:
        super().__init__(lm, "plain")
        self.eyes = eyes

    def inputs(self, row: Pack) -> dict[str, Any]:
        """Keyword arguments of `forward` from a row; errors as of `_seen`."""
        return {**critic_inputs(row), "seen": _seen(self.eyes, row)}

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, position_ids: Tensor, layout: Layout, seen: dict[str, Tensor]
    ) -> Tensor:
        """[1, T] ids -> [1, num_labels] float32 logits of the value heads; arguments as of `SeeingActor`."""
        del position_ids, layout
        hidden: Tensor = decoder_of(self.lm)(
            input_ids=input_ids, attention_mask=torch.ones_like(input_ids), use_cache=False, **seen
        ).last_hidden_state  # [1, T, D]
        logits: Tensor = self.lm.score(hidden[:, -1])
        return logits.float()


def _seen(eyes: Eyes, row: Pack) -> dict[str, Tensor]:
    """What a model takes of a row's picture.

    Raises:
        DataError: its picture is not there, or another one.
        TrainingError: there is none, or the prompt was written for another one.
    """
    (picture,) = row.pictures
    if picture is None:
        raise TrainingError("a sample without its screenshot: nothing is trained blind")
    png = picture.read()
    look, found = eyes.look(png), eyes.count(row.input_ids[0].tolist())
    if found != look.num_tokens:
        raise TrainingError(
            f"{picture.path}: a prompt has {found} picture tokens, and the processor of {eyes.name!r} gives "
            f"its picture {look.num_tokens}: collect the episodes again with this model"
        )
    return eyes.inputs(row.input_ids, [png])


def load_seeing_actor(folder: str | Path, dtype: torch.dtype = torch.float32) -> SeeingActor:
    """A vision-language model on the CPU, without dropout.

    Raises:
        ModelError: a model that cannot see, or an unusable folder.
    """
    eyes = Eyes(str(folder))
    lm = load_seeing_lm(str(folder), dtype=dtype)
    turn_off_dropout(lm)
    return SeeingActor(lm, eyes)


def open_seeing_critic(
    folder: str | Path, heads: str | None, seed: int = 0, dtype: torch.dtype = torch.float32
) -> SeeingCritic:
    """`open_critic` of a vision-language model, on the CPU and without dropout.

    Raises:
        ModelError: a model that cannot see, an unusable folder, or whatever `open_critic` raises.
    """
    eyes = Eyes(str(folder))
    return SeeingCritic(load_value_lm(folder, heads, seed, dtype), eyes)


@spent_on("model files")
def load_value_lm(folder: str | Path, heads: str | None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """The model of `open_seeing_critic`: a vision-language model with value heads in the place of its output layer."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    config, fresh = critic_config(folder, heads)
    kind = classifier_of(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(config)], type(config))
    if fresh:
        lm = _with_new_heads(load_seeing_lm(str(folder), dtype=dtype), kind, fresh["num_labels"], seed)
    else:
        try:
            with quiet():
                lm, found = kind.from_pretrained(
                    str(folder), dtype=dtype, ignore_mismatched_sizes=True, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
            raise ModelError(f"cannot load the model {str(folder)!r}: {first_line(error)}") from error
        refuse_gaps(str(folder), lm, found)
    turn_off_dropout(lm)
    return lm


def _with_new_heads(generator: Any, kind: Any, num_labels: int, seed: int) -> Any:
    """The model below a generating one's output layer, as it was loaded: by names alone not every family's is found."""
    generator.config.num_labels = num_labels
    with torch.device("meta"):
        lm = kind(generator.config)
    setattr(lm, lm.base_model_prefix, generator.base_model)
    lm.score.to_empty(device="cpu")
    lm.score.to(generator.dtype)
    torch.nn.init.normal_(lm.score.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    return lm


def examples_of(records: Sequence[StepRecord], config: RunConfig) -> list[Example]:
    """Prompt, action and picture of each step.

    Raises:
        TrainingError: a step that was played blind where the run's actor sees, or the other way round.
    """
    check_pictures(records, config)
    return [Example(r.prompt_ids, r.action_ids, Picture.of(r, config.run_dir)) for r in records]


def check_pictures(records: Sequence[StepRecord], config: RunConfig) -> None:
    """Return if all steps were played with a screenshot where the run's actor sees, else without.

    Raises:
        TrainingError: one was not.
    """
    size = config.rollout.image_size
    for record in records:
        if bool(record.screenshot_sha256) != (size is not None):
            raise TrainingError(
                f"step {record.step_id!r} was played {'with' if size is None else 'without'} a screenshot, and "
                f"rollout.image_size={size}: nothing is trained on another input than it was played with"
            )
