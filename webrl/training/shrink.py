"""A model's configuration made small: the same kinds of layers, windows and scales, at widths that cost nothing.

Every width is divided by the same power of two, so that what must fit together still does; layers are cut to the
first few that show each kind once; windows shrink to a few tokens, so that short sequences pass them; caps shrink
until they bite.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

VOCAB = 97
WINDOW = 8
"""Tokens that the windows and chunks of a shrunk configuration hold."""
_MIN_WIDTH, _MIN_HEAD, _MAX_LAYERS, _MAX_EXPERTS = 48, 8, 12, 32
_WIDTH = re.compile(
    r"^(n_embd|n_inner|d_model|d_ff|d_inner|ffn_dim|conv_dim|conv_dim_out|block_dim|block_ff_dim|mamba_d_ssm|lru_width|"
    r"word_embed_proj_dim|dim_model_base|rotary_dim|query_pre_attn_scalar|time_step_rank|mamba_dt_rank|"
    r"embedding_size|hidden_sizes?|hidden_size_per_layer_input|attention_hidden_size|\w*intermediate_size\w*|"
    r"\w*ffn_hidden_size|\w*(head|lora|rope|nope|value|key)_(dim|rank)|qk_\w*_dim|\w*head_dim\w*|\w*d_head|"
    r"\w*_rank|out_hidden_size)$"
)
_HEAD = re.compile(r"^(\w*head_dim|mamba_d_head|qk_rope_head_dim|v_head_dim)$")
_WINDOW = re.compile(r"^(sliding_window(_size)?|attention_chunk_size|window_size|local_attention_window)$")
_EXPERTS = re.compile(r"^(num_experts|num_local_experts|n_routed_experts|moe_num_experts)$")
_VOCAB = re.compile(r"^(vocab_size\w*|org_vocab_size)$")
_TOKEN = re.compile(r"^\w*_token_(id|index)$|^(pad|bos|eos)_token_id$")
_CAP = re.compile(r"^\w*logit_softcapping$|^logits_soft_cap$")
_PERIOD = re.compile(r"^\w*(_period|_interval|_every\w*|_step|_pattern|_frequency)$")
_DEPTH = re.compile(r"^(num_hidden_layers|n_layers?|depth)$")


def shrink(config: Any) -> Any:
    """A small copy of a transformers configuration.

    Raises:
        Exception: whatever the configuration's class says to values that do not fit together.
    """
    data = copy.deepcopy(config.to_dict())
    text = _text_part(data)
    small = _shrink_dict(data, _divisor(text), _num_layers(text))
    return type(config).from_dict(small)


def _text_part(data: dict[str, Any]) -> dict[str, Any]:
    for key in ("text_config", "decoder"):
        if isinstance(data.get(key), dict):
            return dict(data[key])
    return data


def _divisor(data: dict[str, Any]) -> int:
    """The largest power of two that leaves hidden size and heads whole, even and not too small."""
    hidden = int(data.get("hidden_size") or data.get("n_embd") or data.get("d_model") or 64)
    heads = [v for k, v in data.items() if _HEAD.match(k) and isinstance(v, int)]
    num_heads = data.get("num_attention_heads") or data.get("n_head")
    if isinstance(num_heads, int) and num_heads and not data.get("head_dim"):
        heads.append(hidden // num_heads)
    divisor = 1
    while hidden % (2 * divisor) == 0 and hidden // (2 * divisor) >= _MIN_WIDTH:
        if any(h % (4 * divisor) or h // (2 * divisor) < min(_MIN_HEAD, h) for h in heads):
            break
        divisor *= 2
    return divisor


def _num_layers(data: dict[str, Any]) -> int:
    """The shortest prefix of the layers that holds each kind, four at least."""
    total = next((v for k, v in data.items() if _DEPTH.match(k) and isinstance(v, int)), 2)
    wanted = 4 + int(data.get("first_k_dense_replace") or 0)
    wanted = max([wanted, *(v + 1 for k, v in data.items() if _PERIOD.match(k) and isinstance(v, int) and v < total)])
    kinds = list(zip(*(_per_layer(data, total)), strict=True))
    if kinds:
        wanted = max(wanted, max(kinds.index(kind) for kind in set(kinds)) + 1)
    return min(total, wanted, _MAX_LAYERS)


def _per_layer(data: dict[str, Any], total: int) -> Iterator[list[str]]:
    for value in data.values():
        if isinstance(value, list | str) and len(value) == total and total > 1:
            yield [str(v) for v in value]


def _shrink_dict(data: dict[str, Any], divisor: int, layers: int) -> dict[str, Any]:
    total = next((v for k, v in data.items() if _DEPTH.match(k) and isinstance(v, int)), 0)
    small: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, list | str) and len(value) == total and total > 1:
            small[key] = value[:layers]
        elif isinstance(value, dict) and "rope" in key:
            small[key] = _shrink_rope(value, divisor)
        elif isinstance(value, dict) and key not in ("id2label", "label2id"):
            small[key] = _shrink_dict(value, divisor, layers)
        else:
            small[key] = _shrink_value(key, value, divisor, layers)
    return _fit_positions(small)


def _shrink_value(key: str, value: Any, divisor: int, layers: int) -> Any:
    if _TOKEN.match(key):
        return None if key.startswith("pad") or not isinstance(value, int) else min(value, VOCAB - 1)
    if key in ("dtype", "torch_dtype", "quantization_config", "architectures"):
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if _DEPTH.match(key):
        return min(value, layers)
    if _VOCAB.match(key):
        return VOCAB
    if _EXPERTS.match(key):
        return min(value, _MAX_EXPERTS)
    if _WINDOW.match(key):
        return min(value, WINDOW)
    if _CAP.match(key):
        return min(value, 2.0)
    if isinstance(value, int) and _WIDTH.match(key):
        return max(value // divisor, 1)
    return value


def _shrink_rope(value: dict[str, Any], divisor: int) -> dict[str, Any]:
    small: dict[str, Any] = {}
    for key, entry in value.items():
        if isinstance(entry, dict):
            small[key] = _shrink_rope(entry, divisor)
        elif key in ("short_factor", "long_factor"):
            small[key] = entry[::divisor]
        elif key == "mrope_section":
            small[key] = _divide_sections(entry, divisor)
        elif key == "original_max_position_embeddings" and value.get("rope_type") in ("longrope", "dynamic"):
            small[key] = 2 * WINDOW
        else:
            small[key] = entry
    return small


def _divide_sections(sections: list[int], divisor: int) -> list[int]:
    """Shares of the rotary dimensions whose sum is divided exactly."""
    small = [section // divisor for section in sections]
    small[0] += sum(sections) // divisor - sum(small)
    return small


def _fit_positions(data: dict[str, Any]) -> dict[str, Any]:
    """Rotary tables that change with the longest position in sight are to change within a few tokens."""
    rope = data.get("rope_parameters")
    kind = rope.get("rope_type") if isinstance(rope, dict) else None
    if kind == "dynamic":
        return data | {"max_position_embeddings": 2 * WINDOW}
    if kind == "longrope" and data.get("original_max_position_embeddings"):
        return data | {"original_max_position_embeddings": 2 * WINDOW}
    return data
