"""Figures of single trainings: the losses of a supervised start, the calibration of a judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.evaluate import wilson_interval
from webrl.reward.report import NUM_BINS, reliability_bins
from webrl_report.plots import clean_axes, margins, new_figure, save_figure


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


def plot_reliability(truth: Sequence[int], scores: dict[str, Sequence[float]], path: Path) -> None:
    """Draw observed success against P(YES) in ten bins with Wilson intervals, and how many trajectories are in each.

    Args:
        scores: name of a curve (`as trained`, `calibrated`) -> [N] P(YES).
    """
    figure = new_figure(5, 6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    top.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    for name, values in scores.items():
        bins = reliability_bins(truth, values)
        bars = margins([(won / num, *wilson_interval(won, num)) for _, won, num in bins])
        rates = [won / num for _, won, num in bins]
        top.errorbar([x for x, _, _ in bins], rates, yerr=bars, marker="o", capsize=3, label=name)
        bottom.hist(list(values), bins=NUM_BINS, range=(0, 1), histtype="step", label=name)
    top.set(ylabel="observed success", ylim=(-0.02, 1.02), title=f"outcome model, {len(truth)} held-out trajectories")
    top.legend()
    bottom.set(xlabel="P(YES)", ylabel="trajectories", xlim=(0, 1))
    save_figure(figure, path)
