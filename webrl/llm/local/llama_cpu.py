"""Llama's two passes written out for small models on a CPU, where transformers' overhead is most of a step.

Same weights and same arithmetic as `LlamaForCausalLM`; what differs:
- prompts are concatenated without padding; attention runs prompt by prompt;
- in the last layer only keys and values are computed for every position, the rest for the last position of each
  prompt (a fifth of a 4-layer model's arithmetic);
- query, key and value, and gate and up, are one matrix product each;
- a decoding step's attention reads the slot cache in place.
Left out: everything that makes a model other than plain Llama (biases, quantised layers, dynamic rope).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from webrl.llm.local.runner import SlotCache, SlotRow
from webrl.llm.products import linear


@dataclass(frozen=True)
class _Layer:
    qkv: torch.Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden]"""
    out: torch.Tensor
    """[hidden, heads * head_dim]"""
    gate_up: torch.Tensor
    """[2 * intermediate, hidden]"""
    down: torch.Tensor
    """[hidden, intermediate]"""
    norm_1: torch.Tensor
    norm_2: torch.Tensor


class LlamaCpuRunner:
    """`Runner` for a `LlamaForCausalLM` on the CPU (`supports` tells)."""

    def __init__(self, model: Any) -> None:
        config = model.config
        self._num_heads: int = config.num_attention_heads
        self._num_kv_heads: int = config.num_key_value_heads
        self._head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self._num_heads
        self._eps: float = config.rms_norm_eps
        inner = model.model
        with torch.no_grad():
            self._layers = [
                _Layer(
                    qkv=torch.cat([x.self_attn.q_proj.weight, x.self_attn.k_proj.weight, x.self_attn.v_proj.weight]),
                    out=x.self_attn.o_proj.weight,
                    gate_up=torch.cat([x.mlp.gate_proj.weight, x.mlp.up_proj.weight]),
                    down=x.mlp.down_proj.weight,
                    norm_1=x.input_layernorm.weight,
                    norm_2=x.post_attention_layernorm.weight,
                )
                for x in inner.layers
            ]
            self._embedding, self._norm = inner.embed_tokens.weight, inner.norm.weight
            self._head = model.lm_head.weight
            positions = torch.arange(config.max_position_embeddings)[None]
            cos, sin = inner.rotary_emb(self._embedding[:1], positions)  # [1, P, head_dim]
            self._cos, self._sin = cos[0].clone(), sin[0].clone()

    @staticmethod
    def supports(model: Any) -> bool:
        """True for plain Llama on the CPU."""
        config = model.config
        return (
            type(model).__name__ == "LlamaForCausalLM"
            and model.device.type == "cpu"
            and not (config.attention_bias or config.mlp_bias or getattr(config, "quantization_config", None))
            and config.hidden_act == "silu"
            and model.model.rotary_emb.rope_type in ("default", "linear", "llama3")
        )

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:  # noqa: ARG002 - none is padded
        """Nothing is padded: all in one pass."""
        return [list(range(len(lengths)))] if lengths else []

    def new_cache(self, capacity: int) -> SlotCache:
        """As of `Runner`."""
        return SlotCache(len(self._layers), capacity, "cpu")

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, list[SlotRow]]:
        """One pass over the concatenated prompts (N tokens in all, B prompts)."""
        lengths = [len(p) for p in prompts]
        ends = torch.tensor(lengths).cumsum(0) - 1  # [B]
        positions = torch.cat([torch.arange(n) for n in lengths])  # [N]
        x = self._embedding[torch.tensor([i for p in prompts for i in p])]  # [N, hidden]
        keys: list[list[torch.Tensor]] = [[] for _ in prompts]
        values: list[list[torch.Tensor]] = [[] for _ in prompts]
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, x, positions)
            is_last = index == len(self._layers) - 1
            attended = []
            start = 0
            for row, length in enumerate(lengths):
                part = slice(start, start + length)
                q, k, v = (t[part].transpose(0, 1) for t in (query, key, value))  # [heads, T, head_dim]
                if is_last:
                    q = q[:, -1:]  # the last position sees everything: no mask
                out = F.scaled_dot_product_attention(
                    q[None], k[None], v[None], is_causal=not is_last, enable_gqa=self._num_heads != self._num_kv_heads
                )
                attended.append(out[0].transpose(0, 1).flatten(1))  # [T, heads * head_dim]
                keys[row].append(k)
                values[row].append(v)
                start += length
            if is_last:
                x = x[ends]  # [B, hidden]
            x = self._finish(layer, x, torch.cat(attended))
        return self._logits(x), [SlotRow(*row) for row in zip(keys, values, lengths, strict=True)]

    def score(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """The logits of `prefill`."""
        return self.prefill(prompts)[0]

    def decode(self, last: Sequence[int], cache: SlotCache) -> torch.Tensor:
        """One token for each of B rows."""
        positions, mask = cache.begin_step(self._embedding.dtype)
        groups = self._num_heads // self._num_kv_heads
        x = self._embedding[torch.tensor(last)]  # [B, hidden]
        mask = mask.repeat_interleave(self._num_kv_heads, dim=0)[:, None]  # [B * kv_heads, 1, width]
        for index, layer in enumerate(self._layers):
            query, key, value = self._project(layer, x, positions)
            keys, values = (t.flatten(0, 1) for t in cache.write(index, key, value))  # [B * kv_heads, width, head_dim]
            q = query.reshape(-1, groups, self._head_dim)  # [B * kv_heads, groups, head_dim]
            scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=self._head_dim**-0.5)
            attended = torch.bmm(scores.softmax(-1), values)  # [B * kv_heads, groups, head_dim]
            x = self._finish(layer, x, attended.reshape(len(last), -1))
        return self._logits(x)

    def _project(
        self, layer: _Layer, x: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Rotated query [N, heads, head_dim] and key, and value [N, kv_heads, head_dim]."""
        num_rotated = self._num_heads + self._num_kv_heads
        joint = linear(self._rms_norm(x, layer.norm_1), layer.qkv).view(len(x), -1, self._head_dim)
        rotated, value = joint[:, :num_rotated], joint[:, num_rotated:]
        cos, sin = self._cos[positions, None], self._sin[positions, None]  # [N, 1, head_dim]
        half = self._head_dim // 2
        turned = torch.cat((-rotated[..., half:], rotated[..., :half]), dim=-1)
        rotated = torch.addcmul(rotated * cos, turned, sin)
        return rotated[:, : self._num_heads], rotated[:, self._num_heads :], value

    def _finish(self, layer: _Layer, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection, then the feed-forward block, each added to the residual stream."""
        x = x + linear(attended, layer.out)
        gate, up = linear(self._rms_norm(x, layer.norm_2), layer.gate_up).chunk(2, dim=-1)
        return x + linear(F.silu(gate).mul_(up), layer.down)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return linear(self._rms_norm(x, self._norm), self._head)

    def _rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # As transformers does it: the mean square in float32, whatever the weights are.
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return weight * wide.to(x.dtype)
