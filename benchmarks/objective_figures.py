"""Tables and figures of `benchmarks/objective.py`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webrl.evaluate import wilson_interval
from webrl_report.page.figures import clean_axes, new_figure, save_figure

Trace = dict[str, Any]
CLASSES: tuple[tuple[str, str, Callable[[int, float], bool]], ...] = (
    ("success, p ≥ 0.5", "#1f5fa8", lambda outcome, p: outcome == 1 and p >= 0.5),
    ("success, p < 0.5", "#74a9d8", lambda outcome, p: outcome == 1 and p < 0.5),
    ("failure, p ≥ 0.5", "#8c3a06", lambda outcome, p: outcome == 0 and p >= 0.5),
    ("failure, p < 0.5", "#e08a3c", lambda outcome, p: outcome == 0 and p < 0.5),
)
"""Name, colour, and which samples by outcome and probability under π_ref."""


def members(trace: Trace, wanted: Callable[[int, float], bool]) -> list[int]:
    """Indices of a class's samples."""
    return [i for i, s in enumerate(trace["samples"]) if wanted(s["outcome"], math.exp(s["log_p_ref"]))]


def print_steps(traces: Sequence[Trace]) -> None:
    """A table per objective: what each class of samples goes through."""
    for trace in traces:
        ratio = np.array(trace["log_ratio"])  # [steps + 1, samples]
        norms, noise = trace["grad_norm"], trace["noise"]["max"]
        print(
            f"\n{trace['label']} (β = {trace['beta']:g}, {trace['run']}): gradient norm median {np.median(norms):.2g},"
        )
        print(f"largest {max(norms):.3g}; trainer against scorer {noise:.1g} nats a token at most")
        head = f"{'class':<18}{'n':>4}{'A':>7}{'|∇log π|':>10}{'largest step':>14}{'log-ratio after, 5/50/95 %':>30}"
        print(f"{head}  share of gradient")
        for name, _, wanted in CLASSES:
            index = members(trace, wanted)
            if not index:
                continue
            moves = np.abs(np.diff(ratio[:, index], axis=0)).max(0)
            end = np.percentile(ratio[-1, index], [5, 50, 95])
            norm = np.median([trace["gradients"][0]["log_prob"][i] for i in index])
            shares = " ".join(f"{sum(g['share'][i] for i in index):.2f}" for g in trace["gradients"])
            advantage = np.median([trace["samples"][i]["advantage"] for i in index])
            print(f"{name:<18}{len(index):>4}{advantage:>7.2f}{norm:>10.2f}{np.median(moves):>14.2f}"
                  f"{end[0]:>12.2f}{end[1]:>9.2f}{end[2]:>9.2f}  {shares}")  # fmt: skip
        top = [sorted(g["loss"], reverse=True) for g in trace["gradients"]]
        effective = " ".join(f"{sum(t) ** 2 / max(sum(x * x for x in t), 1e-12):.0f}" for t in top)
        print(f"samples that make up the gradient, (Σ|g|)²/Σ|g|² of {len(top[0])}, look by look: {effective}")
        past, top = np.array([past_and_top(batch, trace["beta"]) for batch in trace["batches"]]).T
        print(f"of a batch's loss, samples past their target hold {past.mean():.2f} on average, more than half in")
        print(f"{(past > 0.5).sum()} of {len(past)} batches; one sample holds more than half in {(top > 0.5).sum()}")


def past_and_top(batch: dict[str, list[float]], beta: float) -> tuple[float, float]:
    """Shares of a batch's loss: of samples whose β r is past A on A's side, and of the largest one."""
    advantage, losses = np.array(batch["advantage"]), np.array(batch["loss"])
    past = advantage * (beta * np.array(batch["log_ratio"]) - advantage) > 0
    total = max(float(losses.sum()), 1e-12)
    return float(losses[past].sum()) / total, float(losses.max(initial=0)) / total


def pooled(results: Sequence[Trace]) -> list[tuple[str, int, int, list[str]]]:
    """(label, successes, episodes, counts by run) by objective, best first."""
    by_label: dict[str, list[Trace]] = defaultdict(list)
    for result in results:
        by_label[result["label"]].append(result)
    rows = []
    for label, group in by_label.items():
        counts = [f"{r['run']} {r['successes']}/{r['episodes']}" for r in sorted(group, key=lambda r: str(r["run"]))]
        rows.append((label, sum(r["successes"] for r in group), sum(r["episodes"] for r in group), counts))
    return sorted(rows, key=lambda row: -row[1] / row[2])


def print_success(results: Sequence[Trace]) -> None:
    """Pooled success by objective with Wilson 95 %, and the counts of each run."""
    for label, successes, episodes, counts in pooled(results):
        low, high = wilson_interval(successes, episodes)
        rate = f"{successes}/{episodes} = {successes / episodes:.1%} [{100 * low:.1f}, {100 * high:.1f}]"
        print(f"{label:<28}{rate:<34}{'; '.join(counts)}")


def draw_steps(traces: Sequence[Trace], out: Path) -> list[str]:
    """`log_ratio.png` (where each class goes) and `gradient.png` (who rules the gradient, and its norm)."""
    if not traces:
        return []
    figure = new_figure(4.0 * len(traces), 3.4)
    axes = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
    for axis, trace in zip(axes, traces, strict=True):
        ratio = np.array(trace["log_ratio"])
        for name, colour, wanted in CLASSES:
            index = members(trace, wanted)
            if index:
                low, middle, high = np.percentile(ratio[:, index], [10, 50, 90], axis=1)
                axis.plot(middle, color=colour, label=f"{name} (n = {len(index)})", linewidth=1.8)
                axis.fill_between(range(len(ratio)), low, high, color=colour, alpha=0.15, linewidth=0)
        axis.set(title=f"{trace['label']}, β = {trace['beta']:g}", xlabel="optimizer step")
        clean_axes(axis, "both")
    axes[0].set_yscale("symlog", linthresh=1)
    axes[0].set_ylabel("log π/π_ref: median, 10–90 %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=2)
    save_figure(figure, out / "log_ratio.png")
    figure = new_figure(10.5, 3.4)
    norms, movement, shares = figure.subplots(1, 3)
    width = 0.8 / len(traces)
    for number, trace in enumerate(traces):
        norms.plot(trace["grad_norm"], label=trace["label"], linewidth=1.6)
        first = np.abs(np.array(trace["log_ratio"][1]))
        p_ref = [math.exp(s["log_p_ref"]) for s in trace["samples"]]
        movement.scatter(p_ref, first.clip(1e-5), s=9, alpha=0.7, label=trace["label"])
        look = trace["gradients"][min(2, len(trace["gradients"]) - 1)]
        heights = [sum(look["share"][i] for i in members(trace, wanted)) for _, _, wanted in CLASSES]
        shares.bar(np.arange(len(CLASSES)) + number * width, heights, width)
    norms.set(yscale="log", xlabel="optimizer step", title="gradient norm before clipping (at 1)")
    movement.set(yscale="log", xlabel="probability under π_ref", title="|change of log π| in the first step")
    shares.set(title="share of the gradient, half way")
    shares.set_xticks(
        np.arange(len(CLASSES)) + 0.4 - width / 2, [n.replace(", ", "\n") for n, _, _ in CLASSES], fontsize=7
    )
    for axis in (norms, movement, shares):
        clean_axes(axis, "both")
    figure.legend(*norms.get_legend_handles_labels(), loc="outside lower center", frameon=False, ncols=len(traces))
    save_figure(figure, out / "gradient.png")
    return ["log_ratio.png", "gradient.png"]


def draw_success(results: Sequence[Trace], out: Path) -> list[str]:
    """`success.png`: pooled success by objective with Wilson 95 %."""
    rows = pooled(results)[::-1]
    if not rows:
        return []
    figure = new_figure(7.0, 0.6 + 0.32 * len(rows))
    axis = figure.subplots()
    for y, (_, successes, episodes, _) in enumerate(rows):
        low, high = wilson_interval(successes, episodes)
        rate = successes / episodes
        axis.errorbar(rate, y, xerr=[[rate - low], [high - rate]], marker="o", capsize=3, color="#1f5fa8")
    axis.set_yticks(range(len(rows)), [f"{label}  (n = {episodes})" for label, _, episodes, _ in rows], fontsize=8)
    axis.set(xlabel="held-out success after one phase, Wilson 95 %")
    clean_axes(axis, "both")
    save_figure(figure, out / "success.png")
    return ["success.png"]
