"""The training loop that critic, actor and SFT share.

A batch is `batch_size` samples of the seeded order. Samples whose loss is exactly zero count in the batch's mean
but get no pass. The others are packed into rows, the rows dealt out to the ranks evenly, and the gradient of the
batch's mean loss is accumulated row by row; so the result does not depend on packing or ranks, up to rounding.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from webrl.config import OptimConfig
from webrl.errors import DataError, TrainingError
from webrl.store import atomic_path, write_json
from webrl.training.checkpoint import Checkpoints, run_digest
from webrl.training.engine import Engine
from webrl.training.metrics import MetricLog
from webrl.training.objectives.carriers import LossOutput
from webrl.training.packing import Item, Pack, pack, plan_rows
from webrl.training.schedule import learning_rate, sample_batches
from webrl.training.scoring import row_budget

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """What to train on what."""

    name: str
    """Prefix of the metrics: `actor`, `critic`, `orm`."""
    model: nn.Module
    """`PackedActor` or `PackedCritic`, on the CPU."""
    items: Sequence[Item]
    """Samples."""
    active: Sequence[bool]
    """False for samples whose loss is exactly zero for every policy."""
    ids: Sequence[str]
    """Names of the samples, for error reports."""
    inputs: Callable[[Pack], dict[str, Any]]
    """Row -> keyword arguments of the model."""
    loss: Callable[[Tensor, Pack, list[int]], LossOutput]
    """(model output, row, sample indices) -> per-sample losses."""
    save: Callable[[Any, Path], None]
    """(module, folder): write the finished model."""


def train(job: Job, config: OptimConfig, *, out: Path, seed: int, metrics_path: Path, device: str) -> dict[str, Any]:
    """Train, save to `out` (atomically), give the run's means: `<name>_loss`, `<name>_steps`, ….

    Goes on from the newest training state of an interrupted run with the same config and data.

    Raises:
        DataError: no samples.
        TrainingError: non-finite loss or gradient, out of memory, or a state that does not fit.
    """
    if not job.items:
        raise DataError(f"nothing to train the {job.name} on: the data set is empty")
    if not any(job.active):
        logger.warning("%s: the loss of all %d samples is zero; the model is left as it is", job.name, len(job.items))
    torch.manual_seed(seed)
    engine = Engine(job.model, config, device)
    checkpoints = Checkpoints(out, config, run_digest(config, seed, job.items))
    first = checkpoints.restore(engine)
    batches = sample_batches(len(job.items), config, seed)
    log = MetricLog(metrics_path, job.name, first) if engine.is_main else None
    loop = _Loop(job, config, engine, device, len(batches), out)
    with tqdm(total=len(batches), initial=first, desc=job.name, disable=None if engine.is_main else True) as bar:
        for step in range(first, len(batches) if any(job.active) else 0):
            values = loop.step(step, batches[step])
            bar.set_postfix(loss=f"{values['loss']:.4f}")
            bar.update()
            if log and ((step + 1) % config.log_every == 0 or step + 1 == len(batches)):
                log.write(step + 1, values)
            if checkpoints.is_due(step + 1) and step + 1 < len(batches):
                checkpoints.save(engine, step + 1)
    _export(job, engine, out)
    if engine.is_main:
        checkpoints.discard()
    return loop.summary(len(batches))


class _Loop:
    """State of one run: totals for the summary, and the device."""

    def __init__(self, job: Job, config: OptimConfig, engine: Engine, device: str, num_steps: int, out: Path) -> None:
        self.job, self.config, self.engine, self.num_steps, self.out = job, config, engine, num_steps, out
        self.device = engine.accelerator.device
        self.budget = row_budget(config.max_tokens, device)
        self._totals: dict[str, float] = {}
        self._weight = 0
        self._tokens = 0.0
        self._seconds = 0.0

    def step(self, step: int, batch: list[int]) -> dict[str, float]:
        """One optimizer step; gives its metrics, averaged over the batch of all ranks."""
        started = time.perf_counter()
        rows = self._rows(batch)
        sums: dict[str, float] = {}
        self.engine.model.train()
        for number, row in enumerate(rows):
            with self.engine.micro_batch(is_last=number == len(rows) - 1), _memory_errors(self.config):
                self._accumulate(row, len(batch), sums, step)
        rate = learning_rate(step, self.num_steps, self.config)
        norm = self.engine.step(rate)
        if not math.isfinite(norm):
            self._stop(step, batch, f"the gradient norm is {norm}")
        sums = self.engine.reduce_sums(sums)
        tokens = sums.pop("tokens")
        seconds = time.perf_counter() - started
        means = {key: total / len(batch) for key, total in sums.items()}
        self._remember(means, len(batch), tokens, seconds)
        return means | {"grad_norm": norm, "lr": rate, "tokens_per_s": tokens / seconds, "seconds": seconds}

    def summary(self, num_steps: int) -> dict[str, Any]:
        """Means over all steps of this run."""
        name = self.job.name
        means = {f"{name}_{key}": total / max(self._weight, 1) for key, total in self._totals.items()}
        return means | {
            f"{name}_steps": num_steps,
            f"{name}_samples": len(self.job.items),
            f"{name}_active": sum(self.job.active),
            f"{name}_tokens_per_s": self._tokens / self._seconds if self._seconds else 0.0,
        }

    def _rows(self, batch: list[int]) -> list[tuple[list[int], bool]]:
        """Rows of sample indices for this rank. One without a row of its own passes the shortest sample at
        weight zero, so that all ranks take part in every exchange.
        """
        active = [i for i in batch if self.job.active[i]]
        shares = plan_rows([len(self.job.items[i].ids) for i in active], self.budget, self.engine.num_ranks)
        filler = min(batch, key=lambda i: len(self.job.items[i].ids))
        return [([active[i] for i in row], True) if row else ([filler], False) for row in shares[self.engine.rank]]

    def _accumulate(self, row: tuple[list[int], bool], batch_size: int, sums: dict[str, float], step: int) -> None:
        indices, counts = row
        packed = pack([self.job.items[i] for i in indices], self.device)
        output = self.engine.model(**self.job.inputs(packed))
        result = self.job.loss(output, packed, indices)
        loss = result.loss.sum() / batch_size * (1.0 if counts else 0.0)
        if not torch.isfinite(loss):
            self._stop(step, indices, f"the loss is {float(loss.detach())}", result.loss.detach())
        self.engine.backward(loss)
        share = 1.0 if counts else 0.0
        for key, values in {"loss": result.loss.detach(), **result.metrics}.items():
            sums[key] = sums.get(key, 0.0) + share * float(values.sum())
        sums["active_fraction"] = sums.get("active_fraction", 0.0) + share * len(indices)
        sums["tokens"] = sums.get("tokens", 0.0) + share * packed.num_tokens

    def _stop(self, step: int, indices: list[int], reason: str, losses: Tensor | None = None) -> None:
        """Write the offending samples out and end the run."""
        path = self.out.with_name(f"{self.out.name}_nonfinite_rank{self.engine.rank}.json")
        values = losses.tolist() if losses is not None else [None] * len(indices)
        rows = [
            {"id": self.job.ids[i], "loss": str(v), "ids": self.job.items[i].ids}
            for i, v in zip(indices, values, strict=True)
        ]
        write_json(path, {"step": step + 1, "reason": reason, "samples": rows})
        raise TrainingError(
            f"{self.job.name}, step {step + 1}: {reason}; the samples concerned are in {path}; "
            "lower the learning rate, or look at their log-probabilities"
        )

    def _remember(self, means: dict[str, float], weight: int, tokens: float, seconds: float) -> None:
        for key, value in means.items():
            self._totals[key] = self._totals.get(key, 0.0) + value * weight
        self._weight += weight
        self._tokens += tokens
        self._seconds += seconds


class _memory_errors:  # noqa: N801
    """Context manager that turns an out-of-memory error into one that names the options to change."""

    def __init__(self, config: OptimConfig) -> None:
        self._config = config

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or is_cpu:
            raise TrainingError(
                f"out of memory with max_tokens={self._config.max_tokens}, checkpointing={self._config.checkpointing}; "
                "lower max_tokens, set checkpointing=full, or train with lora_rank=16"
            ) from error


def _export(job: Job, engine: Engine, out: Path) -> None:
    engine.accelerator.wait_for_everyone()
    if engine.is_main:
        with atomic_path(out) as temporary:
            job.save(engine.unwrapped(), temporary)
    engine.accelerator.wait_for_everyone()
