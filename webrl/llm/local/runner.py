"""The two passes of generation, prefill and one decoding step, for any transformers model; and the draw of a token.

A model with full attention keeps its open answers in one `SlotCache`, where a decoding step is one pass over all of
them. Models with an image in each prompt, and those with sliding windows, recurrent or convolution layers, have their
answers written whole (`WholeRunner`). Prompts that are only scored, as a judge's, share padded passes without a cache.
Written whole, the demo's answers take 1.4 times the CPU time; in groups of any lengths, 1.15 times (`python
benchmarks/sampling.py`).
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from webrl.llm.interface import Sampling

if TYPE_CHECKING:
    from webrl.llm.eyes import Eyes

logger = logging.getLogger(__name__)

_MIN_LENGTH_RATIO = 0.7
"""Prompts share a padded pass if the shortest has at least this share of the longest."""
_GRAIN = 128
"""The cache grows by multiples of this many positions."""
_MAX_TOGETHER = 16
"""Prompts in one padded pass: its logits take 16 x 16 x vocabulary numbers at most, 0.3 GB with Gemma's 262 k."""


class SlotLayer(CacheLayerMixin):
    """One layer of a `SlotCache`: keys and values, [rows, heads, width, head_dim] each; single-token updates only."""

    is_sliding = False
    keys: Any
    values: Any

    def __init__(self, slots: SlotCache) -> None:
        super().__init__()
        self._slots = slots
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Storage is made by the cache."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write one token a row at the row's end; returns the used part of the layer.

        Under autocast, as of a trainer, keys (rotated) and values differ in precision: both are kept in the keys'.
        """
        slots, num_rows = self._slots, key_states.shape[0]
        assert key_states.shape[2] == 1
        self.keys[slots.row_index, :, slots.write_at] = key_states[:, :, 0].to(self.keys.dtype)
        self.values[slots.row_index, :, slots.write_at] = value_states[:, :, 0].to(self.values.dtype)
        return self.keys[:num_rows, :, : slots.width], self.values[:num_rows, :, : slots.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - transformers' signature
        """Width of the attention mask, and its offset."""
        return self._slots.width, 0

    def get_seq_length(self) -> int:
        """Longest row before this step."""
        return max(self._slots.lengths, default=0)

    def get_max_length(self) -> int:
        """No fixed limit: storage grows."""
        return -1


class SlotCache(Cache):
    """The open answers of a model with full attention, which `decode` continues through transformers' own forward.

    Rows 0 … n-1 are in use, at most `capacity`; `release` moves the last row into the gap. In inference mode.
    """

    def __init__(self, model: Any, capacity: int) -> None:
        super().__init__(layers=[SlotLayer(self) for _ in range(model.config.get_text_config().num_hidden_layers)])
        self._model = model
        self._slots: list[Any] = self.layers
        self._capacity = capacity
        self._rows = self._room = 0
        self.lengths: list[int] = []
        self.width = 0
        self.row_index = self.write_at = torch.empty(0, dtype=torch.long, device=model.device)

    def admit(self, prefilled: DynamicCache, row: int, length: int) -> None:
        """Append a row of a prefill pass; what lies beyond `length` is padding."""
        new = len(self.lengths)
        given: list[Any] = prefilled.layers
        self._reserve(new + 1, length + 1, [layer.keys for layer in given])
        for own, layer in zip(self._slots, given, strict=True):
            own.keys[new, :, :length] = layer.keys[row, :, :length]
            own.values[new, :, :length] = layer.values[row, :, :length]
        self.lengths.append(length)

    def decode(self, last: Sequence[int]) -> Tensor:
        """Append one token to every row; returns the logits after it, [B, V]."""
        device, dtype = self._model.device, self._model.dtype
        self.width = max(self.lengths) + 1
        self._reserve(len(self.lengths), self.width, [layer.keys for layer in self._slots])
        self.write_at = torch.tensor(self.lengths, device=device)  # [B]
        self.row_index = torch.arange(len(self.lengths), device=device)  # [B]
        hidden = torch.arange(self.width, device=device)[None, :] > self.write_at[:, None]  # [B, width]
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask.masked_fill_(hidden, torch.finfo(dtype).min)
        self.lengths = [length + 1 for length in self.lengths]
        output = self._model(
            input_ids=torch.tensor(last, device=device)[:, None],
            position_ids=self.write_at[:, None],
            attention_mask=mask[:, None, None, :],
            past_key_values=self,
            use_cache=True,
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def release(self, row: int) -> None:
        """Free a row; the last row takes its place (the caller moves its own bookkeeping alike)."""
        length = self.lengths.pop()
        if row < len(self.lengths):
            for layer in self._slots:
                for stored in (layer.keys, layer.values):
                    stored[row, :, :length] = stored[len(self.lengths), :, :length]
            self.lengths[row] = length

    def _reserve(self, rows: int, width: int, like: list[Tensor]) -> None:
        """Make storage of at least that size, on the device and in the precision of `like`; old rows are kept."""
        if rows <= self._rows and width <= self._room:
            return
        self._rows = min(max(2 * self._rows, rows), self._capacity) if rows > self._rows else self._rows
        self._room = max(self._room, -(-width // _GRAIN) * _GRAIN)
        for layer, given in zip(self._slots, like, strict=True):
            # Zeros, not garbage: a masked NaN would still poison the attention's weighted sum.
            new = [given.new_zeros((self._rows, given.shape[1], self._room, given.shape[3])) for _ in range(2)]
            for made, old in zip(new, (layer.keys, layer.values), strict=True):
                if old is not None:
                    made[: old.shape[0], :, : old.shape[2]] = old
            layer.keys, layer.values = new


def similar(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of ascending lengths, similar ones together, so that little is padded; at most `_MAX_TOGETHER`."""
    groups: list[list[int]] = []
    for index, length in enumerate(lengths):
        fits = groups and len(groups[-1]) < _MAX_TOGETHER and lengths[groups[-1][0]] >= _MIN_LENGTH_RATIO * length
        if fits:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def padded_pass(model: Any, prompts: Sequence[Sequence[int]], **options: Any) -> Tensor:
    """Logits at each prompt's last position, [B, V]; the head runs at the positions where some prompt ends, if it can.

    Padded on the right, where no causal layer looks: attention with or without windows, convolution, recurrence.
    """
    lengths = [len(p) for p in prompts]
    width = max(lengths)
    padded = [[*p, *[0] * (width - len(p))] for p in prompts]
    ends = list(range(1, width + 1))
    if takes_positions(model):
        ends = sorted(set(lengths))
        options["logits_to_keep"] = torch.tensor(ends, device=model.device) - 1
    output = model(input_ids=torch.tensor(padded, device=model.device), **options)  # [B, T]
    logits: Tensor = output.logits[list(range(len(prompts))), [ends.index(n) for n in lengths]]
    return logits


def takes_positions(model: Any) -> bool:
    """Whether the model can return the logits of some positions alone."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's wrapper passes all on
    return "logits_to_keep" in inspect.signature(inner.forward).parameters


class WholeRunner:
    """Writes answers whole, by transformers' `generate`, which knows each family's positions, masks and caches.

    It draws as `draw_tokens` does, and nothing of the model's own generation_config (penalties, top-k, …) takes part.
    Prompts with an image are answered in padded batches; those of text one at a time: exact for every architecture.

    Args:
        layers: kinds of layers for which the model's answers are written whole, for the warning that it is slow.
    """

    def __init__(self, model: Any, name: str, layers: str, ends: Sequence[int], eyes: Eyes | None) -> None:
        self._model = model
        pad_id = eyes.tokenizer.pad_token_id if eyes else None
        self._pad_id = int(ends[0] if pad_id is None else pad_id)
        self._ends = sorted({*ends, *(eyes.picture_ids if eyes else ())})
        self._eyes = eyes
        self._warning = (
            f"model {name!r} has layers other than full attention ({layers}): its answers are written one by one, with "
            "transformers' own cache; engine.kind=vllm is faster"
        )

    def group(self, lengths: Sequence[int], *, scored: bool) -> list[list[int]]:
        """With vision, all together; to score, similar lengths if the model takes positions; else one by one."""
        if self._eyes and lengths:
            return [list(range(len(lengths)))]
        together = scored and takes_positions(self._model)  # else a pass has logits of all positions
        return similar(lengths) if together else [[index] for index in range(len(lengths))]

    def write(
        self, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling], pngs: Sequence[bytes | None]
    ) -> list[tuple[list[int], list[float]]]:
        """Return (ids, log-probabilities) of each answer, up to an end token, an image token, or its limit."""
        if self._warning and not self._eyes:
            logger.warning(self._warning)
            self._warning = ""
        draw = _Draw(samplings)
        rows = [torch.tensor(ids) for ids in prompts]
        ids = pad_sequence(rows, True, self._pad_id, "left").to(self._model.device)  # [B, T]
        mask = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left").to(ids.device)
        config = GenerationConfig(
            max_new_tokens=max(s.max_new_tokens for s in samplings), eos_token_id=self._ends, pad_token_id=self._pad_id
        )
        seen = self._eyes.inputs(ids, [png for png in pngs if png is not None]) if self._eyes else {}
        own = self._model.generation_config
        # `generate` would take the options that the given one leaves unset from the model's own.
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
        own = [samplings[i] for i in rows]
        if any(s.temperature != 1.0 for s in own):
            temperatures = torch.tensor([[s.temperature] for s in own], device=chosen.device)
            chosen = torch.log_softmax(chosen / temperatures, dim=-1)
        scaled = chosen  # [R, V]
        for row, sampling in enumerate(own):  # top-k, then top-p
            if sampling.top_k <= 0 and sampling.top_p >= 1.0:
                continue
            ordered, order = chosen[row].sort(descending=True)
            keep = torch.ones_like(ordered, dtype=torch.bool)
            if sampling.top_k > 0:
                keep[sampling.top_k :] = False
            if sampling.top_p < 1.0:
                before = torch.softmax(ordered.masked_fill(~keep, -torch.inf), dim=-1).cumsum(dim=-1)
                keep[1:] &= before[:-1] < sampling.top_p
            scaled = scaled.clone()
            scaled[row, order[~keep]] = -torch.inf
        cdf = torch.softmax(scaled, dim=-1).double().cumsum(dim=-1)  # [R, V]
        draws = torch.tensor([[generators[i].random()] for i in rows], dtype=torch.float64, device=cdf.device)
        drawn = torch.searchsorted(cdf, draws * cdf[:, -1:], right=True).squeeze(-1)  # [R]
        # `right=True` skips zero-probability tokens; rounding at the top end may still point past the last one.
        tokens[rows] = torch.minimum(drawn, (cdf < cdf[:, -1:]).sum(dim=-1))
    return tokens.tolist(), log_probs.gather(1, tokens[:, None]).squeeze(1).tolist()
