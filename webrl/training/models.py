"""Actor and critic as modules that take one packed row; loading and saving in Hugging Face format.

Weights are loaded in float32 whatever the folder holds: at learning rate 1e-6 an AdamW step is lost in bfloat16
(2 % of the weights change in three steps). For the same reason folders are written in float32 by default: a
phase's whole movement is smaller than one bfloat16 rounding step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from webrl.errors import ModelError, TrainingError
from webrl.llm.fingerprint import tokenizer_fingerprint
from webrl.llm.loading import adapter_base, load_tokenizer, model_folder
from webrl.training.attention import Layout, register
from webrl.training.head import ActionHead
from webrl.training.packing import Pack
from webrl.training.plans import load_plan
from webrl.training.ranks import is_main
from webrl.training.trim import is_trimmed, trim_last_layer


class PackedActor(nn.Module):
    """A causal language model that gives the log-probabilities of a packed row's action tokens."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        head = lm.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(f"{type(lm).__name__} has no linear output layer, found {type(head).__name__}")
        head.__class__ = ActionHead
        trim_last_layer(lm.base_model)

    def forward(self, input_ids: Tensor, position_ids: Tensor, layout: Layout, targets: Tensor) -> Tensor:
        """[1, T] ids -> [N] float32 log-probabilities of `targets`; fields as in `Pack`."""
        hidden = hidden_states(self.lm, input_ids, position_ids, layout)  # [N, D]
        logprobs: Tensor = self.lm.get_output_embeddings()(hidden, targets)
        return logprobs


class PackedCritic(nn.Module):
    """A sequence classifier that gives the value logits at each packed sequence's last token."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        trim_last_layer(lm.base_model)

    def forward(self, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
        """[1, T] ids -> [B, num_labels] float32 logits of the value heads."""
        hidden = hidden_states(self.lm, input_ids, position_ids, layout)  # [B, D]
        logits: Tensor = self.lm.score(hidden)
        return logits.float()


def hidden_states(lm: Any, input_ids: Tensor, position_ids: Tensor, layout: Layout) -> Tensor:
    """[N, D] final hidden states of one packed row at the positions `layout.keep`."""
    base = lm.base_model
    hidden: Tensor = base(
        input_ids=input_ids, position_ids=position_ids, layout=layout, use_cache=False
    ).last_hidden_state[0]
    return hidden if is_trimmed(base) else hidden[layout.keep]


def actor_inputs(pack: Pack) -> dict[str, Any]:
    """Keyword arguments of `PackedActor.forward`."""
    return {**critic_inputs(pack), "targets": pack.targets}


def critic_inputs(pack: Pack) -> dict[str, Any]:
    """Keyword arguments of `PackedCritic.forward`."""
    return {"input_ids": pack.input_ids, "position_ids": pack.position_ids, "layout": pack.layout}


def load_actor(folder: str | Path, dtype: torch.dtype = torch.float32, *, skeleton: bool = False) -> PackedActor:
    """A causal language model for packed rows, on the CPU (a LoRA folder: merged into its base).

    Args:
        skeleton: without weights, on the meta device; an engine that deals out the main process's fills it.

    Raises:
        ModelError: absent or broken weights.
    """
    from transformers import AutoModelForCausalLM

    return PackedActor(load_pretrained(AutoModelForCausalLM, folder, dtype, skeleton=skeleton))


def load_pretrained(
    auto_class: Any, folder: str | Path, dtype: torch.dtype, *, skeleton: bool = False, **options: Any
) -> Any:
    """`auto_class.from_pretrained` with packed attention, and one clear error."""
    name = str(folder)
    path = model_folder(name)
    base = adapter_base(path) if path else None
    if path and not base and not (path / "config.json").is_file():
        raise ModelError(f"model folder {name!r} has no config.json: it is not a transformers checkpoint")
    try:
        if skeleton:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(base or name, **options)
            with torch.device("meta"):
                return auto_class.from_config(config, dtype=dtype, attn_implementation=register())
        model = auto_class.from_pretrained(base or name, dtype=dtype, attn_implementation=register(), **options)
        if base:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, name).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"cannot load the model {name!r}: {str(error).strip()[:300]}") from error
    return model


def wants_skeleton(folder: str | Path, engine: str) -> bool:
    """True if this process should leave loading to the main one: FSDP2, not the main process, no tied weights."""
    from transformers import AutoConfig

    if is_main() or load_plan(engine).kind != "fsdp2":
        return False
    return not AutoConfig.from_pretrained(str(folder)).tie_word_embeddings


def context_limit(lm: Any, max_tokens: int) -> int:
    """Longest sample in tokens: the model's context, or the token budget if that is smaller."""
    return min(int(getattr(lm.config, "max_position_embeddings", max_tokens)), max_tokens)


def check_tokenizer(folder: str | Path, fingerprints: set[str]) -> Any:
    """Load a folder's tokenizer and refuse records made with another one.

    Raises:
        TrainingError: a fingerprint differs (both are quoted).
    """
    tokenizer = load_tokenizer(str(folder))
    own = tokenizer_fingerprint(tokenizer)
    others = sorted(fingerprints - {own, ""})
    if others:
        raise TrainingError(
            f"the records were made with tokenizer {others[0]}, model {str(folder)!r} has {own}; "
            "collect them again with this model, or train the model they came from"
        )
    return tokenizer
