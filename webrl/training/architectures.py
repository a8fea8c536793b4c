"""Decides how the rows of an architecture are computed, and builds, prepares and compiles its models.

Packing is exact only if every layer keeps the sequences of a row apart, and if what is left out of a model's own
forward pass (its mask, its head) is known. So the architectures below are named one by one: `python
benchmarks/families.py` holds each against transformers alone, log-probabilities and gradients, on sequences longer than
its windows. All others are computed one sequence a row as transformers computes them for inference: where they train,
some add noise to their routers. What was found to differ from transformers even so is refused.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from webrl.config import OptimConfig
from webrl.errors import ModelError
from webrl.training.layers.attention import NAME, packed_attention

logger = logging.getLogger(__name__)

Route = Literal["packed", "single", "plain"]
"""Many sequences a row by our attention; one by transformers' default attention; one by its eager attention."""

PACKED = frozenset((
    "apertus", "arcee", "cohere", "cohere2", "cwm", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5", "ernie4_5_moe",
    "exaone4", "gemma", "gemma3_text", "glm", "glm4", "glm4_moe", "granite", "granitemoe",
    "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "llama", "minimax_m2", "ministral", "ministral3", "mistral",
    "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "smollm3", "starcoder2",
))  # fmt: skip
"""Model types of attention alone, whose windows and scales our attention and head know."""
SINGLE = frozenset((
    "lfm2", "lfm2_moe", "mamba", "mamba2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next",
))  # fmt: skip
"""Model types with convolutions or recurrence for which transformers' default attention is known to be exact."""
REFUSED = frozenset(("phimoe",))
"""Model types whose rows are wrong either way."""
_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_varlen_attn",
)
"""Operators whose outputs `selective` checkpointing keeps."""


def route_of(config: Any) -> Route:
    """The way to compute a model's rows, by its configuration.

    Raises:
        ModelError: the architecture is refused, or its log-probabilities depend on the sequences before.
    """
    kind, found = config.model_type, getattr(config.get_text_config(), "rope_parameters", None) or {}
    parts = [found, *(part for part in found.values() if isinstance(part, dict))]
    rope = {str(part.get("rope_type", "default")) for part in parts}
    if "dynamic" in rope:
        raise ModelError(
            f"{kind} cannot be trained here: in transformers a sequence's log-probabilities depend on the sequences "
            "before it (rotary embeddings that grow with the longest one seen, rope_type dynamic)"
        )
    if kind in REFUSED:
        raise ModelError(f"{kind} cannot be trained here: its log-probabilities differ from those of transformers")
    if "longrope" in rope:
        _warn_once(kind, "its rotary embeddings (rope_type longrope) go by the longest sequence of a row")
        return "single"
    text = config.get_text_config()
    if kind in PACKED and not any(getattr(text, f"{name}_logit_softcapping", None) for name in ("attn", "final")):
        return "packed"
    if kind in SINGLE:
        _warn_once(kind, "its convolutions or recurrence do not keep the sequences of a row apart")
        return "single"
    _warn_once(kind, "it is not among those that are known to pack")
    return "plain"


@cache
def _warn_once(kind: str, reason: str) -> None:
    logger.warning("%s: one sequence a row, which is slower: %s", kind, reason)


def attention_of(route: Route) -> str | None:
    """The attention implementation of transformers that a route needs; None is the model's default.

    For architectures that are not known it is `eager`: others leave out what they do not know (sdpa: capped scores).
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if route == "packed":
        AttentionInterface.register(NAME, packed_attention)
        AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    return {"packed": NAME, "single": None, "plain": "eager"}[route]


def turn_off_dropout(model: nn.Module) -> None:
    """Set every rate of dropout and router noise to 0: a policy's log-probabilities are its own in training, too."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(module, name, 0.0)


def cast_weights(model: nn.Module) -> None:
    """Make a model's weights bfloat16 in place, as `from_pretrained(dtype=bfloat16)` does: buffers stay as they are."""
    exempt = getattr(getattr(model, "lm", model), "_keep_in_fp32_modules_strict", None) or ()
    for name, parameter in model.named_parameters():
        if not any(part in name for part in exempt):
            parameter.data = parameter.data.to(torch.bfloat16)


def decoder_of(lm: Any) -> Any:
    """Return the model below the output layer: takes token ids, returns hidden states."""
    return lm.model if lm.base_model is lm else lm.base_model  # Llama 4's text model has a prefix of another model


def layers_of(lm: Any) -> nn.ModuleList | None:
    """Return the decoder's layers, under any name; None if there is no such list."""
    count = getattr(lm.config.get_text_config(), "num_hidden_layers", 0)
    lists = [m for m in decoder_of(lm).modules() if isinstance(m, nn.ModuleList) and len(m) == count > 0]
    return lists[0] if lists else None


def apply_memory_policy(model: Any, config: OptimConfig) -> None:
    """Enable the config's settings on the model, in place.

    `full` recomputes every layer; `selective` keeps the attention's output and every other matrix product.
    """
    lm = model.lm
    if config.checkpointing != "none":
        options: dict[str, Any] = {"use_reentrant": False}
        if config.checkpointing == "selective":
            options["context_fn"] = _selective_contexts
        # the first name is transformers 5.24's, which warns about the second
        getattr(lm, "activation_checkpointing_enable", lm.gradient_checkpointing_enable)(options)
    if config.compile:
        compile_layers(lm)


def compile_layers(lm: Any) -> None:
    """Compile the decoder's layers in place, for rows of any length; the first row takes about ten seconds more."""
    # All layers share one function: with and without gradient, autocast, …. Past torch's limit it would run as it is,
    # without a word.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    for layer in layers_of(lm) or ():
        layer.compile(dynamic=True)


def _selective_contexts() -> Any:
    seen = {True: 0, False: 0}

    def policy(context: Any, op: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if getattr(op, "_opname", str(op)) in _ATTENTION:
            return CheckpointPolicy.MUST_SAVE
        if op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            seen[context.is_recompute] += 1
            if seen[context.is_recompute] % 2:
                return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
