"""Shapes, samples and the released update's passes, shared by the GPU parts of `training.py`.

The re-enactment does, for each step sample on its own, what the released trainer does (github.com/THUDM/WebRL): the
critic is trained on s and on s'; values of s and s' are computed for the actor's loss; policy and reference run over
every sample with a log-softmax over the whole vocabulary at every position; activations are checkpointed. It is given
our attention kernel, gradients that stay in place, one model at a time and no head in the critic, all in its favour.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from webrl.training.architectures import attention_of
from webrl.training.models import PackedActor, PackedCritic
from webrl.training.packing import Item

Train = Callable[[Tensor], None]
"""Runs the backward pass of a loss."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB, NUM_ACTION, MAX_TOKENS = 128_256, 40, 16_384
LENGTHS = (4096, 16384, 4864, 11264, 5632, 9728, 6656, 8192)
"""Step samples in tokens; every other one belongs to a failed trajectory."""


@dataclass
class Counter:
    """Passes over the model, as the report prints them."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, number: int = 1) -> None:
        """Count passes of a kind."""
        self.counts[what] = self.counts.get(what, 0) + number

    def forward_equivalents(self, num_samples: int) -> float:
        """Forward passes a step sample: a backward pass counts two, recomputation one."""
        weights = {"forward": 1, "forward+backward": 3, "forward+backward, checkpointed": 4}
        return sum(weights[kind.partition(": ")[2]] * n for kind, n in self.counts.items()) / num_samples


def llama_config(size: str, layers: int) -> Any:
    """Llama-3.1's shapes."""
    from transformers import LlamaConfig

    hidden, inner, heads = {"tiny": (256, 512, 8), "8B": (4096, 14336, 32), "70B": (8192, 28672, 64)}[size]
    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=8, max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, tie_word_embeddings=False, pad_token_id=0,
    )  # fmt: skip


def shrink(config: Any) -> Any:
    """The same architecture with two narrow layers and a small vocabulary."""
    small = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 512}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": (config.layer_types or [])[:2] or None}
    return type(config).from_dict(config.to_dict() | small)


class _Classifier(nn.Module):
    """The same body with a value head; the names `PackedCritic` asks for."""

    def __init__(self, body: nn.Module, score: nn.Linear, config: Any) -> None:
        super().__init__()
        self.base_model, self.score, self.config = body, score, config


def make_items(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> list[Item]:
    """Step samples of random ids."""
    generator = torch.Generator().manual_seed(seed)
    return [Item(tuple(torch.randint(5, VOCAB, (n,), generator=generator).tolist()), NUM_ACTION) for n in lengths]


def checkpoint(lm: Any, policy: str) -> None:
    """Switch activation checkpointing on the body: `none`, `full`, `selective`."""
    from webrl.training.architectures import _selective_contexts

    body = getattr(lm, "base_model", lm)
    for layer in body.layers:
        layer.gradient_checkpointing = policy != "none"
        options: dict[str, Any] = {"use_reentrant": False}
        if policy == "selective":
            options["context_fn"] = _selective_contexts
        layer._gradient_checkpointing_func = _checkpointer(options)
    body.train()


def _checkpointer(options: dict[str, Any]) -> Callable[..., Any]:
    from torch.utils.checkpoint import checkpoint as run

    return lambda function, *args: run(function, *args, **options)


class ReleasedActor(nn.Module):
    """Log-softmax over the vocabulary at every position, then the action's tokens."""

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, ids: Tensor, num_targets: int) -> Tensor:
        """[1, T] -> [num_targets] log-probabilities."""
        logprobs = functional.log_softmax(self.lm(input_ids=ids, use_cache=False).logits[:, :-1], dim=-1)  # [1, T-1, V]
        return logprobs.gather(2, ids[:, 1:, None])[0, -num_targets:, 0]


class ReleasedCritic(nn.Module):
    """Value head at the last position."""

    def __init__(self, body: nn.Module, score: nn.Module) -> None:
        super().__init__()
        self.body, self.score = body, score

    def forward(self, ids: Tensor) -> Tensor:
        """[1, T] -> [1, 1] value logit."""
        value: Tensor = self.score(self.body(input_ids=ids, use_cache=False).last_hidden_state[:, -1])
        return value


@dataclass(frozen=True)
class Models:
    """Actor and critic on one body (they are timed one at a time, at equal cost), packed and as released."""

    actor: PackedActor
    critic: PackedCritic
    released_actor: ReleasedActor
    released_critic: ReleasedCritic


def build(size: str, layers: int, dtype: torch.dtype, device: str) -> Models:
    """Models of random weights."""
    from transformers import LlamaForCausalLM

    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            lm = LlamaForCausalLM._from_config(llama_config(size, layers), attn_implementation=attention_of("packed"))
            score = nn.Linear(lm.config.hidden_size, 1, bias=False)
    finally:
        torch.set_default_dtype(default)
    critic = PackedCritic(_Classifier(lm.model, score, lm.config))
    return Models(PackedActor(lm), critic, ReleasedActor(lm), ReleasedCritic(lm.model, score))


def released_critic_passes(critic: Any, items: Sequence[Item], counter: Counter, train: Train) -> None:
    """Forward and backward on s and on s' of every step sample."""
    for item in items:
        for _ in ("s", "s'"):
            train(functional.softplus(critic(_ids(item))).sum())
            counter.add("critic: forward+backward, checkpointed")


@torch.no_grad()
def released_scores(actor: Any, critic: Any, items: Sequence[Item], counter: Counter) -> None:
    """Values of s and s', and the reference's log-probabilities, of every step sample."""
    for item in items:
        for _ in ("s", "s'"):
            critic(_ids(item))
            counter.add("values: forward")
        actor(_ids(item), item.num_targets)
        counter.add("reference: forward")


def released_actor_passes(actor: Any, items: Sequence[Item], counter: Counter, train: Train) -> None:
    """Forward and backward of the policy on every step sample, whatever its advantage."""
    for item in items:
        train(actor(_ids(item), item.num_targets).sum().square())
        counter.add("policy: forward+backward, checkpointed")


def _ids(item: Item) -> Tensor:
    return torch.tensor([item.ids], device=DEVICE)


def timed(run: Callable[[], None]) -> tuple[float, float]:
    """(seconds, peak GiB above what was held before) of one call, device idle before and after."""
    if DEVICE == "cpu":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started, 0.0
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started, (torch.cuda.max_memory_allocated() - held) / 2**30


def free() -> None:
    """Give cached device memory back."""
    gc.collect()
    torch.cuda.empty_cache()


def table(title: str, rows: Sequence[Sequence[Any]], header: Sequence[str]) -> None:
    """Print an aligned table."""
    cells = [list(map(str, header)), *[[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n## {title}", flush=True)
    for row in cells:
        print("  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))


class Budget:
    """Seconds left for a part."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def has(self, seconds: float, what: str) -> bool:
        """True if that much is left; says so if not."""
        left = self._end - time.monotonic()
        if left < seconds:
            print(f"left out for want of time: {what} ({left:.0f} s left)", flush=True)
        return left >= seconds
