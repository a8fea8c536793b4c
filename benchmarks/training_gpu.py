"""The passes of `training.py` on one GPU: Llama-3.1-8B's shape, random bf16 weights, no optimizer step anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from training_flops import body_parameters, peak_flops, training_flops
from training_shapes import (
    DEVICE,
    LENGTHS,
    MAX_TOKENS,
    NUM_ACTION,
    Budget,
    Counter,
    Models,
    build,
    checkpoint,
    free,
    make_items,
    released_actor_passes,
    released_critic_passes,
    released_scores,
    table,
    timed,
)

from webrl.errors import WebRLError
from webrl.training.architectures import compile_layers
from webrl.training.layers.head import token_logprobs
from webrl.training.packing import Item, pack, plan_rows

Figures = dict[str, Any]


def measure_gpu(seconds: float, layers: int, size: str = "8B") -> Figures:
    """Run the sections in order of importance; a section that fails is reported and left out."""
    budget, figures = Budget(seconds), {}
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE
    print(f"{device}, {size}, torch {torch.__version__}, {layers} layers", flush=True)
    torch.manual_seed(0)
    started = time.monotonic()
    models = build(size, layers, torch.bfloat16, DEVICE)
    print(f"model built in {time.monotonic() - started:.0f} s", flush=True)
    sections: list[tuple[str, float, Callable[..., Figures]]] = [
        ("update", 110, measure_update),
        ("utilisation", 60, measure_utilisation),
        ("head", 5, measure_head),
        ("compiled", 200, measure_compiled),
    ]
    for name, needs, section in sections:
        if budget.has(needs, name):
            try:
                figures |= section(models)
            except (RuntimeError, ImportError, ValueError, TypeError, AttributeError, WebRLError) as error:
                print(f"{name} failed: {type(error).__name__}: {str(error)[:600]}", flush=True)
            drop_gradients(models.actor)
    figures["ratio_vs_released"] = best_ratio(figures, "webrl")
    figures["ratio_vs_released_webrl_released"] = best_ratio(figures, "webrl_released")
    return figures


def train_rows(model: Any, items: Sequence[Item]) -> None:
    """Forward and backward over packed rows."""
    for row in plan_rows([len(i.ids) for i in items], MAX_TOKENS)[0]:
        model(pack([items[i] for i in row], DEVICE)).float().square().mean().backward()


@torch.no_grad()
def score_rows(model: Any, items: Sequence[Item]) -> None:
    """Forward over packed rows."""
    for row in plan_rows([len(i.ids) for i in items], MAX_TOKENS)[0]:
        model(pack([items[i] for i in row], DEVICE))


def states(items: Sequence[Item]) -> list[Item]:
    """The prompts alone, as the critic sees them."""
    return [Item(item.ids[:-NUM_ACTION], 0) for item in items]


def measure_update(models: Models, label: str = "") -> Figures:
    """Step samples per second of the whole update, ours and the released passes, on the same kernels."""
    items, actor, critic = make_items(), models.actor, models.critic
    succeeded = items[::2]  # the others failed and have negative advantages under `webrl_released`

    def ours(policy: str, trained: Sequence[Item], counter: Counter) -> Callable[[], None]:
        kind = "forward+backward" + (", checkpointed" if policy == "full" else "")

        def run() -> None:
            checkpoint(actor.lm, policy)
            score_rows(actor, items)
            train_rows(critic, states(items))
            score_rows(critic, states(items))
            train_rows(actor, trained)
            counter.add("reference and perplexity: forward", len(items))
            counter.add(f"critic: {kind}", len(items))
            counter.add("values: forward", len(items))
            counter.add(f"policy: {kind}", len(trained))

        return run

    def released(counter: Counter) -> Callable[[], None]:
        def run() -> None:
            released_update(models, items, counter)

        return run

    runs: dict[str, Callable[[Counter], Callable[[], None]]] = {
        "released passes": released,
        "webrl": lambda c: ours("none", items, c),
        "webrl, checkpointing": lambda c: ours("full", items, c),
        "webrl_released": lambda c: ours("none", succeeded, c),
        "webrl_released, checkpointing": lambda c: ours("full", succeeded, c),
    }
    warm_up(models, items)
    rows, speeds = [], {}
    for name, make in runs.items():
        counter = Counter()
        try:
            seconds, peak = timed(make(counter))
        except torch.OutOfMemoryError:
            print(f"{name}: out of memory", flush=True)
            free()
            continue
        speeds[name] = len(items) / seconds
        rows.append((name, seconds, speeds[name], counter.forward_equivalents(len(items)), peak))
        print(f"passes of {name}: {counter.counts}", flush=True)
        free()
    table(
        f"whole update, passes only{label}",
        rows,
        ("", "seconds", "samples/s", "forward passes/sample", "peak GiB above"),
    )
    return {
        "lengths": list(LENGTHS),
        f"samples_per_s{label and '_compiled'}": {name: round(speed, 4) for name, speed in speeds.items()},
    }


def best_ratio(figures: Figures, name: str) -> float | None:
    """Ours at its fastest over the released passes at their fastest, compiled layers open to both."""
    both = [figures.get(key, {}) for key in ("samples_per_s", "samples_per_s_compiled")]
    ours = [speeds.get(n, 0.0) for speeds in both for n in (name, f"{name}, checkpointing")]
    released = max(speeds.get("released passes", 0.0) for speeds in both)
    return round(max(ours) / released, 3) if released else None


def released_update(models: Models, items: Sequence[Item], counter: Counter) -> None:
    """All passes of the released update."""
    checkpoint(models.actor.lm, "full")
    released_critic_passes(models.released_critic, items, counter, Tensor.backward)
    released_scores(models.released_actor, models.released_critic, items, counter)
    released_actor_passes(models.released_actor, items, counter, Tensor.backward)


def warm_up(models: Models, items: Sequence[Item]) -> None:
    """Every kernel once, short rows and long ones, gradients allocated."""
    released_update(models, items[:2], Counter())
    for policy in ("none", "full"):
        checkpoint(models.actor.lm, policy)
        for part in (items[:1], items[:3:2]):
            train_rows(models.critic, states(part))
            score_rows(models.critic, states(part))
            score_rows(models.actor, part)
            train_rows(models.actor, part)
    free()


def measure_utilisation(models: Models, label: str = "") -> Figures:
    """Model-FLOPs utilisation of forward and backward by length and memory policy."""
    actor, peak = models.actor, peak_flops() or 989e12
    parameters = body_parameters(actor.lm)
    train_rows(actor, make_items((4096,)))  # gradients are held from here on
    rows, best, peaks = [], {}, {}
    for length in (4096, 8192, 16384):
        items = make_items((length,))
        for policy in ("full", "selective", "none"):
            checkpoint(actor.lm, policy)
            try:
                train_rows(actor, items)
                results = [timed(lambda items=items: train_rows(actor, items)) for _ in range(3)]
            except torch.OutOfMemoryError:
                rows.append((length, policy, "out of memory", "", ""))
                free()
                continue
            seconds, memory = min(results)
            mfu = training_flops(parameters, actor.lm.config, [length]) / seconds / peak
            rows.append((length, policy, seconds, mfu, memory))
            best[policy] = max(best.get(policy, 0.0), mfu)
            if length == MAX_TOKENS:
                peaks[policy] = round(memory, 2)
    header = ("tokens", "checkpointing", "s", "MFU", "GiB above")
    table(f"forward and backward of one packed row{label}", rows, header)
    print(
        f"MFU = 6 x ({parameters / 1e9:.2f} G body weights x tokens + attention) / seconds / {peak / 1e12:.0f} TFLOP/s"
    )
    held = torch.cuda.memory_allocated() / 2**30 if DEVICE == "cuda" else 0.0
    return {
        "mfu": round(max(best.values()), 4),
        "mfu_by_policy": {k: round(v, 4) for k, v in best.items()},
        "peak_gib": round(held + max(peaks.values(), default=0.0), 1),
        "peak_gib_above_weights_and_gradients_16k": peaks,
    }


def measure_compiled(models: Models) -> Figures:
    """All of it again with compiled decoder layers."""
    lm = models.actor.lm
    started = time.monotonic()
    compile_layers(lm)
    for policy in ("none", "full"):
        checkpoint(lm, policy)
        train_rows(models.actor, make_items((1024,)))
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    label = ", compiled layers"
    try:
        found = measure_update(models, label)
        used = measure_utilisation(models, label)
    finally:
        undo_compile(lm)
    return found | {"mfu_compiled": used["mfu"], "mfu_compiled_by_policy": used["mfu_by_policy"]}


def undo_compile(lm: Any) -> None:
    """Plain layers again."""
    for layer in lm.base_model.layers[:-1]:
        layer._compiled_call_impl = None


def measure_head(models: Models) -> Figures:
    """Memory of the head by number of predicted positions: chunked against whole."""
    weight = models.actor.lm.get_output_embeddings().weight.detach()
    rows = []
    for count in (1024, 4096, 16384):
        hidden = torch.randn(count, weight.shape[1], device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        targets = torch.randint(0, weight.shape[0], (count,), device=DEVICE)
        _, chunked = timed(lambda h=hidden, t=targets: token_logprobs(h, weight, t).sum().backward())
        _, whole = timed(lambda h=hidden, t=targets: whole_logprobs(h, weight, t).sum().backward())
        rows.append((count, chunked, whole))
    table("head: peak GiB by predicted positions", rows, ("positions", "chunked", "whole log-softmax"))
    return {"head_gib_16k_positions": round(rows[-1][1], 3), "head_gib_16k_positions_whole": round(rows[-1][2], 3)}


def whole_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Log-softmax over all positions at once."""
    return (hidden @ weight.t()).log_softmax(-1).gather(1, targets[:, None])


def drop_gradients(actor: Any) -> None:
    """Free all gradients."""
    for parameter in actor.parameters():
        parameter.grad = None
    free()
