"""The two passes of generation, prefill and one decoding step, for any transformers model; and the draw of a token.

A model with full attention keeps its open answers in one `SlotCache`, where a decoding step is one pass over all of
them. Models with an image in each prompt, and those with sliding windows, recurrent or convolution layers, have their
answers written whole (`WholeRunner`). Prompts that are only scored, as a judge's, share padded passes without a cache.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from webrl.llm.interface import Sampling
from webrl.llm.products import linear

if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes

logger = logging.getLogger(__name__)

_MIN_LENGTH_RATIO = 0.7
"""Prompts share a padded pass if the shortest has at least this share of the longest."""
_GRAIN = 128
"""The cache grows by multiples of this many positions."""
_MAX_SCORED = 16
"""Prompts in one scoring pass of `WholeRunner`: its logits take 16 x 16 x vocabulary numbers, 0.3 GB with Gemma's
262 k."""


class SlotRow(NamedTuple):
    """A prefilled prompt on its way into a `SlotCache`."""

    keys: list[Tensor]
    """One [heads, >= length, head_dim] a layer; what lies beyond `length` is ignored."""
    values: list[Tensor]
    """The same."""
    length: int
    """Tokens of the prompt."""


class SlotLayer(CacheLayerMixin):
    """transformers' view of one layer of a `SlotCache`; only single-token updates."""

    is_sliding = False

    def __init__(self, cache: SlotCache, index: int) -> None:
        super().__init__()
        self._cache = cache
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Storage is made by `SlotCache.admit`."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write one token a row at the row's end; returns the used part of the cache."""
        assert key_states.shape[2] == 1
        return self._cache.write(self._index, key_states[:, :, 0], value_states[:, :, 0])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - transformers' signature
        """Width of the attention mask, and its offset."""
        return self._cache.width, 0

    def get_seq_length(self) -> int:
        """Longest row before this step."""
        return max(self._cache.lengths, default=0)

    def get_max_length(self) -> int:
        """No fixed limit: storage grows."""
        return -1


class SlotCache(Cache):
    """Rows 0 … n-1 are in use; `release` moves the last row into the gap.

    Use: `admit` a prefilled row, then for each decoding step `begin_step`, one forward pass, repeat.
    """

    def __init__(self, num_layers: int, capacity: int, device: torch.device | str) -> None:
        super().__init__(layers=[SlotLayer(self, index) for index in range(num_layers)])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._capacity = capacity
        self.lengths: list[int] = []
        self.width = 0
        self.row_index = self.write_at = torch.empty(0, dtype=torch.long, device=device)
        self._device = device

    def admit(self, row: SlotRow) -> None:
        """Append a prefilled row."""
        keys, values, length = row
        if not self._keys:
            self._keys = [layer.new_zeros((0, layer.shape[0], 0, layer.shape[2])) for layer in keys]
            self._values = [layer.new_zeros((0, layer.shape[0], 0, layer.shape[2])) for layer in values]
        new = len(self.lengths)
        self._reserve(new + 1, length + 1)
        for stored, given in zip(self._keys + self._values, keys + values, strict=True):
            stored[new, :, :length] = given[:, :length]
        self.lengths.append(length)

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store this step's [B, heads, head_dim]; returns the layer's [B, heads, width, head_dim] up to here."""
        keys, values, num_rows = self._keys[layer], self._values[layer], len(self.lengths)
        keys[self.row_index, :, self.write_at] = key
        values[self.row_index, :, self.write_at] = value
        return keys[:num_rows, :, : self.width], values[:num_rows, :, : self.width]

    def begin_step(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Make room for one token a row; returns its positions [B] and the additive mask [B, width]."""
        self.width = max(self.lengths) + 1
        self._reserve(len(self.lengths), self.width)
        self.write_at = torch.tensor(self.lengths, device=self._device)  # [B]
        self.row_index = torch.arange(len(self.lengths), device=self._device)  # [B]
        columns = torch.arange(self.width, device=self._device)
        hidden = columns[None, :] > self.write_at[:, None]  # [B, width]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self._device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self.lengths = [length + 1 for length in self.lengths]
        return self.write_at, mask

    def release(self, row: int) -> None:
        """Free a row; the last row takes its place (the caller moves its own bookkeeping alike)."""
        last = len(self.lengths) - 1
        if row != last:
            length = self.lengths[last]
            for stored in self._keys + self._values:
                stored[row, :, :length] = stored[last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()

    def _reserve(self, rows: int, width: int) -> None:
        """Grow storage to at least [rows, heads, width, head_dim]; old rows are kept."""
        old_rows, _, old_width, _ = self._keys[0].shape
        if rows <= old_rows and width <= old_width:
            return
        new_rows = min(max(2 * old_rows, rows), self._capacity) if rows > old_rows else old_rows
        new_width = max(old_width, -(-width // _GRAIN) * _GRAIN)
        for stored in (self._keys, self._values):
            for layer, old in enumerate(stored):
                # Zeros, not garbage: a masked NaN would still poison the attention's weighted sum.
                stored[layer] = old.new_zeros((new_rows, old.shape[1], new_width, old.shape[3]))
                stored[layer][: old.shape[0], :, : old.shape[2]] = old


def similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of ascending lengths, similar ones together, so that little is padded."""
    groups: list[list[int]] = []
    for index, length in enumerate(lengths):
        if groups and lengths[groups[-1][0]] >= _MIN_LENGTH_RATIO * length:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def padded_pass(model: Any, prompts: Sequence[Sequence[int]], **options: Any) -> Tensor:
    """Logits at each prompt's last position, [B, V]; the head runs at the positions where some prompt ends.

    Padded on the right, where no causal layer looks: attention with or without windows, convolution, recurrence.
    """
    lengths = [len(p) for p in prompts]
    width = max(lengths)
    padded = [[*p, *[0] * (width - len(p))] for p in prompts]
    ends = sorted(set(lengths))
    output = model(
        input_ids=torch.tensor(padded, device=model.device),  # [B, T]
        logits_to_keep=torch.tensor(ends, device=model.device) - 1,
        **options,
    )
    logits: Tensor = output.logits[list(range(len(prompts))), [ends.index(n) for n in lengths]]
    return logits


class GenericRunner:
    """Runs a model's forward passes, through transformers' own forward; used from one thread, in inference mode.

    The rows that `prefill` returns are admitted to a cache of `new_cache`, with which `decode` continues. Prompts are
    padded on the right, which causal attention never looks at.
    """

    writes_whole = False
    """True for one that has no cache of open answers, and writes each to its end (`WholeRunner.write`)."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def new_cache(self, capacity: int) -> Any:
        """Make an empty cache for at most so many rows."""
        return SlotCache(self._model.config.get_text_config().num_hidden_layers, capacity, self._model.device)

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, list[Any]]:
        """One pass over B whole prompts; returns the logits at each one's last position, [B, V], and B cache rows."""
        cache = DynamicCache()
        logits = padded_pass(self._model, prompts, past_key_values=cache, use_cache=True)
        layers: list[Any] = cache.layers
        return logits, [
            SlotRow([layer.keys[i] for layer in layers], [layer.values[i] for layer in layers], len(prompt))
            for i, prompt in enumerate(prompts)
        ]

    def score(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Logits at each prompt's last position, [B, V], of prompts that are not continued."""
        return padded_pass(self._model, prompts, use_cache=False)

    def decode(self, last: Sequence[int], cache: Any) -> Tensor:
        """Append one token to every row of the cache; returns the logits after it, [B, V]."""
        positions, mask = cache.begin_step(self._model.dtype)
        output = self._model(
            input_ids=torch.tensor(last, device=self._model.device)[:, None],
            position_ids=positions[:, None],
            attention_mask=mask[:, None, None, :],
            past_key_values=cache,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:  # noqa: ARG002 - padded both times
        """Split prompts (ascending lengths) into passes of `score` or `prefill`; returns indices."""
        return similar(lengths)


class WholeRunner(GenericRunner):
    """Writes answers whole, by transformers' `generate`, which knows each family's positions, masks and caches.

    It draws as `draw_tokens` does, and nothing of the model's own generation_config (penalties, top-k, …) takes part.
    Prompts with an image are answered in padded batches; those of text one at a time: exact for every architecture.

    Args:
        layers: kinds of layers for which the model's answers are written whole, for the warning that it is slow.
    """

    writes_whole = True

    def __init__(self, model: Any, name: str, layers: str, ends: Sequence[int], eyes: Eyes | None) -> None:
        super().__init__(model)
        pad_id = eyes.tokenizer.pad_token_id if eyes else None
        self._pad_id = int(ends[0] if pad_id is None else pad_id)
        self._ends = sorted({*ends, *(eyes.picture_ids if eyes else ())})
        self._eyes = eyes
        self._shares = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._warning = (
            f"model {name!r} has layers other than full attention ({layers}): its answers are written one by one, with "
            "transformers' own cache; engine.kind=vllm is faster"
        )

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:
        """Similar lengths together where they are only scored, or have an image; else every prompt by itself."""
        if scored and self._shares:
            return [group[i : i + _MAX_SCORED] for group in similar(lengths) for i in range(0, len(group), _MAX_SCORED)]
        return similar(lengths) if self._eyes else [[index] for index in range(len(lengths))]

    def score(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """Logits at each prompt's last position, [B, V]; where the forward pass has no `logits_to_keep`, B is 1."""
        if self._shares:
            return super().score(prompts)
        ids = torch.tensor([list(prompt) for prompt in prompts], device=self._model.device)
        logits: Tensor = self._model(input_ids=ids, use_cache=False).logits[:, -1]
        return logits

    def write(
        self, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling], pngs: Sequence[bytes | None]
    ) -> list[tuple[list[int], list[float]]]:
        """(ids, log-probabilities) of each answer, up to an end token, a token of an image, or its limit."""
        if self._warning and not self._eyes:
            logger.warning(self._warning)
            self._warning = ""
        draw = _Draw(samplings)
        ids, mask = pad_left(prompts, self._pad_id, self._model.device)
        config = GenerationConfig(
            max_new_tokens=max(s.max_new_tokens for s in samplings), eos_token_id=self._ends, pad_token_id=self._pad_id
        )
        seen = self._eyes.inputs(ids, [png for png in pngs if png is not None]) if self._eyes else {}
        own = self._model.generation_config
        # `generate` would take from the model's own whatever the given one leaves open.
        self._model.generation_config = GenerationConfig()
        try:
            self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                logits_processor=LogitsProcessorList([draw]),
                **seen,
            )
        finally:
            self._model.generation_config = own
        answers = []
        for row, sampling in enumerate(samplings):
            drawn = [(tokens[row], logprobs[row]) for tokens, logprobs in draw.steps[: sampling.max_new_tokens]]
            length = next((i + 1 for i, (token, _) in enumerate(drawn) if token in self._ends), len(drawn))
            answers.append(([token for token, _ in drawn[:length]], [logprob for _, logprob in drawn[:length]]))
        return answers


class _Draw(LogitsProcessor):
    """Draws each row's next token from its raw logits, and leaves `generate` no other choice."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self._samplings = list(samplings)
        self._generators = [random.Random(s.seed) for s in samplings]
        self.steps: list[tuple[list[int], list[float]]] = []
        """Tokens and log-probabilities of all rows, one pair a step."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - transformers' signature
        tokens, logprobs = draw_tokens(scores, self._samplings, self._generators)
        self.steps.append((tokens, logprobs))
        chosen = torch.full_like(scores, -torch.inf)
        chosen[range(len(tokens)), tokens] = 0.0
        return chosen


def pad_left(rows: Sequence[Sequence[int]], pad_id: int, device: Any) -> tuple[Tensor, Tensor]:
    """[B, T] ids padded on the left, and the mask of tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor
    """[(heads + 2 kv_heads) * head_dim, hidden]"""
    out: Tensor
    """[hidden, heads * head_dim]"""
    gate_up: Tensor
    """[2 * intermediate, hidden]"""
    down: Tensor
    """[hidden, intermediate]"""
    norm_1: Tensor
    norm_2: Tensor


class LlamaCpuRunner(GenericRunner):
    """Llama's two passes written out for small models on a CPU, where transformers' overhead is most of a step.

    Same weights and same arithmetic as `LlamaForCausalLM`, for those that `supports` admits; what differs:
    - prompts are concatenated without padding; attention runs prompt by prompt;
    - in the last layer only keys and values are computed for every position, the rest for the last position of each
      prompt (a fifth of a 4-layer model's arithmetic);
    - query, key and value, and gate and up, are one matrix product each;
    - a decoding step's attention reads the slot cache in place.
    Left out: everything that makes a model other than plain Llama (biases, quantised layers, dynamic rope).
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
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

    def prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, list[SlotRow]]:
        """One pass over the concatenated prompts (N tokens in all, B prompts)."""
        lengths = [len(p) for p in prompts]
        ends = torch.tensor(lengths).cumsum(0) - 1  # [B]
        positions = torch.cat([torch.arange(n) for n in lengths])  # [N]
        x = self._embedding[torch.tensor([i for p in prompts for i in p])]  # [N, hidden]
        keys: list[list[Tensor]] = [[] for _ in prompts]
        values: list[list[Tensor]] = [[] for _ in prompts]
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

    def score(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        """The logits of `prefill`."""
        return self.prefill(prompts)[0]

    def decode(self, last: Sequence[int], cache: SlotCache) -> Tensor:
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

    def _project(self, layer: _Layer, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated query [N, heads, head_dim] and key, and value [N, kv_heads, head_dim]."""
        num_rotated = self._num_heads + self._num_kv_heads
        joint = linear(self._rms_norm(x, layer.norm_1), layer.qkv).view(len(x), -1, self._head_dim)
        rotated, value = joint[:, :num_rotated], joint[:, num_rotated:]
        cos, sin = self._cos[positions, None], self._sin[positions, None]  # [N, 1, head_dim]
        half = self._head_dim // 2
        turned = torch.cat((-rotated[..., half:], rotated[..., :half]), dim=-1)
        rotated = torch.addcmul(rotated * cos, turned, sin)
        return rotated[:, : self._num_heads], rotated[:, self._num_heads :], value

    def _finish(self, layer: _Layer, x: Tensor, attended: Tensor) -> Tensor:
        """Output projection, then the feed-forward block, each added to the residual stream."""
        x = x + linear(attended, layer.out)
        gate, up = linear(self._rms_norm(x, layer.norm_2), layer.gate_up).chunk(2, dim=-1)
        return x + linear(F.silu(gate).mul_(up), layer.down)

    def _logits(self, x: Tensor) -> Tensor:
        return linear(self._rms_norm(x, self._norm), self._head)

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        # As transformers does it: the mean square in float32, whatever the weights are.
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return weight * wide.to(x.dtype)


def draw_tokens(
    logits: Tensor, samplings: list[Sampling], generators: list[random.Random]
) -> tuple[list[int], list[float]]:
    """One token a row, with its log-probability at temperature 1.

    Sampling inverts the cumulative distribution at one uniform number of the row's own generator, so a row's draw
    does not depend on its neighbours.

    Args:
        logits: [B, V], any float type.
        samplings: [B] settings.
        generators: [B] one random generator a row.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)  # [B, V]
    tokens = log_probs.argmax(dim=-1)  # [B]
    rows = [i for i, sampling in enumerate(samplings) if sampling.temperature > 0]
    if rows:
        chosen = log_probs if len(rows) == len(samplings) else log_probs[rows]
        scaled = _scale(chosen, [samplings[i] for i in rows])  # [R, V]
        cdf = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)  # [R, V]
        draws = torch.tensor([[generators[i].random()] for i in rows], dtype=torch.float64, device=cdf.device)
        drawn = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(-1)  # [R]
        # `right=True` skips zero-probability tokens; rounding at the top end may still point past the last one.
        tokens[rows] = torch.minimum(drawn, (cdf < cdf[:, -1:]).sum(dim=-1))
    picked = log_probs.gather(1, tokens[:, None]).squeeze(1)
    return tokens.tolist(), picked.tolist()


def _scale(log_probs: Tensor, samplings: list[Sampling]) -> Tensor:
    """Apply temperature, then top-k, then top-p, each row its own. [R, V]."""
    if any(s.temperature != 1.0 for s in samplings):
        temperatures = torch.tensor([[s.temperature] for s in samplings], device=log_probs.device)
        log_probs = torch.log_softmax(log_probs / temperatures, dim=-1)
    for row, sampling in enumerate(samplings):
        if sampling.top_k <= 0 and sampling.top_p >= 1.0:
            continue
        ordered, order = log_probs[row].sort(descending=True)
        keep = torch.ones_like(ordered, dtype=torch.bool)
        if sampling.top_k > 0:
            keep[sampling.top_k :] = False
        if sampling.top_p < 1.0:
            before = torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1).cumsum(dim=-1)
            keep[1:] &= before[:-1] < sampling.top_p
        log_probs = log_probs.clone()
        log_probs[row, order[~keep]] = -torch.inf
    return log_probs
