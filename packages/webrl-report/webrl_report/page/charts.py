"""The kinds of charts of a report, each with the table that says the same; matplotlib draws them."""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from webrl.config.redaction import redact
from webrl.evaluate import difference_text
from webrl.reports.run import rate_text
from webrl.runs.text import visible
from webrl_report.page.figures import COLOURS, INK, MARKERS, SOFT, margins, new_figure, style

MAX_POINTS = 240
"""Points of a curve that are drawn; a longer one is averaged over as many stretches, with its range behind it."""
_NAME_CHARS = 60
"""Characters of a series' name that the legend shows."""
_UNIT = 72
"""Units of the drawing in an inch; one is a CSS pixel."""


@dataclass(frozen=True)
class Table:
    """Rows under names; the first column names the row."""

    head: tuple[str, ...]
    rows: Sequence[tuple[object, ...]]
    is_wide: bool = False
    """Whether it takes the page's whole width."""


@dataclass(frozen=True)
class Figure:
    """A drawing with a caption, and the same as a table."""

    title: str
    note: str
    plot: Any
    """matplotlib's figure, in light colours on nothing; the page inverts them on a dark screen."""
    table: Table

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in CSS pixels."""
        width, height = self.plot.get_size_inches()
        return round(_UNIT * width), round(_UNIT * height)

    @property
    def source(self) -> str:
        """The drawing itself, as the address of an image."""
        from matplotlib.text import Text

        for text in self.plot.findobj(Text):
            text.set_text("\n".join(map(_clean, text.get_text().split("\n"))))
        out = io.BytesIO()
        with style(), warnings.catch_warnings(action="ignore"):  # letters that the font lacks are boxes
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self.plot.savefig(out, format="svg", transparent=True, metadata=nothing)
        return f"data:image/svg+xml;base64,{base64.b64encode(out.getvalue()).decode()}"


Series = tuple[str, Sequence[tuple[float, Mapping[str, Any]]]]
"""A name, and its points: a phase, or what was predicted; a rate with its interval, as `Rate.to_json` has it."""


def interval_chart(
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x_label: str = "phase",
    y_label: str = "success",
    diagonal: bool = False,
) -> Figure:
    """Plot proportions with their intervals, over phases or over another proportion."""
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    names = [_clean(name).lstrip("_") for name, _ in series]  # matplotlib leaves out those that begin so
    names = [name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…" for name in names]
    columns = 1 if max(map(len, names)) > 24 else 2
    legend = 18 * math.ceil(len(series) / columns) if len(series) > 1 else 0
    with style():
        plot, axes = _plot(x_label, y_label, 260, above=20 + legend)
        if diagonal:
            axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_xlim(-0.03, 1.03)
        else:
            phases = [phase for _, points in series for phase, _ in points]
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
            axes.set_xlim(min(phases) - 0.3, max(phases) + 0.3)
        for number, (name, (_, points)) in enumerate(zip(names, series, strict=True)):
            shift = 0 if diagonal else 0.05 * (number - (len(series) - 1) / 2)
            look = {
                "color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "clip_on": False,
            }  # fmt: skip
            xs, ys = [x + shift for x, _ in points], [rate["rate"] for _, rate in points]
            bars = margins([(rate["rate"], rate["ci95"][0], rate["ci95"][1]) for _, rate in points])
            axes.errorbar(xs, ys, yerr=bars, fmt="none", ecolor=look["color"], elinewidth=1.3)
            axes.plot(xs, ys, linewidth=2, markersize=6, label=name, **look)
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if legend:
            plot.legend(loc="upper left", ncols=columns, handlelength=1.2, borderaxespad=0.1)
    rows: list[tuple[object, ...]] = [
        (name, percent(x) if diagonal else plain(x), standing_text(rate))
        for name, points in series
        for x, rate in points
    ]
    return Figure(title, note, plot, Table(("series", x_label, y_label), rows))


def curve(title: str, note: str, parts: Sequence[tuple[int, Sequence[float]]]) -> Figure | None:
    """Plot one quantity by step, phase after phase, with the mean of each phase; None without values."""
    parts = [(phase, [v for v in values if math.isfinite(v)]) for phase, values in parts]
    parts = [(phase, values) for phase, values in parts if values]
    total = sum(len(values) for _, values in parts)
    if not total:
        return None
    start, rows = 0, []
    size = math.ceil(total / MAX_POINTS)
    with style():
        plot, axes = _plot("optimizer step, all phases", "", 200)
        for index, (phase, values) in enumerate(parts):
            pieces = [values[k : k + size] for k in range(0, len(values), size)]
            places = [start + k * size + len(piece) / 2 for k, piece in enumerate(pieces)]
            end, mean = start + len(values), sum(values) / len(values)
            if index % 2:
                axes.axvspan(start, end, color=INK, alpha=0.035, linewidth=0)
            if size > 1:
                axes.vlines(places, list(map(min, pieces)), list(map(max, pieces)), color=COLOURS[0], alpha=0.18)
            axes.plot(places, [sum(p) / len(p) for p in pieces], color=COLOURS[0], alpha=0.55, linewidth=1)
            axes.plot([start, end], [mean, mean], color=INK, linewidth=2)
            name = f"phase {phase}" if len(parts) < 6 else str(phase)
            axes.text(start + len(values) / 2, 1.02, name, ha="center", transform=axes.get_xaxis_transform())
            rows.append((phase, len(values), *map(plain, (values[0], values[-1], mean, min(values), max(values)))))
            start = end
        axes.set_xlim(0, total)
        axes.locator_params("both", nbins=5)
    return Figure(title, note, plot, Table(("phase", "steps", "first", "last", "mean", "min", "max"), rows))


def standing_text(rate: Mapping[str, Any]) -> str:
    """Return `rate_text`, and how it compares with the supervised start where that is known."""
    return "; over the start ".join(text for text in (rate_text(rate), difference_text(rate.get("over_start"))) if text)


def plain(value: float) -> str:
    """Write `0.25`, `1200`, `1e-06`: four digits at most."""
    return f"{value:.4g}"


def percent(value: float) -> str:
    """Write `25 %`."""
    return f"{100 * value:.0f} %"


def _plot(x_label: str, y_label: str, height: int, above: int = 20) -> tuple[Any, Any]:
    """Make a figure with one pair of axes, whose margins are fixed: finding them takes as long as all the drawing."""
    width, left, below, right = 440, 62, 42, 18
    height += above - 20
    plot = new_figure(width / _UNIT, height / _UNIT, layout=None)
    axes = plot.add_axes((left / width, below / height, 1 - (left + right) / width, 1 - (below + above) / height))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(axis="y")
    return plot, axes


def _clean(text: str) -> str:
    """Mask secrets, and show control characters; before anything is cut: half a secret is not known for one."""
    return visible(redact(text)).replace("\n", " ")
