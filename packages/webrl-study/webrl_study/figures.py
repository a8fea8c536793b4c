"""Figures of a study: success by phase, a panel a method, and differences from the reference; PNG and SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from webrl_report.plots import COLOURS, clean_axes, margins, new_figure, save_figure
from webrl_study.plan import Study
from webrl_study.results import CellResult
from webrl_study.statistics import Comparison, Estimate, rate_by_phase

_COLUMNS = 4
_TRAINING = {"grad_norm": "largest gradient norm", "kl": "mean KL, nats"}
_NOTE = "mean over seeds, 95 % bootstrap intervals over seeds and tasks"


def draw_success(study: Study, results: Sequence[CellResult], path: Path) -> list[str]:
    """Plot success by phase of each method, the reference's held-out seeds in grey behind; returns the files' names."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    by_method = {m: [r for r in results if r.cell.method == m and r.phases] for m in study.config.methods}
    shown = [method for method, cells in by_method.items() if cells]
    if not shown:
        return []
    columns = min(_COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(2.4 * columns + 1.0, 2.2 * rows + 1.0)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    all_seeds = len(study.config.seeds)
    note = _NOTE if all(r.is_finished for r in results) else f"{_NOTE}\nhollow: not of all {all_seeds} seeds yet"
    seeds_of = {split: name for split, name in study.splits.items() if split.endswith("eval")}
    reference = {s: rate_by_phase(by_method[study.config.reference], s, np.random.default_rng(0)) for s in seeds_of}
    for axes, method in zip(grid.flat, shown, strict=False):
        if method != study.config.reference:
            for split, rates in reference.items():
                label = f"{study.config.reference}, {seeds_of[split]}"
                _draw_line(axes, rates, "#9a9a9a", label, all_seeds, intervals=False)
        for i, (split, name) in enumerate(study.splits.items()):
            rates = rate_by_phase(by_method[method], split, np.random.default_rng(0))
            _draw_line(axes, rates, COLOURS[i], name, all_seeds, shift=0.06 * i)
        seeds = len(by_method[method])
        axes.set_title(f"{method} ({seeds} seed{'s' if seeds > 1 else ''})", fontsize=10)
        axes.set(ylim=(0, 1), xlim=(-0.2, study.config.num_phases + 0.2))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.tick_params(labelbottom=True)
        clean_axes(axes, "y")
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_legend_handles_labels()[0]}
    figure.legend(lines.values(), lines.keys(), loc="outside upper left", frameon=False, ncols=min(3, max(2, columns)))
    figure.supxlabel(f"phase (0: the start)\n{note}", fontsize=9)
    figure.supylabel("success", fontsize=10)
    return _save(figure, path)


def draw_training(study: Study, results: Sequence[CellResult], path: Path) -> list[str]:
    """Plot the actor's largest gradient norm and mean KL by phase, means over seeds; returns the files' names."""
    from matplotlib import colormaps
    from matplotlib.ticker import MaxNLocator

    trained = {m: [r for r in results if r.cell.method == m and len(r.phases) > 1] for m in study.config.methods}
    shown = {method: cells for method, cells in trained.items() if cells}
    if not shown:
        return []
    figure = new_figure(9.0, 3.6)
    panels = figure.subplots(1, 2, sharex=True)
    for axes, (quantity, name) in zip(panels, _TRAINING.items(), strict=True):
        for i, (method, cells) in enumerate(shown.items()):
            colour = "#000000" if method == study.config.reference else colormaps["tab20"](i % 20)
            found: dict[int, list[float]] = {}
            for phase in (phase for result in cells for phase in result.phases):
                if (value := getattr(phase, quantity)) is not None:
                    found.setdefault(phase.phase, []).append(value)
            if found:
                means = [float(np.mean(found[phase])) for phase in sorted(found)]
                axes.plot(sorted(found), means, marker="o", markersize=4, color=colour, label=method)
        axes.set(title=name, xlabel="phase", xlim=(0.8, study.config.num_phases + 0.2))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        clean_axes(axes, "y")
    panels[0].set_yscale("log")
    lines = {line.get_label(): line for axes in panels for line in axes.get_legend_handles_labels()[0]}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False, fontsize=8)
    return _save(figure, path)


def draw_comparison(study: Study, found: Mapping[str, Mapping[str, Comparison]], phase: int, path: Path) -> list[str]:
    """Plot each method's difference from the reference after a phase, with its interval; returns the files' names."""
    if not found:
        return []
    figure = new_figure(7.2, 1.6 + 0.36 * len(found))
    axes = figure.add_subplot()
    for number, (split, name) in enumerate(study.splits.items()):
        shift = 0.24 * (number - (len(study.splits) - 1) / 2) * 2 / len(study.splits)
        rows = [(i, by_split[split].difference) for i, by_split in enumerate(found.values()) if split in by_split]
        if rows:
            values = [100 * difference.value for _, difference in rows]
            axes.errorbar(
                values, [i + shift for i, _ in rows], xerr=_margins([d for _, d in rows], 100), fmt="o", capsize=3,
                color=COLOURS[number], label=name, markersize=5,
            )  # fmt: skip
    axes.axvline(0, color="#666666", linewidth=1)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel(f"points above {study.config.reference} after phase {phase}\n{_NOTE}", fontsize=9)
    clean_axes(axes, "x")
    figure.legend(loc="outside upper left", frameon=False, ncols=2)
    return _save(figure, path)


def _draw_line(
    axes: Any, rates: Sequence[Estimate | None], colour: str, name: str, seeds: int, *, intervals: bool = True,
    shift: float = 0.0,
) -> None:  # fmt: skip
    """A line; hollow where it is of fewer than `seeds` seeds."""
    found = [(phase, rate) for phase, rate in enumerate(rates) if rate is not None]
    if not found:
        return
    xs, ys = [phase + shift for phase, _ in found], [rate.value for _, rate in found]
    margins = _margins([rate for _, rate in found]) if intervals else None
    axes.errorbar(xs, ys, yerr=margins, marker="o", markersize=4, capsize=3, color=colour, label=name, linewidth=1.6)
    lacking = [(x, y) for x, y, (_, rate) in zip(xs, ys, found, strict=True) if rate.seeds < seeds]
    if lacking:
        axes.plot(*zip(*lacking, strict=True), "o", markersize=4, color=colour, markerfacecolor="white", zorder=3)


def _margins(estimates: Sequence[Estimate], scale: float = 1.0) -> list[list[float]]:
    return margins([(each.value, each.low, each.high) for each in estimates], scale)


def _save(figure: Any, path: Path) -> list[str]:
    targets = [path.with_name(f"{path.name}.{kind}") for kind in ("png", "svg")]
    for target in targets:
        save_figure(figure, target)
    return [target.name for target in targets]
