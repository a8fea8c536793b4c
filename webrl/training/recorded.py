"""Rows of a small model as CUDA graphs: recorded once for a shape, replayed for every row that fits into it.

A model of a few hundred million weights computes a row in less time than Python and torch need to launch its kernels
(a row of 13,000 tokens at 0.27B: 40 ms on an H100, 140 ms on the host beside it). A recorded row is two launches, one
forward, one backward; what the engine does with a fresh gradient is recorded with it. Recording fixes every shape: a
row is filled up with sequences of its own, and with positions whose output nobody reads. What cannot be recorded (a
decision of the host that depends on data) fails when it is tried, and the rows are then computed as they come.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from webrl.config import OptimConfig
from webrl.training.attention import LONG_TOKENS, Layout
from webrl.training.decoder import decoder_of
from webrl.training.engine import Engine
from webrl.training.models import PackedActor, PackedCritic, row_inputs
from webrl.training.packing import Pack
from webrl.training.transfer import send
from webrl.training.trim import is_trimmed

logger = logging.getLogger(__name__)

MAX_WEIGHTS = 1_500_000_000
"""Of a body whose kernels are short enough for their launches to matter."""
_SEEN, _RECORDINGS, _WARM_UP = 2, 4, 2
"""A shape is recorded when it comes again after so many rows; at most so many are; passes before a recording."""
_STEP_KEPT, _STEP_SEQUENCES, _LONGEST = 256, 64, 512
_WASTE = 1.15
"""A recording serves rows that fill at least one over this of its tokens."""
_MAX_NATS = 0.01
"""Largest accepted mean difference between a replayed row and the same row computed as it comes."""


@dataclass(frozen=True)
class Shape:
    """What a recording fixes."""

    tokens: int
    """T, filled up."""
    sequences: int
    """B, filled up."""
    kept: int
    """N, filled up."""
    longest: int
    """Tokens of a sequence, at most."""

    @classmethod
    def of(cls, row: Pack) -> Shape:
        """The smallest that a row and its filling fit into."""
        longest = _LONGEST
        while longest < max(row.layout.seq_lens):
            longest *= 2
        tokens = _up(row.num_tokens, 1 << max(row.num_tokens.bit_length() - 4, 8))
        filling = -(-(tokens - row.num_tokens) // longest)
        return cls(
            tokens, _up(row.num_samples + filling, _STEP_SEQUENCES), _up(len(row.layout.keep), _STEP_KEPT), longest
        )

    def holds(self, row: Pack) -> bool:
        """True if a recording of this shape may compute a row, without too much filling."""
        filling = -(-(self.tokens - row.num_tokens) // self.longest)
        return (
            row.num_tokens <= self.tokens <= _WASTE * row.num_tokens
            and row.num_samples + filling <= self.sequences
            and len(row.layout.keep) <= self.kept
            and max(row.layout.seq_lens) <= self.longest <= 4 * max(row.layout.seq_lens)
        )


class RecordedRows:
    """A model's forward pass, by recordings where they apply."""

    def __init__(self, model: PackedActor | PackedCritic, engine: Engine, config: OptimConfig) -> None:
        self.model, self.engine = model, engine
        self.enabled = can_record(model, engine, config)
        self.seen: Counter[Shape] = Counter()
        self.recordings: dict[Shape, _Recording] = {}
        self.room = _RECORDINGS
        self.pool: Any = None  # of memory; no two recordings are on their way at a time

    def __call__(self, row: Pack) -> Tensor:
        """The model's output for a row, as `model(**inputs)` gives it; its backward pass gives gradients likewise."""
        recording = self._find(row) if self.enabled and torch.is_grad_enabled() else None
        return self._plain(row) if recording is None else recording(row)

    def _plain(self, row: Pack) -> Tensor:
        out: Tensor = self.engine.model(**row_inputs(self.model, row))
        return out

    def _find(self, row: Pack) -> _Recording | None:
        if max(row.layout.seq_lens) >= LONG_TOKENS or len(row.targets) not in (0, len(row.layout.keep)):
            return None
        shape = Shape.of(row)
        known = next((s for s in self.recordings if s == shape or s.holds(row)), None)
        if known:
            return self.recordings[known]
        self.seen[shape] += 1
        if self.seen[shape] > _SEEN and len(self.recordings) < self.room:
            self._record(shape, row)
        return self.recordings.get(shape)

    def _record(self, shape: Shape, row: Pack) -> None:
        self.engine.keep_gradients()
        try:
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            recording = _Recording(self.model, self.engine, shape, row.input_ids.device, self.pool)
            difference = recording.difference(row)
        except RuntimeError as error:  # whatever the model does that a recording cannot hold
            self._stop(" ".join(str(error).split())[:200])
            return
        if not difference <= _MAX_NATS:
            self._stop(f"a replayed row is off by {difference:.2g} nats")
            return
        self.recordings[shape] = recording

    def _stop(self, reason: str) -> None:
        """No more recordings; what was recorded before was found right, and stays."""
        self.room = 0
        self.enabled = bool(self.recordings)
        self.engine.drop_fresh_gradients()
        logger.warning("no more rows are recorded as CUDA graphs, they are computed as they come: %s", reason)


def can_record(model: PackedActor | PackedCritic, engine: Engine, config: OptimConfig) -> bool:
    """True where recording may apply and would matter: one GPU, a small model in whole rows."""
    plain = config.checkpointing == "none" and not config.compile and not config.float8
    return (
        config.cuda_graphs
        and plain
        and engine.records
        and engine.num_ranks == 1
        and engine.accelerator.device.type == "cuda"
        and model.packs
        and not is_trimmed(decoder_of(model.lm))
        and sum(p.numel() for p in model.parameters()) <= MAX_WEIGHTS
    )


class FilledRow:
    """The tensors that a recording reads: a row, and behind it sequences of token 0 that nobody reads."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape, self.device = shape, device
        self.pack = Pack(
            input_ids=self._zeros(1, shape.tokens),
            position_ids=self._zeros(1, shape.tokens),
            layout=Layout(
                seq_lens=(shape.longest, 1),  # all that the kernel for many sequences asks of them: not their sum
                cu_seq_lens=self._zeros(shape.sequences + 1).to(torch.int32),
                keep=self._zeros(shape.kept),
                keep_lens=(shape.longest, 1),
                cu_keep_lens=self._zeros(0).to(torch.int32),
            ),
            targets=self._zeros(shape.kept),
            target_sample=self._zeros(0),
        )
        self._positions = torch.arange(shape.tokens, device=device) % shape.longest
        self._fill(0, 0)

    def _zeros(self, *size: int) -> Tensor:
        return torch.zeros(*size, dtype=torch.long, device=self.device)

    def lay(self, row: Pack) -> None:
        """Write a row on the same device into the tensors."""
        own, length, kept = self.pack, row.num_tokens, len(row.layout.keep)
        self._fill(length, row.num_samples)
        own.layout.cu_seq_lens[: row.num_samples].copy_(row.layout.cu_seq_lens[:-1])
        own.input_ids[:, :length].copy_(row.input_ids)
        own.position_ids[:, :length].copy_(row.position_ids)
        own.layout.keep[:kept].copy_(row.layout.keep)
        own.layout.keep[kept:] = 0
        if len(row.targets):
            own.targets[:kept].copy_(row.targets)

    def _fill(self, length: int, num_samples: int) -> None:
        """Sequences from token `length` on; those that are left over are empty."""
        starts = list(range(length, self.shape.tokens, self.shape.longest))
        empty = self.shape.sequences + 1 - num_samples - len(starts)
        assert empty > 0
        bounds = torch.tensor(starts + [self.shape.tokens] * empty, dtype=torch.int32)
        self.pack.layout.cu_seq_lens[num_samples:].copy_(send(bounds, self.device))
        self.pack.input_ids[:, length:] = 0
        self.pack.position_ids[0, length:].copy_(self._positions[: self.shape.tokens - length])


class _Recording:
    """Forward and backward pass of one shape."""

    def __init__(
        self, model: PackedActor | PackedCritic, engine: Engine, shape: Shape, device: torch.device, pool: Any
    ) -> None:
        self.model, self.row, self._pool = model, FilledRow(shape, device), pool
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._capture(engine)

    def __call__(self, row: Pack) -> Tensor:
        """As `RecordedRows`."""
        self.row.lay(row)
        out: Tensor = _Replay.apply(self._anchor, self)
        return out[: len(row.layout.keep)]

    def difference(self, row: Pack) -> float:
        """Mean difference between the recording's output and the same tensors computed as they are."""
        with torch.no_grad():
            found = self(row)
            expected = self.model(**row_inputs(self.model, self.row.pack))[: len(found)]
            return float((found - expected).abs().mean())

    def _capture(self, engine: Engine) -> None:
        inputs = row_inputs(self.model, self.row.pack)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):  # kernels are compiled, libraries loaded; a gradient of zero changes nothing
                engine.backward((self.model(**inputs) * 0).sum())
        torch.cuda.synchronize()
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._forward, pool=self._pool):
            output = self.model(**inputs)
        self._grad = torch.zeros_like(output)
        with torch.cuda.graph(self._backward, pool=self._pool):
            output.backward(self._grad)
        self._output: Tensor = output.detach()

    def replay(self) -> Tensor:
        """The forward pass on what was laid out."""
        self._forward.replay()
        return self._output.clone()

    def replay_backward(self, grad: Tensor) -> None:
        """The backward pass of the row that went forward last."""
        self._grad.copy_(grad)
        self._backward.replay()


class _Replay(torch.autograd.Function):
    """Between a recording and the loss: its gradients go where they went when it was recorded."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, recording: _Recording) -> Tensor:
        ctx.recording = recording
        out: Tensor = recording.replay()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        ctx.recording.replay_backward(grads[0])
        return None, None


def _up(number: int, step: int) -> int:
    return -(-number // step) * step
