"""Actor and critic as modules that take one packed row; loading and saving in Hugging Face format.

Weights are always loaded in float32: at learning rate 1e-6 an AdamW step is lost in bfloat16
(2 % of the weights change in three steps). For the same reason folders are written in float32 by default: a
phase's whole movement is smaller than one bfloat16 rounding step.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from webrl.errors import ModelError, TrainingError
from webrl.llm import loading
from webrl.runs.clock import spent_on
from webrl.training.architectures import Route, attention_of, decoder_of, route_of, turn_off_dropout
from webrl.training.layers.fused import fuse
from webrl.training.layers.head import logit_scale, take_targets, trim_last_layer
from webrl.training.packing import Pack

if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes


class _Packed(nn.Module):
    """A model of transformers' that is computed by a route (`architectures.py` says which).

    Args:
        route: how its rows are computed.
        eyes: processor of a vision-language model, which is computed as transformers computes it, one sample a row;
            None for a text model.
    """

    def __init__(self, lm: Any, route: Route = "packed", eyes: Eyes | None = None) -> None:
        super().__init__()
        self.lm, self.route, self.eyes = lm, route, eyes
        self.packs = route == "packed"
        """True if a row may hold several sequences."""
        if self.packs:
            fuse(lm)
            trim_last_layer(decoder_of(lm))

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a text model that is not known computes as for inference in both (`architectures.py`)."""
        super().train(mode)
        if self.route == "plain" and self.eyes is None:
            self.lm.eval()
            for module in self.lm.modules():
                if getattr(module, "gradient_checkpointing", False):
                    module.training = mode  # transformers' layers recompute only in training mode
        return self

    def refuse_pictures(self, row: Pack) -> None:
        """Raise TrainingError for a picture that a model of text would not see."""
        if self.eyes is None and any(row.pictures):
            raise TrainingError("a sample has a screenshot, but this model reads only text")

    def inputs(self, row: Pack) -> dict[str, Any]:
        """Return what the model's own forward pass takes for a row of one sequence, and for its picture if it sees.

        Without `position_ids`, which each family derives from ids and picture itself.

        Raises:
            DataError: its picture is not there, or another one.
            TrainingError: it has none, or its prompt was written for another one.
        """
        if row.num_samples != 1:
            raise ValueError(f"a row of {row.num_samples} sequences for a model that takes one at a time")
        inputs = {"input_ids": row.input_ids, "use_cache": False}
        if self.eyes is None:
            return inputs
        (picture,) = row.pictures
        if picture is None:
            raise TrainingError("a sample lacks its screenshot: the model would train blind")
        png = picture.read()
        look, found = self.eyes.look(png), self.eyes.count(row.input_ids[0].tolist())
        if found != look.num_tokens:
            raise TrainingError(
                f"{picture.path}: a prompt has {found} picture tokens, and the processor of {self.eyes.name!r} gives "
                f"its picture {look.num_tokens}: collect the episodes again with this model"
            )
        return inputs | {"attention_mask": torch.ones_like(row.input_ids)} | self.eyes.inputs(row.input_ids, [png])


class PackedActor(_Packed):
    """A language model that returns the log-probabilities of a row's action tokens.

    Raises:
        ModelError: an output layer that the route cannot use.
    """

    def __init__(self, lm: Any, route: Route = "packed", eyes: Eyes | None = None) -> None:
        super().__init__(lm, route, eyes)
        if self.packs:
            head = lm.get_output_embeddings()
            if not isinstance(head, nn.Linear):
                raise ModelError(f"{type(lm).__name__} has no linear output layer, found {type(head).__name__}")
            take_targets(head, logit_scale(lm.config))

    def forward(self, row: Pack) -> Tensor:
        """Return [N] float32 log-probabilities of the row's targets.

        Raises:
            DataError, TrainingError: as `inputs`, a picture for a model of text, or a model that returns logits of
                other positions than requested.
        """
        self.refuse_pictures(row)
        if self.packs:
            logprobs: Tensor = self.lm.get_output_embeddings()(hidden_states(self.lm, row), row.targets)
            return logprobs
        options = {}
        if self.eyes or "logits_to_keep" in inspect.signature(self.lm.forward).parameters:
            options["logits_to_keep"] = row.layout.keep
        whole: Tensor = self.lm(**self.inputs(row), **options).logits[0]
        logits = whole if options else whole[row.layout.keep]  # [N, V]
        if len(logits) != len(row.targets):
            raise TrainingError(
                f"{type(self.lm).__name__} returns logits of {len(logits)} positions instead of {len(row.targets)}: "
                "it cannot be trained here"
            )
        return logits.float().log_softmax(-1).gather(1, row.targets[:, None]).squeeze(1)


class PackedCritic(_Packed):
    """A sequence classifier that returns the value logits at each packed sequence's last token."""

    def forward(self, row: Pack) -> Tensor:
        """Return [B, num_labels] float32 logits of the value heads; errors as of `PackedActor.forward`."""
        self.refuse_pictures(row)
        if self.packs:
            hidden = hidden_states(self.lm, row)
        else:  # transformers' own pooling mistakes a last token with the padding's id for padding
            hidden = decoder_of(self.lm)(**self.inputs(row)).last_hidden_state[:, -1]
        logits: Tensor = self.lm.score(hidden)
        return logits.float()


def hidden_states(lm: Any, row: Pack) -> Tensor:
    """[N, D] final hidden states of a packed row at the positions `layout.keep`."""
    hidden: Tensor = decoder_of(lm)(
        input_ids=row.input_ids, position_ids=row.position_ids, layout=row.layout, use_cache=False
    ).last_hidden_state[0]
    keep = row.layout.keep
    return hidden if len(hidden) == len(keep) else hidden[keep]  # a trimmed last layer returns only these


@spent_on("model files")
def load_actor(
    folder: str | Path, dtype: torch.dtype = torch.float32, *, skeleton: bool = False, sees: bool = False
) -> PackedActor:
    """A causal language model for packed rows, on the CPU (a LoRA folder: merged into its base).

    Args:
        sees: load it as a vision-language model.
        skeleton: without weights, on the meta device; an engine that deals out the main process's fills it.

    Raises:
        ModelError: absent or broken weights, an architecture that cannot be computed exactly, or a model that cannot
            see.
    """
    from transformers import AutoModelForCausalLM

    if sees:
        from webrl.llm.eyes import Eyes

        eyes, lm = Eyes(str(folder)), loading.load_causal_lm(str(folder), dtype=dtype, sees=True)
        turn_off_dropout(lm)
        return PackedActor(lm, "plain", eyes)
    return PackedActor(*load_routed(AutoModelForCausalLM, folder, dtype, skeleton=skeleton))


def load_routed(
    model_class: Any, folder: str | Path, dtype: torch.dtype, *, skeleton: bool = False, **options: Any
) -> tuple[Any, Route]:
    """Load a text model without dropout; returns it and how its rows are computed.

    Args:
        skeleton: as of `load_actor`.
        options: of the config, for a model with fresh heads.

    Raises:
        ModelError: as `load_actor`.
    """
    name = str(folder)
    config = loading.config_of(name, is_trained=True, **options)
    if hasattr(config, "auto_map") and type(config) not in getattr(model_class, "_model_mapping", (type(config),)):
        raise ModelError(f"cannot load the model {name!r}: {loading.CODE_REFUSED}")
    route = route_of(config)
    attention = attention_of(route)
    given = {"attn_implementation": attention} if attention else {}
    if skeleton:
        make = getattr(model_class, "from_config", None) or model_class._from_config  # of an auto class, or a model
        with loading.as_model_error(f"cannot load the model {name!r}"), torch.device("meta"):
            model = make(config, dtype=dtype, **given)
    else:
        model = loading.load_pretrained(model_class, name, dtype, new_heads=bool(options), **given, **options)
    turn_off_dropout(model)
    return model, route


def context_limit(lm: Any, max_tokens: int) -> int:
    """Longest sample in tokens: the model's context, or the token budget if that is smaller."""
    return min(int(getattr(lm.config.get_text_config(), "max_position_embeddings", None) or max_tokens), max_tokens)


def check_tokenizer(folder: str | Path, fingerprints: set[str]) -> Any:
    """Load a folder's tokenizer; TrainingError for records made with another one, whose fingerprint is quoted."""
    tokenizer = loading.load_tokenizer(str(folder))
    own = loading.tokenizer_fingerprint(tokenizer)
    others = sorted(fingerprints - {own, ""})
    if others:
        raise TrainingError(
            f"the records were made with tokenizer {others[0]}, model {str(folder)!r} has {own}; "
            "collect them again with this model, or train the model they came from"
        )
    return tokenizer
