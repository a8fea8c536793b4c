"""The one-GPU part of `training.py`: Llama-3.1-8B's shape, random bf16 weights, no optimizer step on either side."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
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
from webrl.training.flops import body_parameters, peak_flops, training_flops
from webrl.training.head import token_logprobs
from webrl.training.models import actor_inputs, critic_inputs
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
        ("check", 10, check_kernels),
        ("update", 110, measure_update),
        ("utilisation", 60, measure_utilisation),
        ("head", 5, measure_head),
        ("attention", 15, measure_attention),
        ("compiled", 90, measure_compiled),
        ("float8", 60, measure_float8),
    ]
    for name, needs, section in sections:
        if budget.has(needs, name):
            try:
                figures |= section(models)
            except (RuntimeError, ImportError, ValueError, TypeError, AttributeError, WebRLError) as error:
                print(f"{name} failed: {type(error).__name__}: {str(error)[:600]}", flush=True)
            drop_gradients(models.actor)
    return figures


def train_rows(model: Any, items: Sequence[Item], inputs: Callable[..., dict[str, Any]]) -> None:
    """Forward and backward over packed rows."""
    for row in plan_rows([len(i.ids) for i in items], MAX_TOKENS)[0]:
        model(**inputs(pack([items[i] for i in row], DEVICE))).float().square().mean().backward()


@torch.no_grad()
def score_rows(model: Any, items: Sequence[Item], inputs: Callable[..., dict[str, Any]]) -> None:
    """Forward over packed rows."""
    for row in plan_rows([len(i.ids) for i in items], MAX_TOKENS)[0]:
        model(**inputs(pack([items[i] for i in row], DEVICE)))


def states(items: Sequence[Item]) -> list[Item]:
    """The prompts alone, as the critic sees them."""
    return [Item(item.ids[:-NUM_ACTION], 0) for item in items]


def check_kernels(models: Models) -> Figures:
    """Packed rows against one sample at a time, in bf16: the largest difference of a log-prob."""
    items, actor = make_items((700, 1500, 300, 2000)), models.actor
    checkpoint(actor.lm, "none")
    with torch.no_grad():
        single = torch.cat([actor(**actor_inputs(pack([item], DEVICE))) for item in items])
        packed = actor(**actor_inputs(pack(items, DEVICE)))
        plain = actor.lm(input_ids=torch.tensor([items[0].ids], device=DEVICE)).logits[0, -NUM_ACTION - 1 : -1]
        own = plain.float().log_softmax(-1).gather(1, torch.tensor(items[0].ids[-NUM_ACTION:], device=DEVICE)[:, None])
    error = float((packed - single).abs().max())
    against_plain = float((single[:NUM_ACTION] - own[:, 0]).abs().max())
    print(f"packed against single: {error:.4f}; trimmed and chunked against plain logits: {against_plain:.4f} (bf16)")
    return {"packed_error": round(error, 5), "plain_error": round(against_plain, 5)}


def measure_update(models: Models) -> Figures:
    """Step samples per second of the whole update, ours and the released passes."""
    items, actor, critic = make_items(), models.actor, models.critic
    succeeded = items[::2]  # the others failed and have negative advantages under `webrl_released`

    def ours(policy: str, trained: Sequence[Item], counter: Counter) -> Callable[[], None]:
        kind = "forward+backward" + (", checkpointed" if policy == "full" else "")

        def run() -> None:
            checkpoint(actor.lm, policy)
            score_rows(actor, items, actor_inputs)
            train_rows(critic, states(items), critic_inputs)
            score_rows(critic, states(items), critic_inputs)
            train_rows(actor, trained, actor_inputs)
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
    table("whole update, passes only", rows, ("", "seconds", "samples/s", "forward passes/sample", "peak GiB above"))
    return {
        "lengths": list(LENGTHS),
        "samples_per_s": {name: round(speed, 4) for name, speed in speeds.items()},
        "ratio_vs_released": best_ratio(speeds, "webrl"),
        "ratio_vs_released_webrl_released": best_ratio(speeds, "webrl_released"),
    }


def best_ratio(speeds: dict[str, float], name: str) -> float:
    """Ours at the memory policy that is faster, over the released passes."""
    ours = max(speeds.get(name, 0.0), speeds.get(f"{name}, checkpointing", 0.0))
    return round(ours / speeds["released passes"], 3)


def released_update(models: Models, items: Sequence[Item], counter: Counter) -> None:
    """All passes of the released update."""
    checkpoint(models.actor.lm, "full")
    released_critic_passes(models.released_critic, items, counter, Tensor.backward)
    released_scores(models.released_actor, models.released_critic, items, counter)
    released_actor_passes(models.released_actor, items, counter, Tensor.backward)


def warm_up(models: Models, items: Sequence[Item]) -> None:
    """Every kernel once, gradients allocated."""
    released_update(models, items[:1], Counter())
    checkpoint(models.actor.lm, "none")
    train_rows(models.critic, states(items[:3:2]), critic_inputs)
    train_rows(models.actor, items[:3:2], actor_inputs)
    free()


def measure_utilisation(models: Models, label: str = "") -> Figures:
    """Model-FLOPs utilisation of forward and backward by length and memory policy."""
    actor, peak = models.actor, peak_flops() or 989e12
    parameters = body_parameters(actor.lm)
    train_rows(actor, make_items((4096,)), actor_inputs)  # gradients are held from here on
    rows, best, peaks = [], {}, {}
    for length in (4096, 8192, 16384):
        items = make_items((length,))
        for policy in ("full", "selective", "none"):
            checkpoint(actor.lm, policy)
            try:
                train_rows(actor, items, actor_inputs)
                results = [timed(lambda items=items: train_rows(actor, items, actor_inputs)) for _ in range(3)]
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
    """The same with compiled decoder layers."""
    actor = models.actor
    layers = actor.lm.base_model.layers[:-1]
    started = time.monotonic()
    for layer in layers:
        layer.compile(dynamic=True)
    for policy in ("none", "full"):
        checkpoint(actor.lm, policy)
        train_rows(actor, make_items((1024,)), actor_inputs)
    print(f"compiled in {time.monotonic() - started:.0f} s", flush=True)
    try:
        found = measure_utilisation(models, ", compiled layers")
    finally:
        for layer in layers:
            layer._compiled_call_impl = None
    return {"mfu_compiled": found["mfu"], "mfu_compiled_by_policy": found["mfu_by_policy"]}


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


def measure_attention(_models: Models) -> Figures:
    """Flash against cuDNN attention, forward and backward, at this model's heads; the first call apart."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rows = []
    for length in (4096, 8192, 16384):
        q = torch.randn(1, 32, length, 128, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        k, v = (torch.randn(1, 8, length, 128, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in "kv")
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

            def run(q: Tensor = q, k: Tensor = k, v: Tensor = v, backend: Any = backend) -> None:
                with sdpa_kernel([backend]):
                    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                    out.sum().backward()

            first = timed(run)[0]
            rows.append((length, backend.name, first, min(timed(run)[0] for _ in range(3))))
    table("attention of one layer", rows, ("tokens", "kernel", "first call s", "s"))
    return {"attention_s_16k": {row[1]: round(row[3], 5) for row in rows[-2:]}}


def measure_float8(models: Models) -> Figures:
    """Torchao's float8 training layers: speed of a row, and what they do to the loss and the gradient."""
    from webrl.training.memory_policy import use_float8

    items, actor = make_items((8192,)), models.actor
    row = pack(items, DEVICE)
    checkpoint(actor.lm, "none")

    def loss_and_norm() -> tuple[float, float]:
        drop_gradients(actor)
        loss = -actor(**actor_inputs(row)).mean()
        loss.backward()
        norm = torch.stack([p.grad.float().norm() for p in actor.parameters() if p.grad is not None]).norm()
        return float(loss.detach()), float(norm)

    before, time_before = loss_and_norm(), best_of(lambda: train_rows(actor, items, actor_inputs))
    use_float8(actor.lm)
    checkpoint(actor.lm, "none")
    layers = actor.lm.base_model.layers[:-1]
    for layer in layers:
        layer.compile(dynamic=False)  # float8 casts are slow unless fused
    after, time_after = loss_and_norm(), best_of(lambda: train_rows(actor, items, actor_inputs))
    table(
        "float8 (row-wise), 8,192 tokens, no checkpointing",
        [("bf16", time_before, *before), ("float8, compiled", time_after, *after)],
        ("", "seconds", "loss", "gradient norm"),
    )
    return {
        "float8_speedup": round(time_before / time_after, 3),
        "float8_loss_difference": round(after[0] - before[0], 5),
        "float8_gradient_norm_ratio": round(after[1] / before[1], 4),
    }


def best_of(run: Callable[[], None], repeats: int = 3) -> float:
    """Fastest of some calls, after one to warm up."""
    run()
    return min(timed(run)[0] for _ in range(repeats))


def drop_gradients(actor: Any) -> None:
    """Free all gradients."""
    for parameter in actor.parameters():
        parameter.grad = None
    free()
