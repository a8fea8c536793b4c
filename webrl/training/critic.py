"""The value model V(s, I): a value head on the language model, read at the prompt's true last token.

Stored as a transformers `…ForSequenceClassification` folder (safetensors) with one label, so that anything can load it
(where transformers has no such class for an architecture, `sequence_classifier` makes it of the same parts): V is the
sigmoid of the logit. The state is the prompt; the action is not part of it.

The released code has two heads of two classes each, takes the smaller of their values, and trains on s' as well as s.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from webrl.errors import ModelError
from webrl.llm.loading import config_of, load_causal_lm, load_pretrained
from webrl.llm.pictures import Example, Picture
from webrl.runs.clock import spent_on
from webrl.training.architectures import decoder_of, turn_off_dropout
from webrl.training.models import PackedCritic, load_routed
from webrl.types import StepRecord


@spent_on("model files")
def load_critic(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    *,
    fresh: bool = False,
    seed: int = 0,
    skeleton: bool = False,
    sees: bool = False,
) -> PackedCritic:
    """A critic, on the CPU: a critic folder as it is, or an actor folder with a fresh head.

    Args:
        fresh: whether an actor's folder will do.
        seed: of the fresh head's weights.
        skeleton, sees: as in `load_actor`.

    Raises:
        ModelError: an actor folder where a critic is needed, several value logits, broken weights, or an
            architecture with buffers that no file holds.
    """
    if sees:
        from webrl.llm.eyes import Eyes

        return PackedCritic(load_value_lm(folder, fresh, seed, dtype), "plain", Eyes(str(folder)))
    config, options = critic_config(folder, fresh)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        lm, route = load_routed(sequence_classifier(config), folder, dtype, skeleton=skeleton, **options)
        if options and not skeleton:
            torch.nn.init.normal_(lm.score.weight, std=0.02)
    if lm.config.pad_token_id is None:  # transformers' own pooling asks for one; ours does not need it
        lm.config.pad_token_id = lm.config.eos_token_id if isinstance(lm.config.eos_token_id, int) else 0
    if issubclass(type(lm), _LastTokenValue):
        # buffers that no file holds are filled in by transformers' own classes alone: here they would be uninitialised
        for prefix, module in lm.named_modules():
            for name in module._non_persistent_buffers_set:
                if getattr(module, name).numel() > 1 and "inv_freq" not in name:
                    raise ModelError(f"{config.model_type} cannot have a value model: no file holds {prefix}.{name}")
    return PackedCritic(lm, route)


def load_value_lm(folder: str | Path, fresh: bool, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A vision-language model with a value head in the place of its output layer; arguments as of `load_critic`."""
    config, options = critic_config(folder, fresh)
    kind = sequence_classifier(config, sees=True)
    if options:
        # the model below the output layer is taken as it was loaded: by names alone not every family's is found
        generator = load_causal_lm(str(folder), dtype=dtype, sees=True)
        generator.config.num_labels = options["num_labels"]
        with torch.device("meta"):
            lm = kind(generator.config)
        setattr(lm, lm.base_model_prefix, generator.base_model)
        lm.score.to_empty(device="cpu")
        lm.score.to(generator.dtype)
        torch.nn.init.normal_(lm.score.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
    else:
        lm = load_pretrained(kind, str(folder), dtype)
    turn_off_dropout(lm)
    return lm


def critic_config(folder: str | Path, fresh: bool) -> tuple[Any, dict[str, int]]:
    """The config of a folder that a critic is to be made of, and the options for a fresh head: {} if it is a critic."""
    config = config_of(str(folder))
    is_critic = any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
    if not fresh and not is_critic:
        raise ModelError(f"{str(folder)!r} holds {config.architectures}, not a critic; train one with `webrl train`")
    if is_critic and config.num_labels != 1:
        raise ModelError(f"critic {str(folder)!r} has {config.num_labels} value logits, not one; start from the actor")
    return config, {} if is_critic else {"num_labels": 1}


def sequence_classifier(config: Any, *, sees: bool = False) -> Any:
    """The class that builds a value model: transformers' own, or one of the same make where it has none, or it sees.

    Raises:
        ModelError: the architecture is not a causal language model.
    """
    from transformers import AutoModelForSequenceClassification
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.auto import modeling_auto

    kind = type(config)
    if not sees and kind in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return AutoModelForSequenceClassification
    if not sees and kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"transformers has no causal language model for model type {config.model_type!r}")
    texts, pictures = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    generator: Any = (pictures if sees else texts)[kind]
    parent = next(cls for cls in generator.__mro__ if cls.__name__.endswith("PreTrainedModel"))
    stem = re.sub("ForCausalLM|LMHeadModel|ForConditionalGeneration", "", generator.__name__)
    own = {"base_model_prefix": generator.base_model_prefix, "config_class": kind, "__module__": __name__}
    return type(f"{stem}ForSequenceClassification", (_LastTokenValue, GenericForSequenceClassification, parent), own)


class _LastTokenValue:
    """Mixed in before transformers' generic classifier, whose own forward wants outputs that not every decoder has."""

    def forward(self: Any, input_ids: Tensor, **options: Any) -> Any:
        """[B, T] ids without padding -> [B, num_labels] logits at the last token."""
        from transformers.modeling_outputs import SequenceClassifierOutputWithPast

        hidden = decoder_of(self)(input_ids=input_ids, **options).last_hidden_state
        return SequenceClassifierOutputWithPast(logits=self.score(hidden[:, -1]))


def states_of(records: Sequence[StepRecord], root: Path) -> dict[tuple[str, int], Example]:
    """Return the states of a run's steps, and the next ones that they carry along, by trajectory and index in it."""
    states = {(r.trajectory_id, r.index): Example(r.prompt_ids, (), Picture.of(r, root)) for r in records}
    for r in records:
        if r.next_prompt_ids:
            digest = r.next_screenshot_sha256
            following = Example(r.next_prompt_ids, (), Picture(root / r.next_screenshot, digest) if digest else None)
            states.setdefault((r.trajectory_id, r.index + 1), following)
    return states


def critic_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each state's value against the outcome (paper Eq. 9).

    L(V) = −(r log V + (1 − r) log(1 − V))

    Args:
        logits: [B, 1].
        targets: [B] r(s_T) in {0, 1}.

    Returns:
        [B] losses.
    """
    return functional.binary_cross_entropy_with_logits(logits[:, 0], targets, reduction="none")
