"""The value model V(s, I): a value head on the language model, read at the prompt's true last token.

Stored as a transformers `…ForSequenceClassification` folder (safetensors), so that anything can load it (where
transformers has no such class for an architecture, `sequence_classifier` makes it of the same parts):
`num_labels` 1 is the paper's single head (V = sigmoid of the logit); 4 are the released code's two heads of two
classes each (V = min over the heads of softmax(logits)[1]). The state is the prompt; the action is not part of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from webrl.errors import ModelError
from webrl.llm.check import check_model
from webrl.llm.loading import config_of, load_causal_lm, load_pretrained, model_folder
from webrl.runs.clock import spent_on
from webrl.training.architectures import decoder_of, turn_off_dropout
from webrl.training.models import PackedCritic, load_routed

NUM_LABELS = {"single": 1, "double": 4}


@spent_on("model files")
def load_critic(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    *,
    heads: str | None = None,
    seed: int = 0,
    skeleton: bool = False,
    sees: bool = False,
) -> PackedCritic:
    """A critic, on the CPU: a critic folder as it is, or an actor folder with fresh heads.

    Args:
        heads: `single` or `double` for fresh heads, and checked against a critic folder's; None: must be a critic.
        seed: of the fresh heads' weights.
        skeleton, sees: as in `load_actor`.

    Raises:
        ModelError: an actor folder where a critic is needed, another number of heads, broken weights, or an
            architecture with buffers that no file holds.
    """
    if sees:
        from webrl.llm.eyes import Eyes

        eyes = Eyes(str(folder))
        return PackedCritic(load_value_lm(folder, heads, seed, dtype), "plain", eyes)
    config, options = critic_config(folder, heads)
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


def load_value_lm(folder: str | Path, heads: str | None, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """A vision-language model with value heads in the place of its output layer; arguments as of `load_critic`."""
    config, fresh = critic_config(folder, heads)
    kind = sequence_classifier(config, sees=True)
    if fresh:
        # the model below the output layer is taken as it was loaded: by names alone not every family's is found
        generator = load_causal_lm(str(folder), dtype=dtype, sees=True)
        generator.config.num_labels = fresh["num_labels"]
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


def critic_config(folder: str | Path, heads: str | None) -> tuple[Any, dict[str, int]]:
    """The config of a folder that a critic is to be made of, and the options for fresh heads: {} if it is a critic.

    Raises:
        ModelError: as `load_critic`.
    """
    config = config_of(str(folder))
    is_critic = any(name.endswith("ForSequenceClassification") for name in config.architectures or [])
    if heads is None and not is_critic:
        raise ModelError(f"{str(folder)!r} holds {config.architectures}, not a critic; train one with `webrl train`")
    if is_critic and heads is not None and config.num_labels != NUM_LABELS[heads]:
        raise ModelError(
            f"critic {str(folder)!r} has {config.num_labels} value logits, critic.heads={heads!r} needs "
            f"{NUM_LABELS[heads]}; set critic.heads to match, or start from the actor"
        )
    return config, {} if is_critic else {"num_labels": NUM_LABELS[heads or "single"]}


def check_critic(folder: str, heads: str, *, sees: bool) -> None:
    """Return if a critic can start from a folder, as `check_model`: a critic of such heads, or an actor.

    Raises:
        ModelError: it cannot.
    """
    if model_folder(folder) is None:  # of the Hub: looked at when it is loaded
        return
    config, fresh = critic_config(folder, heads)
    if fresh:
        check_model(folder, sees=sees)
    else:
        check_model(folder, kind=sequence_classifier(config, sees=sees))


def sequence_classifier(config: Any, *, sees: bool = False) -> Any:
    """The class that builds a value model: transformers' own, or one of the same make where it has none, or it sees.

    Raises:
        ModelError: the architecture is not a causal language model.
    """
    from transformers import AutoModelForSequenceClassification
    from transformers.models.auto import modeling_auto

    kind = type(config)
    if sees:
        return classifier_of(modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[kind], kind)
    if kind in modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return AutoModelForSequenceClassification
    if kind not in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"transformers has no causal language model for model type {config.model_type!r}")
    return classifier_of(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING[kind], kind)


def classifier_of(generator: Any, config_class: type) -> Any:
    """A sequence classifier of the parts of a generating class of transformers."""
    from transformers.modeling_layers import GenericForSequenceClassification

    parent = next(cls for cls in generator.__mro__ if cls.__name__.endswith("PreTrainedModel"))
    stem = re.sub("ForCausalLM|LMHeadModel|ForConditionalGeneration", "", generator.__name__)
    own = {"base_model_prefix": generator.base_model_prefix, "config_class": config_class, "__module__": __name__}
    return type(f"{stem}ForSequenceClassification", (_LastTokenValue, GenericForSequenceClassification, parent), own)


class _LastTokenValue:
    """Mixed in before transformers' generic classifier, whose own forward wants outputs that not every decoder has."""

    def forward(self: Any, input_ids: Tensor, **options: Any) -> Any:
        """[B, T] ids without padding -> [B, num_labels] logits at the last token."""
        from transformers.modeling_outputs import SequenceClassifierOutputWithPast

        hidden = decoder_of(self)(input_ids=input_ids, **options).last_hidden_state
        return SequenceClassifierOutputWithPast(logits=self.score(hidden[:, -1]))


def values_of(logits: Tensor) -> Tensor:
    """[B, num_labels] logits -> [B] values in [0, 1]."""
    if logits.shape[-1] == 1:
        return logits[:, 0].sigmoid()
    probabilities = logits.view(-1, 2, 2).softmax(-1)[..., 1]  # [B, heads]
    return probabilities.min(-1).values


def critic_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of each state's value against the outcome (paper Eq. 9).

    L(V) = −(r log V + (1 − r) log(1 − V)); with two heads the sum of both heads' cross-entropies (released code).

    Args:
        logits: [B, num_labels].
        targets: [B] r(s_T) in {0, 1}.

    Returns:
        [B] losses.
    """
    if logits.shape[-1] == 1:
        return functional.binary_cross_entropy_with_logits(logits[:, 0], targets, reduction="none")
    heads, labels = logits.view(-1, 2, 2).unbind(1), targets.long()
    first, second = (functional.cross_entropy(head, labels, reduction="none") for head in heads)
    return first + second
