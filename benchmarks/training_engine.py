"""The one-GPU part of `training.py`: the optimizer steps of `webrl train`, at lengths of real episodes.

Every row is `webrl.training.trainer.train` itself, from the same settings to the same engine, rows, objective, clipping
and AdamW; only the weights are random and nothing is written. Beside it the same steps with weights, gradients and
moments in bfloat16, and TRL's SFTTrainer with packing on the same samples (`pip install trl`).
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from training_flops import body_parameters, peak_flops, training_flops
from training_shapes import shrink

from webrl.config import ActorConfig
from webrl.errors import WebRLError
from webrl.training.architectures import attention_of, cast_weights, route_of
from webrl.training.layers.fused import MLPS, NORMS
from webrl.training.models import PackedActor
from webrl.training.trainer import train
from webrl.training.update import actor_job, prepare
from webrl.types import StepRecord

LENGTHS_FILE = Path(__file__).with_name("training_lengths.json")
BATCH, TINY_BATCH = 64, 4
Figures = dict[str, Any]


@dataclass(frozen=True)
class Steps:
    """Optimizer steps of a row."""

    warm_up: int
    """Not timed: kernels are compiled in them."""
    timed: int
    """After them."""

    @property
    def total(self) -> int:
        """All that are made."""
        return self.warm_up + self.timed


@dataclass(frozen=True)
class Shape:
    """A model's shape, and how it is trained on one GPU of 80 GB."""

    config: Callable[[], Any]
    """Makes the transformers configuration."""
    max_tokens: int = 16384
    """Of a row."""
    lora_rank: int = 0
    """0 trains all weights."""


def gemma3_270m() -> Any:
    """Gemma 3 270M."""
    from transformers import Gemma3TextConfig

    return Gemma3TextConfig(
        vocab_size=262_144, hidden_size=640, intermediate_size=2048, num_hidden_layers=18, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, sliding_window=512, max_position_embeddings=32_768,
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(18)],
    )  # fmt: skip


def qwen3(hidden: int, inner: int, layers: int, heads: int) -> Callable[[], Any]:
    """Qwen 3's shapes."""

    def make() -> Any:
        from transformers import Qwen3Config

        return Qwen3Config(
            vocab_size=151_936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=8, head_dim=128, tie_word_embeddings=True,
        )  # fmt: skip

    return make


def llama31_8b() -> Any:
    """Llama 3.1 8B."""
    from training_shapes import llama_config

    return llama_config("8B", 32)


SHAPES = {
    "0.27B": Shape(gemma3_270m, max_tokens=32768),
    "0.6B": Shape(qwen3(1024, 3072, 28, 16)),
    "1.7B": Shape(qwen3(2048, 6144, 28, 16)),
    "4B": Shape(qwen3(2560, 9728, 36, 32), max_tokens=8192, lora_rank=16),
    "8B": Shape(llama31_8b, max_tokens=8192, lora_rank=16),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "webrl": {"precision": "bf16"},
    "plain layers": {"precision": "bf16"},
    "liger layers": {"precision": "bf16"},
    "compiled": {"precision": "bf16", "compile": True},
    "bf16 weights": {"precision": "fp32"},
    "bf16 weights compiled": {"precision": "fp32", "compile": True},
}
"""Settings of each row; the `bf16 weights` are cast before they are trained as they are."""


def measure_engine(shapes: Sequence[str], variants: Sequence[str], steps: Steps, tiny: bool = False) -> Figures:
    """Tokens per second by shape and variant; one that does not fit or does not run is reported and left out."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    batch = TINY_BATCH if tiny else BATCH
    print(
        f"{name}, torch {torch.__version__}, {batch} samples a step, {steps.timed} steps after {steps.warm_up}",
        flush=True,
    )
    figures: Figures = {"device": name}
    for shape, variant in itertools.product(shapes, variants):
        key = f"{shape}, {variant}"
        how = replace(SHAPES[shape], max_tokens=2048) if tiny else SHAPES[shape]
        started = time.monotonic()
        try:
            if variant == "trl":
                from training_trl import measure_trl

                figures[key] = measure_trl(how, steps, device, tiny)
            else:
                figures[key] = measure_variant(how, variant, steps, device, tiny)
        except (RuntimeError, ImportError, OSError, ValueError, TypeError, AttributeError, WebRLError) as error:
            print(f"{key}: left out: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            continue
        finally:
            torch.compiler.reset()  # the next shape has the same layers' code
            gc.collect()
            torch.cuda.empty_cache()
        print(f"{key}: {json.dumps(figures[key])} ({time.monotonic() - started:.0f} s)", flush=True)
    return figures | ratios(figures, shapes)


def ratios(figures: Figures, shapes: Sequence[str]) -> Figures:
    """Ours at its fastest over each of the others at its fastest.

    Beside bfloat16 weights, whose rows make the same steps, it is the median over steps: a host that stops for a second
    is no rival's fault.
    """
    found: Figures = {}
    for shape in shapes:
        found |= break_even(figures, shape)
        speeds = {k.partition(", ")[2]: v["tokens_per_s"] for k, v in figures.items() if k.startswith(f"{shape}, ")}
        ours = max((speeds.get(k, 0) for k in ("webrl", "compiled")), default=0)
        for rivals in (("bf16 weights", "bf16 weights compiled"), ("trl",)):
            theirs = max(speeds.get(k, 0) for k in rivals)
            if ours and theirs and rivals != ("trl",):
                ours_s, theirs_s = (steps_of(figures, shape, names) for names in (("webrl", "compiled"), rivals))
                found[f"{shape}, ratio to {rivals[0]}"] = round(
                    statistics.median(b / a for a, b in zip(ours_s, theirs_s, strict=True)), 3
                )
            elif ours and theirs:
                found[f"{shape}, ratio to {rivals[0]}"] = round(ours / theirs, 3)
    return found


def steps_of(figures: Figures, shape: str, variants: Sequence[str]) -> list[float]:
    """Seconds of each timed step, of the variant that was fastest."""
    rows = [figures[key] for variant in variants if (key := f"{shape}, {variant}") in figures]
    steps: list[float] = max(rows, key=lambda row: row["tokens_per_s"])["steps_s"]
    return steps


def break_even(figures: Figures, shape: str) -> Figures:
    """How many tokens a training must have for compilation to pay for its first steps."""
    plain, compiled = figures.get(f"{shape}, webrl"), figures.get(f"{shape}, compiled")
    if not plain or not compiled or compiled["tokens_per_s"] <= plain["tokens_per_s"]:
        return {}
    saved = 1 / plain["tokens_per_s"] - 1 / compiled["tokens_per_s"]
    return {f"{shape}, tokens before compiling pays": round(compiled["warm_up_s"] / saved)}


def measure_variant(shape: Shape, variant: str, steps: Steps, device: str, tiny: bool) -> Figures:
    """One row: `train` with an actor's job."""
    batch = TINY_BATCH if tiny else BATCH
    config = ActorConfig.model_validate(
        {"objective": "sft", "lr": 1e-6, "batch_size": batch, "max_tokens": shape.max_tokens, "max_kl": None,
         "max_success_drop": None, "lora_rank": shape.lora_rank, **VARIANTS[variant]}
    )  # fmt: skip
    model = random_actor(shape, device, tiny)
    if variant in ("plain layers", "liger layers"):
        restore_layers(model)
    modeling = vars(sys.modules[type(model.lm).__module__])
    own = dict(modeling)
    try:
        if variant == "liger layers":
            from liger_kernel.transformers import _apply_liger_kernel_to_instance

            _apply_liger_kernel_to_instance(model.lm, cross_entropy=False, fused_linear_cross_entropy=False)
        prepare(model, config, seed=0)
        if variant.startswith("bf16 weights"):
            cast_weights(model)
        records = make_records(batch * steps.total, model.lm.config.get_text_config().vocab_size)
        job = actor_job(model, records, config, save=lambda _, folder: folder.mkdir())
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder) / "metrics.jsonl"
            train(job, config, out=Path(folder) / "out", seed=0, metrics_path=metrics, device=device)
            lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    finally:
        modeling.update(own)  # Liger's classes would be the next rows' too
    found = summary(lines, steps.warm_up)
    if peak := peak_flops():
        lm, lengths = job.model.lm, [len(item.ids) for item in job.items]
        flops = training_flops(body_parameters(lm), lm.config, lengths, body_parameters(lm, frozen=True))
        found["mfu"] = round(flops / len(lines) / found["step_s"] / peak, 4)
    return found


def summary(lines: Sequence[dict[str, Any]], warm_up: int) -> Figures:
    """Of the steps after the warm-up, from the metrics that every training logs."""
    timed = lines[warm_up:]
    seconds = sum(line["actor/seconds"] for line in timed)
    tokens = sum(line["actor/tokens_per_s"] * line["actor/seconds"] for line in timed)
    return {
        "tokens_per_s": round(tokens / seconds),
        "step_s": round(seconds / len(timed), 4),
        "warm_up_s": round(sum(line["actor/seconds"] for line in lines[:warm_up]) - warm_up * seconds / len(timed), 2),
        "peak_gib": round(timed[-1]["actor/peak_gib"], 1),
        "steps_s": [round(line["actor/seconds"], 4) for line in timed],
    }


def random_actor(shape: Shape, device: str, tiny: bool) -> PackedActor:
    """A model of random weights; frozen ones are built in bfloat16, which is all that is kept of them."""
    from transformers import AutoModelForCausalLM

    config = shape.config()
    route = route_of(config)
    config = shrink(config) if tiny else config
    dtype = torch.bfloat16 if shape.lora_rank else torch.float32
    attention = attention_of(route)
    with torch.device(device):
        given = {"attn_implementation": attention} if attention else {}
        lm = AutoModelForCausalLM.from_config(config, dtype=dtype, **given)
    return PackedActor(lm, route)


def restore_layers(model: PackedActor) -> None:
    """Transformers' own norms, rotary embeddings and MLPs again."""
    for module in model.modules():
        if type(module).__name__ in (*NORMS, *MLPS):
            vars(module).pop("forward", None)
        modeling = sys.modules[type(module).__module__]
        rotary = getattr(modeling, "apply_rotary_pos_emb", None)
        modeling.apply_rotary_pos_emb = getattr(rotary, "webrl_own", rotary)  # type: ignore[attr-defined]


def make_records(count: int, vocab: int) -> list[StepRecord]:
    """Random ids at (prompt, action) lengths drawn from real episodes."""
    lengths = json.loads(LENGTHS_FILE.read_text())["lengths"]
    rng = random.Random(0)

    def ids(number: int) -> tuple[int, ...]:
        return tuple(rng.randrange(5, vocab) for _ in range(number))

    drawn = [rng.choice(lengths) for _ in range(count)]
    return [
        StepRecord(
            step_id=f"t{i}:0", trajectory_id=f"t{i}", instruction="", site="", phase=1, index=0, num_steps=1,
            prompt_ids=ids(prompt), action_ids=ids(action), outcome=1,
        )
        for i, (prompt, action) in enumerate(drawn)
    ]  # fmt: skip
