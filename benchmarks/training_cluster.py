"""The part of `training.py` for several GPUs: the whole update with optimizer, started by torchrun, one rank a GPU.

Ours: FSDP2 with float32 masters, bf16 compute, the cheapest memory policy that fits, without and with compiled layers.
The re-enactment: DeepSpeed ZeRO-3 with checkpointing, on its own and with parameters and optimizer in CPU memory, and
ZeRO-2. One model serves as critic and actor in both (same shape, one at a time). Then one GPU alone for the scaling,
and the 70B shape with LoRA.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_flops import body_parameters, peak_flops, training_flops
from training_shapes import DEVICE, MAX_TOKENS, NUM_ACTION, Budget, build, checkpoint, free, make_items, table

from webrl.config import OptimConfig
from webrl.config.resources import load_plan
from webrl.errors import WebRLError
from webrl.training import topology as ranks
from webrl.training.architectures import compile_layers
from webrl.training.engines import open_engine
from webrl.training.engines.ddp import Engine
from webrl.training.engines.fsdp import FsdpEngine
from webrl.training.lora import add_adapters
from webrl.training.models import hidden_states
from webrl.training.packing import Item, Pack, pack, plan_rows

CLUSTER_LENGTHS = (4096, 16384, 6656, 9728)
"""Step samples of each rank; every other one failed."""
Figures = dict[str, Any]


class BothPacked(nn.Module):
    """Log-probs of a packed row, or values where it has no targets; weights that are not used get a zero gradient."""

    def __init__(self, lm: Any, score: nn.Module) -> None:
        super().__init__()
        self.lm, self.score = lm, score

    def forward(self, row: Pack) -> Tensor:
        """[N] log-probabilities or [B] value logits."""
        hidden = hidden_states(self.lm, row)
        head = self.lm.get_output_embeddings()
        if row.targets.numel():
            logprobs: Tensor = head(hidden, row.targets)
            return logprobs + 0.0 * self.score(hidden[:1]).sum()
        dummy = head(hidden[:1], row.input_ids[0, :1]).sum()
        values: Tensor = self.score(hidden)[:, 0].float()
        return values + 0.0 * dummy


class BothReleased(nn.Module):
    """The released passes: log-softmax over the vocabulary at every position, or the value at the last."""

    def __init__(self, lm: Any, score: nn.Module) -> None:
        super().__init__()
        self.lm, self.score = lm, score

    def forward(self, ids: Tensor, num_targets: int) -> Tensor:
        """[num_targets] log-probabilities, or with 0 targets [1] value logit."""
        hidden = self.lm.model(input_ids=ids, use_cache=False).last_hidden_state
        value: Tensor = self.score(hidden[:, -1])[:, 0].float()
        if num_targets == 0:
            return value + 0.0 * self.lm.lm_head(hidden[:, -1]).float().sum()
        logprobs = functional.log_softmax(self.lm.lm_head(hidden)[:, :-1], dim=-1)  # [1, T-1, V]
        return logprobs.gather(2, ids[:, 1:, None])[0, -num_targets:, 0] + 0.0 * value.sum()


def main(seconds: float, layers: int, size: str) -> None:
    """Run the sections; rank 0 prints tables and one JSON line."""
    ranks.join(DEVICE)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    budget, figures, speeds = Budget(seconds if ranks.is_main() else 1e9), {}, {}
    sections: list[tuple[str, float, Callable[[int, str], Figures]]] = [
        ("ours", 60, measure_ours),
        ("ZeRO-3", 70, lambda layers, size: measure_released(layers, size, "zero3")),
        ("one GPU", 30, measure_alone),
        ("ours, compiled", 60, lambda layers, size: measure_ours(layers, size, compiled=True)),
        ("one GPU, compiled", 40, lambda layers, size: measure_alone(layers, size, compiled=True)),
        ("ZeRO-2", 70, lambda layers, size: measure_released(layers, size, "zero2")),
        ("ZeRO-3 offload", 100, lambda layers, size: measure_released(layers, size, "zero3_offload")),
        ("70B LoRA", 50, measure_lora),
    ]
    for name, needs, section in sections:
        if not ranks.broadcast(budget.has(needs, name)):
            continue
        started = time.monotonic()
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        try:
            found = section(layers, size)
        except (RuntimeError, ImportError, ValueError, TypeError, AttributeError, AssertionError, WebRLError) as error:
            say(f"{name} failed on rank {ranks.world()[1]}: {type(error).__name__}: {str(error)[:800]}", always=True)
            break  # ranks that failed apart can no longer meet
        say(f"{name}: {found} ({time.monotonic() - started:.0f} s)")
        speeds |= {name: found.pop("samples_per_s")} if "samples_per_s" in found else {}
        figures |= found
        free()
    if ranks.is_main():
        report(figures, speeds)
    ranks.barrier()
    ranks.leave()


def report(figures: Figures, speeds: dict[str, float]) -> None:
    """Table and JSON line."""
    size, _ = ranks.world()
    table(f"whole update with optimizer, {size} GPUs", list(speeds.items()), ("", "samples/s"))
    for suffix in ("", ", compiled"):
        if not (ours := speeds.get(f"ours{suffix}")):
            continue
        label = suffix and "_compiled"
        for name, key in (("ZeRO-3", ""), ("ZeRO-2", "_zero2"), ("ZeRO-3 offload", "_offload")):
            if name in speeds:
                figures[f"ratio_vs_released{key}{label}"] = round(ours / speeds[name], 3)
        if alone := speeds.get(f"one GPU{suffix}"):
            figures[f"scaling{label}"] = round(ours / (size * alone), 3)
    figures["samples_per_s"] = {name: round(speed, 4) for name, speed in speeds.items()}
    figures["gpus"] = size
    print(json.dumps(figures), flush=True)


def measure_ours(layers: int, size: str, *, compiled: bool = False) -> Figures:
    """Our update under FSDP2."""
    models = build(size, layers, torch.float32, DEVICE)
    model = BothPacked(models.actor.lm, models.critic.lm.score)
    if compiled:
        compile_layers(model.lm)
    engine = open_engine(model, OptimConfig(precision="bf16", engine="fsdp2"), DEVICE)
    del models
    free()

    def row(length: int) -> None:
        our_pass(engine, make_items((length,)), train=True, value=False)

    row(1024)
    engine.step(1e-6)  # the optimizer's state is there before the room that is left is measured
    policy = pick_policy(engine.module.lm, row)
    engine.optimizer.zero_grad()
    free()
    seconds = timed_update(engine, lambda items: our_update(engine, items), policy)
    engine.close()
    parameters = body_parameters(model.lm)
    # critic and actor train, values and reference are forward passes
    work = training_flops(parameters, model.lm.config, CLUSTER_LENGTHS) * (2 + 2 / 3)
    label = "_compiled" if compiled else ""
    figures = {
        "samples_per_s": total_samples() / seconds,
        f"policy{label}": policy,
        f"peak_gib{label}": peak_gib(),
    }
    if peak_flops():
        figures[f"mfu{label}"] = round(work / seconds / (peak_flops() or 1), 4)
    return figures


def pick_policy(lm: Any, row: Callable[[int], None]) -> str:
    """The cheapest memory policy in which a row of `MAX_TOKENS` fits on every rank, judged by a quarter of it.

    Memory grows with the row's length; running out of it would leave the ranks in different places.
    """
    for policy in ("none", "selective"):
        checkpoint(lm, policy)
        row(MAX_TOKENS // 4)  # warms up, too
        if DEVICE == "cpu":
            return policy
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        row(MAX_TOKENS // 4)
        above = 4 * (torch.cuda.max_memory_allocated() - held)
        free()
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        say(f"  {policy}: {held / 2**30:.1f} GiB held, about {above / 2**30:.1f} GiB above for a row")
        if ranks.broadcast(above < free_bytes - 0.04 * total_bytes):
            return policy
    return "full"


def timed_update(engine: Engine, update: Callable[[Sequence[Item]], None], policy: str) -> float:
    """Seconds of one update of this rank's samples, after a small one to warm up; all ranks start together."""
    checkpoint(engine.module.lm, policy)
    update(make_items((2048, 8192)))
    synchronize()
    started = time.perf_counter()
    update(make_items(CLUSTER_LENGTHS, seed=ranks.world()[1]))
    synchronize()
    return time.perf_counter() - started


def our_update(engine: Engine, items: Sequence[Item]) -> None:
    """Reference, critic with optimizer step, values, actor with optimizer step."""
    our_pass(engine, items, train=False, value=False)
    our_pass(engine, items, train=True, value=True)
    engine.step(1e-6)
    our_pass(engine, items, train=False, value=True)
    our_pass(engine, items, train=True, value=False)
    engine.step(1e-6)


def our_pass(engine: Engine, items: Sequence[Item], *, train: bool, value: bool) -> None:
    """One pass over this rank's packed rows."""
    if value:
        items = [Item(item.ids[:-NUM_ACTION], 0) for item in items]
    rows = plan_rows([len(item.ids) for item in items], MAX_TOKENS)[0]
    for number, row in enumerate(rows):
        packed = pack([items[i] for i in row], engine.accelerator.device)
        if train:
            with engine.micro_batch(is_last=number == len(rows) - 1):
                engine.backward(engine.model(packed).float().square().sum() / len(items) / engine.num_ranks)
        else:
            with torch.no_grad():
                engine.model(packed)


def measure_released(layers: int, size: str, name: str) -> Figures:
    """The re-enactment under DeepSpeed."""
    models = build(size, layers, torch.bfloat16, DEVICE if name == "zero3" else "cpu" if size == "tiny" else DEVICE)
    lm, score = models.actor.lm, models.critic.lm.score
    checkpoint(lm, "full")
    engine = open_engine(BothReleased(lm, score), OptimConfig(precision="bf16", engine=name), DEVICE)
    del models, lm, score
    free()
    seconds = timed_update(engine, lambda items: released_update(engine, items), "full")
    engine.close()
    return {"samples_per_s": total_samples() / seconds, f"peak_gib_{name}": peak_gib()}


def released_update(engine: Engine, items: Sequence[Item]) -> None:
    """Critic on s and s' with optimizer step, values of both, reference, policy with optimizer step."""
    device = engine.accelerator.device
    ids = [torch.tensor([item.ids], device=device) for item in items]

    def train(passes: Sequence[tuple[Tensor, int]]) -> None:
        for number, (row, targets) in enumerate(passes):
            with engine.micro_batch(is_last=number == len(passes) - 1):
                engine.backward(engine.model(row, targets).float().square().sum() / len(passes) / engine.num_ranks)
        engine.step(1e-6)

    train([(row, 0) for row in ids for _ in ("s", "s'")])
    with torch.no_grad():
        for row in ids:
            for targets in (0, 0, NUM_ACTION):
                engine.model(row, targets)
    train([(row, NUM_ACTION) for row in ids])


def measure_alone(layers: int, size: str, *, compiled: bool = False) -> Figures:
    """The same passes on every GPU by itself, bf16 weights, no exchange, no optimizer."""
    models = build(size, layers, torch.bfloat16, DEVICE)
    model = BothPacked(models.actor.lm, models.critic.lm.score)
    if compiled:
        compile_layers(model.lm)
    items = make_items(CLUSTER_LENGTHS, seed=ranks.world()[1])

    def update(items: Sequence[Item]) -> None:
        for train, value in ((False, False), (True, True), (False, True), (True, False)):
            used = [Item(i.ids[:-NUM_ACTION], 0) for i in items] if value else items
            for row in plan_rows([len(i.ids) for i in used], MAX_TOKENS)[0]:
                packed = pack([used[i] for i in row], device_of_rank())
                if train:
                    model(packed).float().square().mean().backward()
                else:
                    with torch.no_grad():
                        model(packed)

    def row(length: int) -> None:
        model(pack(make_items((length,)), device_of_rank())).float().square().mean().backward()

    policy = pick_policy(model.lm, row)
    checkpoint(model.lm, policy)
    update(make_items((2048, 8192)))
    synchronize()
    started = time.perf_counter()
    update(items)
    synchronize()
    speed = len(items) / (time.perf_counter() - started)
    return {"samples_per_s": speed, f"policy_alone{'_compiled' if compiled else ''}": policy}


def measure_lora(layers: int, size: str) -> Figures:
    """70B shape: rank-16 adapters on a frozen base, all sharded; one row of 8,192 tokens a GPU, full checkpointing."""
    shape, depth = ("70B", 80) if size == "8B" else (size, layers)
    models = build(shape, depth, torch.float32, "meta")
    model = BothPacked(models.actor.lm, models.critic.lm.score)
    add_adapters(model, OptimConfig(lora_rank=16))
    model.score.requires_grad_(False)
    config = OptimConfig(precision="bf16", engine="fsdp2", lora_rank=16)
    engine = RandomFsdpEngine(model, config, DEVICE, load_plan("fsdp2"))
    checkpoint(model.lm, "full")

    def step(length: int) -> None:
        our_pass(engine, make_items((length,)), train=True, value=False)
        engine.step(1e-6)

    step(1024)
    synchronize()
    started = time.perf_counter()
    step(MAX_TOKENS // 2)
    synchronize()
    seconds = time.perf_counter() - started
    flops = training_flops(body_parameters(model.lm), model.lm.config, [MAX_TOKENS // 2]) * 2 / 3  # no weight gradients
    figures = {
        "lora_70b_tokens_per_s_per_gpu": round(MAX_TOKENS // 2 / seconds, 1),
        "lora_70b_peak_gib": peak_gib(),
    }
    if peak_flops():
        figures["lora_70b_flops_utilisation"] = round(flops / seconds / (peak_flops() or 1), 4)
    say(f"70B shape, LoRA rank 16, FSDP2: {figures}")
    return figures


class RandomFsdpEngine(FsdpEngine):
    """Fills a skeleton with random weights, shard by shard."""

    def fill(self, model: nn.Module, weights: dict[str, Any], buffers: dict[str, Tensor]) -> None:
        """Normal weights; rotary frequencies anew."""
        del weights, buffers
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().normal_(std=0.02)  # type: ignore[operator]
        rotary = model.lm.base_model.rotary_emb  # type: ignore[union-attr]
        fresh = type(rotary)(model.lm.config)  # type: ignore[union-attr]
        for name, buffer in rotary.named_buffers():
            buffer.copy_(fresh.get_buffer(name))


def total_samples() -> int:
    """Step samples of all ranks."""
    return len(CLUSTER_LENGTHS) * ranks.world()[0]


def device_of_rank() -> torch.device:
    """Device of this rank."""
    return torch.device("cuda", torch.cuda.current_device()) if DEVICE == "cuda" else torch.device("cpu")


def synchronize() -> None:
    """Device idle on every rank."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    ranks.barrier()


def peak_gib() -> float:
    """Most device memory held since the section began, or since `pick_policy` last looked."""
    return round(torch.cuda.max_memory_allocated() / 2**30, 1) if DEVICE == "cuda" else 0.0


def say(text: str, *, always: bool = False) -> None:
    """Print on rank 0."""
    if always or ranks.is_main():
        print(text, flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
