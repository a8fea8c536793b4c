"""The look of all figures, drawn without a display (matplotlib's objects, without pyplot's global state), and those of
single trainings: the losses of a supervised start, the calibration of a judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from webrl.evaluate import wilson_interval
from webrl.runs.disk import atomic_path

NUM_BINS = 10
COLOURS = ("#1a66a8", "#bf4a12", "#0c7a66", "#86489a", "#8f6400", "#5c6670")
"""Of series, in their order."""
INK, SOFT, GRID = "#1c2126", "#59636e", "#e6e9ec"
MARKERS = "os^D"
"""Shapes of the points of series, in turn: they tell series apart as well as the colours do."""
_STYLE: Any = {
    "font.size": 12, "text.color": SOFT, "text.parse_math": False, "svg.fonttype": "none",
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.titlecolor": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "grid.color": GRID, "xtick.color": SOFT, "ytick.color": SOFT,
    "legend.frameon": False,
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Make everything that is drawn inside the block look alike; text is taken literally."""
    from matplotlib import rc_context

    return rc_context(_STYLE)


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """Make an empty figure of this many inches, which finds room for its labels and legend unless it has no layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def clean_axes(axes: Any, grid: Literal["x", "y", "both"] = "y") -> None:
    """Draw a light grid behind the data, and no frame above and to the right."""
    axes.grid(axis=grid, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def margins(values: list[tuple[float, float, float]], scale: float = 1.0) -> list[list[float]]:
    """Return the error bars of (value, low, high), as matplotlib takes them."""
    below = [scale * max(0.0, value - low) for value, low, _ in values]
    return [below, [scale * max(0.0, high - value) for value, _, high in values]]


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all; the suffix names the format."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)


def plot_losses(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw training and validation loss by optimizer step, as PNG."""
    if not lines:
        return
    figure = new_figure(7.2, 4.2)
    axes = figure.add_subplot()
    axes.plot([x["step"] for x in lines], [x["loss"] for x in lines], color="#9ab8d8", label="training loss")
    looked = [x for x in lines if "val_loss" in x]
    steps, losses = [x["step"] for x in looked], [x["val_loss"] for x in looked]
    axes.plot(steps, losses, "o-", color="#1f5fa8", label="validation loss")
    axes.set(xlabel="optimizer step", ylabel="negative log-likelihood a token")
    axes.set_ylim(bottom=0)
    clean_axes(axes)
    figure.legend(loc="outside upper left", frameon=False, ncols=3)
    save_figure(figure, path)


def reliability_bins(truth: Sequence[int], p_yes: Sequence[float]) -> list[tuple[float, int, int]]:
    """Return (mean P(YES), successes, trajectories) of each of ten equal bins that is not empty."""
    y, p = np.asarray(truth), np.asarray(p_yes, dtype=float)
    index = np.minimum((p * NUM_BINS).astype(int), NUM_BINS - 1)
    chosen = [index == b for b in range(NUM_BINS)]
    return [(float(p[of].mean()), int(y[of].sum()), int(of.sum())) for of in chosen if of.any()]


def plot_reliability(truth: Sequence[int], p_yes: Sequence[float], path: Path) -> None:
    """Draw observed success against P(YES) in ten bins with Wilson intervals, and how many trajectories are in each."""
    figure = new_figure(5, 6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    bins = reliability_bins(truth, p_yes)
    bars = margins([(won / num, *wilson_interval(won, num)) for _, won, num in bins])
    rates = [won / num for _, won, num in bins]
    top.errorbar([x for x, _, _ in bins], rates, yerr=bars, marker="o", capsize=3)
    bottom.hist(list(p_yes), bins=NUM_BINS, range=(0, 1), histtype="step")
    top.set(ylabel="observed success", ylim=(-0.02, 1.02), title=f"outcome model, {len(truth)} held-out trajectories")
    bottom.set(xlabel="P(YES)", ylabel="trajectories", xlim=(0, 1))
    save_figure(figure, path)
