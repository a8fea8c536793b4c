"""The CPU part of `training.py`: our trainer's optimizer steps against a plain padded Hugging Face loop.

`row by row` is our trainer without `llm/products.py` and `training/devices.py`: all threads share each of torch's own
products; `torch's products` is without the former alone, `whole last layer` without `trim_last_layer`. Each row ends
with its CPU time over `packed`'s.
"""

from __future__ import annotations

import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from webrl.config import ActorConfig, OptimConfig
from webrl.config.resources import load_plan
from webrl.llm import products
from webrl.training.architectures import decoder_of
from webrl.training.devices import row_threads
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine, make_optimizer
from webrl.training.models import load_actor
from webrl.training.objectives import OBJECTIVES
from webrl.training.packing import Item
from webrl.training.trainer import Batch, Job, _Loop, peak_memory_gib
from webrl.training.update import policy_loss_function
from webrl.types import StepRecord

REPO = Path(__file__).resolve().parent.parent
NUM_SAMPLES, BATCH, NUM_ACTION = 64, 32, 20
PADDED_BATCHES = (4, 8, 16)


def measure(repeats: int) -> dict[str, Any]:
    """Tokens per second of both, alternating, median over `repeats`; the padded loop at its best batch size."""
    records = make_records()
    tokens = sum(len(r.prompt_ids) + len(r.action_ids) for r in records)
    with tempfile.TemporaryDirectory() as folder:
        actor = REPO / "data" / "tiny" / "actor"
        rivals = {size: padded_loop(actor, records, size) for size in PADDED_BATCHES}
        runs: dict[str, Callable[[], None]] = {
            "packed": packed_loop(actor, records, Path(folder), open_engine),
            "row by row": packed_loop(actor, records, Path(folder), open_before),
            "torch's products": packed_loop(actor, records, Path(folder), open_with_torchs_products),
            "whole last layer": packed_loop(actor, records, Path(folder), open_untrimmed),
            **{f"padded {n}": f for n, f in rivals.items()},
        }
        speeds: dict[str, list[float]] = {name: [] for name in runs}
        work: dict[str, list[float]] = {name: [] for name in runs}
        for repeat in range(repeats + 1):
            for name, run in runs.items():
                started, worked = time.perf_counter(), time.process_time()
                run()
                if repeat:  # the first round warms up
                    speeds[name].append(tokens / (time.perf_counter() - started))
                    work[name].append(time.process_time() - worked)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    seconds = {name: statistics.median(values) for name, values in work.items()}
    padded = max(value for name, value in medians.items() if name.startswith("padded"))
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print(
        f"{NUM_SAMPLES} samples of 150-500 tokens ({tokens} in all), {NUM_ACTION} action tokens, batch {BATCH}, AdamW"
    )
    for name, value in medians.items():
        every = ", ".join(f"{v:.0f}" for v in speeds[name])
        ratio = seconds[name] / seconds["packed"]
        print(f"{name:>16}: {value:8.0f} tokens/s   ({every}), {seconds[name]:.2f} CPU-s, {ratio:.2f}")
    return {
        "ratio_vs_padded": round(medians["packed"] / padded, 3),
        "ratio_vs_row_by_row": round(medians["packed"] / medians["row by row"], 3),
        "cpu_ratio_vs_row_by_row": round(seconds["packed"] / seconds["row by row"], 3),
        "tokens_per_s": round(medians["packed"]),
        "tokens_per_s_padded": round(padded),
        "peak_gib": round(peak_memory_gib(), 2),
        "threads": torch.get_num_threads(),
    }


def make_records() -> list[StepRecord]:
    """Random token ids: the arithmetic does not depend on them."""
    rng = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(5, 1900) for _ in range(count))

    return [
        StepRecord(
            step_id=f"t{i}:0", trajectory_id=f"t{i}", instruction="", site="", phase=1, index=0, num_steps=1,
            prompt_ids=ids(rng.randint(150, 500) - NUM_ACTION), action_ids=ids(NUM_ACTION), outcome=i % 2,
            ref_logprobs=(-0.5,) * NUM_ACTION, value=0.5, next_value=0.0,
        )
        for i in range(NUM_SAMPLES)
    ]  # fmt: skip


class Before(Engine):
    """Rows one after the other (`num_threads` is that of `Engine` itself), products by torch."""

    def prepare(self, model: nn.Module) -> tuple[Any, Any]:
        """(model, optimizer), the model as it is."""
        prepared: tuple[Any, Any] = self.accelerator.prepare(model, make_optimizer(model, self.config))
        return prepared


def open_before(model: nn.Module, config: OptimConfig, device: str) -> Engine:
    """As `open_engine`."""
    return Before(model, config, device, load_plan(config.engine))


def open_with_torchs_products(model: nn.Module, config: OptimConfig, device: str) -> Engine:
    """As `open_engine`, matrix products by torch."""
    engine = open_engine(model, config, device)
    for module in model.modules():
        if getattr(vars(module).get("forward"), "__func__", None) is products._forward:
            del module.forward
    return engine


def open_untrimmed(model: nn.Module, config: OptimConfig, device: str) -> Engine:
    """As `open_engine`, the last layer computed at every position."""
    del decoder_of(model.lm).layers[-1].forward
    return open_engine(model, config, device)


def packed_loop(
    actor: Path, records: list[StepRecord], folder: Path, open_one: Callable[[nn.Module, OptimConfig, str], Engine]
) -> Callable[[], None]:
    """One epoch of the trainer's own optimizer steps with the `webrl` objective."""
    config = ActorConfig(batch_size=BATCH, lr=1e-6)
    objective = OBJECTIVES["webrl"]
    advantages = objective.advantages(records, config)
    items = [Item((*r.prompt_ids, *r.action_ids), NUM_ACTION) for r in records]
    job = Job(
        name="actor", model=load_actor(actor), items=items,
        active=[True] * len(records), ids=[r.step_id for r in records],
        loss=policy_loss_function(records, advantages, objective, config), save=lambda *_: None,
        histograms=("advantage", "log_ratio"),
    )  # fmt: skip
    engine = open_one(job.model, config, "cpu")

    def run() -> None:
        with row_threads(engine.num_threads) as over:
            loop = _Loop(job, config, engine, "cpu", NUM_SAMPLES // BATCH, folder / "out", over)
            for step, start in enumerate(range(0, NUM_SAMPLES, BATCH)):
                loop.step(step, Batch(list(range(start, start + BATCH))))

    return run


def padded_loop(actor: Path, records: list[StepRecord], micro_batch: int) -> Callable[[], None]:
    """One epoch of what most scripts do: pad, full logits, log-softmax, the same objective, AdamW."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(actor, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)

    def run() -> None:
        for start in range(0, len(records), BATCH):
            for first in range(start, start + BATCH, micro_batch):
                padded_loss(model, records[first : first + micro_batch]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def padded_loss(model: Any, records: list[StepRecord]) -> torch.Tensor:
    """The `webrl` loss of a padded batch."""
    rows = [(*r.prompt_ids, *r.action_ids) for r in records]
    length = max(map(len, rows))
    ids = torch.tensor([[*row, *([0] * (length - len(row)))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    action = torch.zeros(ids.shape)
    for i, row in enumerate(rows):
        action[i, len(row) - NUM_ACTION : len(row)] = 1
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    logprobs = functional.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]  # [B, T-1]
    reference = torch.tensor([sum(r.ref_logprobs or ()) for r in records])
    advantage = torch.tensor([float(r.outcome or 0) - (r.value or 0) for r in records])
    return ((logprobs * action[:, 1:]).sum(1) - reference - advantage).square().sum() / BATCH
