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
from webrl.training.attention import register
from webrl.training.head import ActionHead
from webrl.training.packing import Pack
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

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cu_seq_lens: Tensor,
        seq_lens: tuple[int, ...],
        predicting: Tensor,
        predicting_lens: tuple[int, ...],
        targets: Tensor,
    ) -> Tensor:
        """[1, T] ids -> [N] float32 log-probabilities of `targets`; fields as in `Pack`."""
        row = {"input_ids": input_ids, "position_ids": position_ids, "cu_seq_lens": cu_seq_lens, "seq_lens": seq_lens}
        hidden = hidden_states(self.lm, row, predicting, predicting_lens)  # [N, D]
        logprobs: Tensor = self.lm.get_output_embeddings()(hidden, targets)
        return logprobs


class PackedCritic(nn.Module):
    """A sequence classifier that gives the value logits at each packed sequence's last token."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        trim_last_layer(lm.base_model)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        cu_seq_lens: Tensor,
        seq_lens: tuple[int, ...],
        last: Tensor,
    ) -> Tensor:
        """[1, T] ids -> [B, num_labels] float32 logits of the value heads."""
        row = {"input_ids": input_ids, "position_ids": position_ids, "cu_seq_lens": cu_seq_lens, "seq_lens": seq_lens}
        hidden = hidden_states(self.lm, row, last, (1,) * len(seq_lens))  # [B, D]
        logits: Tensor = self.lm.score(hidden)
        return logits.float()


def hidden_states(lm: Any, row: dict[str, Any], keep: Tensor, keep_lens: tuple[int, ...]) -> Tensor:
    """[N, D] final hidden states of one packed row at the positions `keep`, the last ones of each sequence."""
    base = lm.base_model
    if is_trimmed(base):
        hidden: Tensor = base(**row, keep=keep, keep_lens=keep_lens, use_cache=False).last_hidden_state[0]
        return hidden
    hidden = base(**row, use_cache=False).last_hidden_state[0]
    return hidden[keep]


def actor_inputs(pack: Pack) -> dict[str, Any]:
    """Keyword arguments of `PackedActor.forward`."""
    return {
        **_row(pack),
        "predicting": pack.predicting,
        "predicting_lens": pack.predicting_lens,
        "targets": pack.targets,
    }


def critic_inputs(pack: Pack) -> dict[str, Any]:
    """Keyword arguments of `PackedCritic.forward`."""
    return {**_row(pack), "last": pack.last}


def _row(pack: Pack) -> dict[str, Any]:
    return {
        "input_ids": pack.input_ids,
        "position_ids": pack.position_ids,
        "cu_seq_lens": pack.cu_seq_lens,
        "seq_lens": pack.seq_lens,
    }


def load_actor(folder: str | Path, dtype: torch.dtype = torch.float32) -> PackedActor:
    """A causal language model for packed rows, on the CPU (a LoRA folder: merged into its base).

    Raises:
        ModelError: absent or broken weights.
    """
    from transformers import AutoModelForCausalLM

    return PackedActor(load_pretrained(AutoModelForCausalLM, folder, dtype))


def load_pretrained(auto_class: Any, folder: str | Path, dtype: torch.dtype, **options: Any) -> Any:
    """`auto_class.from_pretrained` with packed attention, and one clear error."""
    name = str(folder)
    path = model_folder(name)
    base = adapter_base(path) if path else None
    if path and not base and not (path / "config.json").is_file():
        raise ModelError(f"model folder {name!r} has no config.json: it is not a transformers checkpoint")
    try:
        model = auto_class.from_pretrained(base or name, dtype=dtype, attn_implementation=register(), **options)
        if base:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, name).merge_and_unload()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(f"cannot load the model {name!r}: {str(error).strip()[:300]}") from error
    return model


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


def save_folder(lm: Any, tokenizer: Any, folder: Path, state: dict[str, Tensor] | None = None) -> None:
    """Write config, safetensors and tokenizer; `state` replaces the module's own weights (gathered shards)."""
    lm.save_pretrained(folder, state_dict=state)
    tokenizer.save_pretrained(folder)
