"""The training loop that critic, actor and SFT share.

A batch is `batch_size` samples of the seeded order. Samples whose loss is exactly zero count in the
batch's mean but get no pass. The others are packed into rows, the rows dealt out to the ranks evenly, and the gradient
of the batch's mean loss is accumulated row by row; so the result does not depend on packing or ranks, up to rounding.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from webrl.config import OptimConfig
from webrl.errors import DataError, TrainingError
from webrl.runs.clock import progress, spent_on
from webrl.runs.disk import atomic_path
from webrl.runs.store import write_json
from webrl.training.checkpoint import Checkpoints, run_digest
from webrl.training.devices import ROW_TOKENS, Gradients, Map, add_gradients, receive, row_threads, send
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine
from webrl.training.metrics import MetricLog, read_metrics, summarize
from webrl.training.models import PackedActor, PackedCritic
from webrl.training.objectives import LossOutput
from webrl.training.packing import Item, Pack, pack, plan_rows
from webrl.training.scoring import CPU_ROW_TOKENS
from webrl.training.topology import gather
from webrl.training.trust import TrustRegion

logger = logging.getLogger(__name__)
Results = list[tuple[list[int], dict[str, Tensor]]]
"""Of each row of one step: its sample indices, and per-sample metrics."""


@dataclass(frozen=True)
class Batch:
    """Samples of one optimizer step."""

    own: list[int]
    """The loss is the mean over them."""
    beside: list[int] = field(default_factory=list)
    """Of the second stream."""


@dataclass(frozen=True)
class Job:
    """A model, its samples and its loss."""

    name: str
    """Prefix of the metrics: `actor`, `critic`, `orm`."""
    model: PackedActor | PackedCritic
    """On the CPU."""
    items: Sequence[Item]
    """Samples."""
    active: Sequence[bool]
    """False for samples whose loss is exactly zero for every policy."""
    ids: Sequence[str]
    """Names of the samples, for error reports."""
    loss: Callable[[Tensor, Pack, list[int]], LossOutput]
    """(model output, row, sample indices) -> per-sample losses."""
    save: Callable[[dict[str, Tensor], Path], None]
    """(trained weights by name, folder): write the finished model."""
    histograms: tuple[str, ...] = ()
    """Metrics that are also logged sample by sample, as `<metric>_values`."""
    heldout: Sequence[Item] = ()
    """The mean of their losses is logged as `val_loss`; they do not change the training."""
    watch_every: int = 0
    """Optimizer steps between two of these; 0: after the last step only, where it is in any case."""
    beside: range = range(0)
    """Samples at the end of `items` that are a separate stream (demonstrations): each batch is paired with a batch of
    them, whose mean loss times `beside_weight` is added to its own. Metrics named `imitation_…` are theirs."""
    beside_weight: float = 0.0
    trust: TrustRegion | None = None
    """Ends a policy update early."""


def train(job: Job, config: OptimConfig, *, out: Path, seed: int, metrics_path: Path, device: str) -> dict[str, Any]:
    """Train, save to `out` (atomically), return means over the run: `<name>_loss`, `<name>_steps`, ….

    Resumes from the newest training state of an interrupted run with the same config and data.

    Raises:
        DataError: no samples.
        TrainingError: non-finite loss or gradient, out of memory, or a state that does not fit.
    """
    if not job.items:
        raise DataError(f"nothing to train the {job.name} on: the data set is empty")
    is_idle = not any(job.active)
    if is_idle:
        logger.warning("%s: the loss of all %d samples is zero; the model is left as it is", job.name, len(job.items))
    torch.manual_seed(seed)
    with memory_errors(config):
        engine = open_engine(job.model, config, device)
    checkpoints = Checkpoints(out, run_digest(config, seed, job.items))
    num_own = len(job.items) - len(job.beside)
    batches = [] if is_idle else [Batch(own) for own in sample_batches(num_own, config, seed)]
    if batches and job.beside and job.beside_weight:  # with the share that each has of the second stream
        shares = sample_batches(len(job.beside), config.model_copy(update={"steps": len(batches)}), seed)
        mixed = zip(batches, shares, strict=True)
        batches = [Batch(batch.own, [job.beside[i] for i in share]) for batch, share in mixed]
    with row_threads(engine.num_threads) as over:
        loop = _Loop(job, config, engine, device, len(batches), out, over)
        if job.trust:
            job.trust.num_steps = len(batches)
            loop.before = [loop.score(part) for part in job.trust.parts]
            job.trust.keep(engine.full_state(), 0)
        first = checkpoints.restore(engine)
        if first and job.trust:  # a state is written after a check that was passed
            job.trust.keep(engine.full_state(), first)
        log = MetricLog(metrics_path, job.name, first) if engine.is_main else None
        with progress(len(batches), job.name, "steps", initial=first, silent=not engine.is_main) as bar:
            for step in range(first, len(batches)):
                with spent_on("gradient steps"):
                    values = loop.step(step, batches[step])
                if job.trust and job.trust.stopped:  # by a loss or a gradient that is not finite
                    break
                bar.set_postfix_str(f"loss {values['loss']:.4f}")
                bar.update()
                is_last = step + 1 == len(batches)
                is_watched = is_last or (job.watch_every > 0 and (step + 1) % job.watch_every == 0)
                if job.heldout and is_watched:
                    values["val_loss"] = loop.validate()
                is_saved = config.save_every > 0 and (step + 1) % config.save_every == 0 and not is_last
                if job.trust and (is_saved or job.trust.is_due(step + 1, values.get("kl", 0.0))):
                    values |= loop.check_region(step + 1, is_last=is_last)
                if log:
                    log.write(step + 1, values)
                if job.trust and job.trust.stopped:
                    break
                if is_saved:
                    checkpoints.save(engine, step + 1)
    if job.trust and job.trust.stopped:
        kept = f"{job.trust.kept_steps} of {len(batches)} steps are kept"
        logger.warning("%s at learning rate %g: %s; %s", job.name, config.lr, job.trust.stopped, kept)
    if job.trust and job.trust.retries:
        engine.close()
        if engine.is_main:
            checkpoints.discard()
        engine.barrier()
        return {}
    state = job.trust.weights if job.trust and job.trust.stopped else engine.full_state()
    with spent_on("model files"):
        if engine.is_main:
            with atomic_path(out) as temporary:
                job.save(state, temporary)
        engine.barrier()
    engine.close()
    if log is None:
        return {}
    checkpoints.discard()
    counts: dict[str, Any] = {"steps": len(batches), "samples": num_own, "active": sum(job.active[:num_own])}
    if job.trust and job.trust.stopped:
        counts |= {"kept_steps": job.trust.kept_steps, "stopped": job.trust.stopped}
    return summarize(read_metrics(metrics_path, job.name), job.name) | {
        f"{job.name}_{key}": value for key, value in counts.items()
    }


def sample_batches(num_items: int, config: OptimConfig, seed: int) -> list[list[int]]:
    """Item indices of every optimizer step, in a seeded order that does not depend on ranks or packing.

    Each epoch is its own permutation, and its last batch may be smaller (its loss is the mean over its own samples).
    A fractional number of epochs ends within one; `config.steps` goes round for that many steps instead.
    """
    if not num_items:
        return []
    epochs = -(-config.steps // -(-num_items // config.batch_size)) if config.steps else config.epochs
    left = max(1, round(num_items * epochs))
    batches: list[list[int]] = []
    epoch = 0
    while left > 0:
        order = list(range(num_items))
        random.Random(f"{seed}:{epoch}").shuffle(order)
        order = order[:left]
        batches += [order[start : start + config.batch_size] for start in range(0, len(order), config.batch_size)]
        left -= len(order)
        epoch += 1
    return batches[: config.steps or None]


def learning_rate(step: int, num_steps: int, config: OptimConfig) -> float:
    """Rate of optimizer step `step` (0-based): linear warm-up, then constant, cosine or linear decay to zero."""
    warmup = round(config.warmup_ratio * num_steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, num_steps - warmup)
    if config.schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * progress))
    return config.lr * (1 - progress) if config.schedule == "linear" else config.lr


class _Loop:
    """The state that the steps of one run share."""

    def __init__(
        self, job: Job, config: OptimConfig, engine: Engine, device: str, num_steps: int, out: Path, over: Map
    ) -> None:
        self.job, self.config, self.engine, self.num_steps, self.out = job, config, engine, num_steps, out
        self.over = over
        self.before: list[dict[int, Tensor]] = []
        """Log-probabilities of the parts of the trust region's sample before the first step."""
        self.device = engine.accelerator.device
        self.budget = min(config.max_tokens, CPU_ROW_TOKENS) if device == "cpu" else config.max_tokens
        # once: a small model's step would wait for hundreds of modules to be switched
        self.engine.model.train()

    def step(self, step: int, batch: Batch) -> dict[str, Any]:
        """One optimizer step; returns the loss, and metrics averaged over the samples that they are of, of all ranks.

        A loss or a gradient that is not a finite number ends the update; the weights are as they were.

        Raises:
            TrainingError: it does so outside a trust region.
        """
        started = time.perf_counter()
        results = self._rows(batch)
        # what is logged is on its way before the update, so that neither waits for the other
        sums = {key: torch.stack([values[key].sum() for _, values in results]).sum() for key in results[0][1]}
        # a fill, not a copy from the host, which would wait for all that the GPU was given
        num_active = sum(i not in self.job.beside for indices, _ in results for i in indices)
        sums["active_fraction"] = torch.full((), float(num_active), device=self.device)
        sums = self.engine.reduce_sums(sums)
        on_host = receive(torch.stack(list(sums.values())))
        rows = [([n for n, i in enumerate(indices) if i not in self.job.beside], values) for indices, values in results]
        # picking by a list makes a GPU wait for the host: not where all are wanted
        chosen = [(own if self.job.beside else slice(None), values) for own, values in rows if own]
        histograms = {key: [receive(values[key][own]) for own, values in chosen] for key in self.job.histograms}
        rate = learning_rate(step, self.num_steps, self.config)
        with memory_errors(self.config):
            norm = self.engine.step(rate, sums["loss"])
        totals = dict(zip(sums, on_host().tolist(), strict=True))
        means = {key: total / len(batch.own) for key, total in totals.items()}
        means |= {k: v / max(len(batch.beside), 1) for k, v in totals.items() if k.startswith("imitation_")}
        means["loss"] = totals["loss"] / len(batch.own)
        for what, number in (("loss", means["loss"]), ("gradient norm", norm)):
            if not math.isfinite(number):
                self._stop(step, batch, f"the {what} is {number}", results)
                return means
        seconds = time.perf_counter() - started
        num_tokens = sum(len(self.job.items[i].ids) for i in batch.own + batch.beside if self.job.active[i])
        speed = {"tokens_per_s": num_tokens / seconds, "seconds": seconds, "peak_gib": peak_memory_gib()}
        own_values = {key: [v for row in copied for v in row().tolist()] for key, copied in histograms.items()}
        parts = gather(own_values) if own_values else []
        logged = {f"{key}_values": [round(v, 5) for part in parts for v in part[key]] for key in self.job.histograms}
        return means | {"grad_norm": norm, "lr": rate} | speed | logged

    def validate(self) -> float:
        """Return the mean loss of the held-out samples."""
        items, packs = self.job.heldout, self.job.model.packs
        lengths = [len(item.ids) for item in items]
        rows = plan_rows(lengths, self.budget, self.engine.num_ranks, packs=packs)[self.engine.rank]
        self.engine.model.eval()
        total = torch.zeros((), device=self.device)
        with torch.no_grad():
            for row in rows:
                packed = pack([items[i] for i in row or [0]], self.device)
                result = self.job.loss(self.engine.model(row=packed), packed, row or [0])
                total += result.loss.sum() * bool(row)
        self.engine.model.train()
        return float(self.engine.reduce_sums({"loss": total})["loss"]) / len(items)

    def check_region(self, step: int, *, is_last: bool) -> dict[str, float]:
        """Score as much of the sample as is needed; keep weights within the region, but the last, which are saved."""
        trust = self.job.trust
        assert trust is not None
        with spent_on("trust region"):
            sums = {name: torch.zeros((), dtype=torch.float64, device=self.device) for name in ("kl", "drop")}
            size, metrics = 0, dict[str, float]()
            for part, before in zip(trust.parts, self.before, strict=True):
                for i, after in sorted(self.score(part).items()):  # in one order, whichever thread was first
                    ratio = after - before[i]
                    sums["kl"] += ratio.exp() - 1 - ratio
                    sums["drop"] -= ratio * trust.is_success[size + i]
                size += len(part)
                metrics = trust.measure({k: float(v) for k, v in self.engine.reduce_sums(sums).items()}, size)
                if trust.is_far_inside(metrics):
                    break
            trust.check(metrics, step)
            if not trust.stopped and not is_last:
                trust.keep(self.engine.full_state(), step)
        return metrics

    def score(self, items: Sequence[Item]) -> dict[int, Tensor]:
        """Return the log-probability of each item's targets, of the items that this rank computes."""
        lengths, threads = [len(item.ids) for item in items], self.engine.num_threads
        shares = plan_rows(lengths, self.budget, max(self.engine.num_ranks, threads), packs=self.job.model.packs)
        scored: dict[int, Tensor] = {}

        def work(rows: list[list[int]]) -> None:
            with torch.no_grad():
                for row in rows:
                    packed = pack([items[i] for i in row or [0]], self.device)
                    logprobs = self.engine.model(row=packed)
                    sums = logprobs.new_zeros(packed.num_samples).index_add(0, packed.target_sample, logprobs)
                    scored.update(zip(row, sums.double(), strict=False))

        self.engine.model.eval()
        if threads > 1:
            self.over(work, [list(filter(None, rows)) for rows in shares])
        else:
            work(shares[self.engine.rank])
        self.engine.model.train()
        return scored

    def _rows(self, batch: Batch) -> Results:
        """Accumulate the gradient of this rank's rows, one after the other, or side by side by threads.

        A rank without its own row passes the shortest sample at weight zero, so that all take part in every
        exchange. Each thread adds up its own rows' gradients, so that the order of the sum stays the same.
        """
        job, engine = self.job, self.engine
        samples = batch.own + batch.beside
        active = [i for i in samples if job.active[i]]
        in_threads = engine.num_threads > 1 and bool(active)
        num_shares, budget = engine.num_ranks, self.budget
        if in_threads:
            num_shares, budget = engine.num_threads, min(budget, ROW_TOKENS)
        shares = plan_rows([len(job.items[i].ids) for i in active], budget, num_shares, packs=job.model.packs)
        filler = min(samples, key=lambda i: len(job.items[i].ids))

        def work(rows: list[list[int]]) -> tuple[Results, Gradients | None]:
            results: Results = []
            total = None
            for number, row in enumerate(rows):
                indices = [active[i] for i in row]
                with engine.micro_batch(is_last=number == len(rows) - 1), memory_errors(self.config):
                    shown = indices or [filler]
                    packed = pack([job.items[i] for i in shown], self.device)
                    result = job.loss(engine.model(row=packed), packed, shown)
                    losses, share = result.loss, float(bool(indices))
                    if batch.beside:  # as if all were the batch's own
                        factor = job.beside_weight * len(batch.own) / len(batch.beside)
                        weights = torch.tensor([factor if i in job.beside else 1.0 for i in shown])
                        losses = losses * send(weights, self.device)
                    values = {"loss": losses.detach(), **result.metrics}
                    results.append((indices, {key: value * share for key, value in values.items()}))
                    loss = losses.sum() * (share / len(batch.own))
                    if in_threads:
                        total = add_gradients(total, engine.gradients(loss))
                    else:
                        engine.backward(loss)
            return results, total

        if not in_threads:
            return work(shares[engine.rank])[0]
        parts = self.over(work, [list(filter(None, rows)) for rows in shares])
        for _, gradients in parts:
            if gradients:
                engine.take(gradients)
        return [result for results, _ in parts for result in results]

    def _stop(self, step: int, batch: Batch, reason: str, results: Results) -> None:
        """Write the offending samples out (all of the batch if no loss stands out) and end the update."""
        path = self.out.with_name(f"{self.out.name}_nonfinite_rank{self.engine.rank}.json")
        losses = {i: v for indices, values in results for i, v in zip(indices, values["loss"].tolist(), strict=False)}
        bad = [i for i, value in losses.items() if not math.isfinite(value)] or batch.own + batch.beside
        rows = [{"id": self.job.ids[i], "loss": str(losses.get(i)), "ids": self.job.items[i].ids} for i in bad]
        write_json(path, {"step": step + 1, "reason": reason, "samples": rows})
        if self.job.trust is None:
            raise TrainingError(
                f"{self.job.name}, step {step + 1}: {reason}; the samples concerned are in {path}; "
                "lower the learning rate, or look at their log-probabilities"
            )
        self.job.trust.stopped = f"step {step + 1}: {reason} ({path.name})"
        self.job.trust.may_retry &= step > 0  # before the first update it is not the learning rate's


@contextlib.contextmanager
def memory_errors(config: OptimConfig) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the options to change."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not isinstance(error, torch.OutOfMemoryError | MemoryError) and "allocate memory" not in str(error):
            raise
        held = ""
        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            gib = (total - free - torch.cuda.memory_reserved()) / 2**30
            held = f", and {gib:.0f} of the GPU's {total / 2**30:.0f} GiB held outside of this training"
        raise TrainingError(
            f"out of memory with max_tokens={config.max_tokens}, checkpointing={config.checkpointing}, engine="
            f"{config.engine}{held}; lower max_tokens, set checkpointing=full or engine=zero3_offload, or lora_rank=16"
        ) from error


def peak_memory_gib() -> float:
    """Most memory held so far: of the CUDA device, or resident in this process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 2**30
