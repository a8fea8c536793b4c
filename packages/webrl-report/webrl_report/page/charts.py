"""The kinds of charts of a report, each with the table that says the same; matplotlib draws them.

The page shows a chart as inline SVG whose colours are variables of `page.css`, so that it is light or dark as the page
is.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from webrl.config.redaction import redact
from webrl.runs.text import visible
from webrl_report.plots import COLOURS, GRID, IDLE, INK, MARKERS, PAPER, SOFT, margins, new_figure, style

MAX_POINTS = 240
"""Points of a curve that are drawn; a longer one is averaged over as many stretches, with its range behind it."""
KINDS = ("sampling", "browsers", "browsers+sampling", "scoring", "gradient steps", "model files", "")
"""What a stage's time is spent on (`webrl/runs/clock.py`), in the order of the colours; others share the last."""
_KIND_COLOURS = (*(COLOURS[k] for k in (0, 4, 2, 3, 1, 5)), IDLE)
_NAME_CHARS = 60
"""Characters of a series' name that the legend shows."""
_WIDTH, _WIDE = 440, 900
_VARIABLES = {colour: f"var(--c{number})" for number, colour in enumerate(COLOURS, 1)} | {
    INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--grid)", PAPER: "var(--paper)", IDLE: "var(--idle)",
}  # fmt: skip
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
    """matplotlib's figure, in the light colours of `webrl_report/plots.py`."""
    table: Table
    is_wide: bool = False

    def svg(self, key: str) -> Markup:
        """Draw it for the page: no styles of its own, no ids but those that begin with `key`, described in words."""
        out = io.StringIO()
        with style(), warnings.catch_warnings(action="ignore"):  # letters that the font lacks are boxes
            _clean_texts(self.plot)
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            self.plot.savefig(out, format="svg", transparent=True, metadata=nothing)
        width, height = (round(_UNIT * size) for size in self.plot.get_size_inches())
        return Markup(
            '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}. {3}" '
            'stroke-linejoin="round"><title>{2}</title><desc>{3}</desc>{4}</svg>'
        ).format(width, height, self.title, self.note, Markup(_inline(out.getvalue(), key)))


@dataclass(frozen=True)
class Point:
    """A proportion with its interval."""

    x: float
    y: float
    low: float
    high: float
    text: str
    """What the table says of it."""
    is_thin: bool = False
    """Whether it stands for so few observations that no line is drawn through it."""


Series = tuple[str, list[Point]]
"""A name, and the points that belong together."""


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

    with style():
        plot, axes = _plot(x_label, y_label, grid="y")
        if diagonal:
            axes.plot([0, 1], [0, 1], color=SOFT, linestyle=":", linewidth=1)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_xlim(-0.03, 1.03)
        else:
            phases = [point.x for _, points in series for point in points]
            axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
            axes.set_xlim(min(phases) - 0.3, max(phases) + 0.3)
        for number, (name, points) in enumerate(series):
            shift = 0 if diagonal else 0.05 * (number - (len(series) - 1) / 2)
            look = {
                "color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)], "clip_on": False,
            }  # fmt: skip
            xs, ys = [point.x + shift for point in points], [point.y for point in points]
            bars = margins([(point.y, point.low, point.high) for point in points])
            axes.errorbar(xs, ys, yerr=bars, fmt="none", ecolor=look["color"], elinewidth=1.3)
            through = [math.nan if point.is_thin else point.y for point in points]
            axes.plot(xs, through, linewidth=2, markersize=6, label=_short(name), **look)
            thin = [(x, y) for x, y, point in zip(xs, ys, points, strict=True) if point.is_thin]
            if thin:
                axes.plot(*zip(*thin, strict=True), linestyle="", markersize=6, markerfacecolor=PAPER, **look)
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _add_legend(plot)
    rows: list[tuple[object, ...]] = [
        (name, percent(point.x) if diagonal else plain(point.x), point.text)
        for name, points in series
        for point in points
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
        plot, axes = _plot("optimizer step, all phases", "", height=200, grid="y")
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
    return Figure(title, note, plot, Table(("phase", "steps", "first", "last", "mean", "least", "most"), rows))


def histogram(
    title: str,
    note: str,
    groups: Sequence[tuple[str, Sequence[float]]],
    edges: Sequence[float],
    *,
    x_label: str,
    band: tuple[float, float] | None = None,
) -> Figure:
    """Plot how often values fall between the edges, groups stacked; what is beyond either end is in the bar there."""
    import numpy as np

    stacks = [[int(count) for count in np.histogram(np.clip(vs, edges[0], edges[-1]), edges)[0]] for _, vs in groups]
    widths = [0.96 * (high - low) for low, high in pairwise(edges)]
    with style():
        plot, axes = _plot(x_label, "steps", height=220, grid="y")
        if band:
            axes.axvspan(max(band[0], edges[0]), min(band[1], edges[-1]), color=COLOURS[2], alpha=0.13, linewidth=0)
        floors = [0] * len(widths)
        for number, ((name, _), stack) in enumerate(zip(groups, stacks, strict=True)):
            axes.bar(edges[:-1], stack, widths, floors, align="edge", color=COLOURS[number], label=_short(name))
            floors = [floor + more for floor, more in zip(floors, stack, strict=True)]
        axes.set_xlim(edges[0], edges[-1])
        axes.locator_params("y", nbins=5, integer=True)
        _add_legend(plot)
    rows: list[tuple[object, ...]] = [
        (f"{plain(low)} to {plain(high)}", *(stack[k] for stack in stacks))
        for k, (low, high) in enumerate(pairwise(edges))
        if any(stack[k] for stack in stacks)
    ]
    return Figure(title, note, plot, Table((x_label, *(name for name, _ in groups)), rows))


def gantt(title: str, note: str, bars: Sequence[tuple[str, int, float, dict[str, float]]], table: Table) -> Figure:
    """Plot stages over the run's time: (stage, phase, seconds, what they were spent on), in the order of the run."""
    names = list(dict.fromkeys(name for name, _, _, _ in bars))
    total = sum(seconds for _, _, seconds, _ in bars) or 1.0
    unit, unit_name = (3600.0, "hours") if total > 3 * 3600 else (60.0, "minutes") if total > 180 else (1.0, "seconds")
    spans: dict[int, list[tuple[int, float, float]]] = {}
    begins: dict[int, float] = {}
    start = 0.0
    for name, phase, seconds, spent in bars:
        begins.setdefault(phase, start)
        at = start
        for kind, part in [*spent.items(), ("", max(0.0, seconds - sum(spent.values())))]:
            number = KINDS.index(kind) if kind in KINDS else len(KINDS) - 1
            if part:
                spans.setdefault(number, []).append((names.index(name), at / unit, part / unit))
            at += part
        start += seconds
    with style():
        label = f"{unit_name} of work, pauses between stages left out"
        plot, axes = _plot(label, "", width=_WIDE, height=64 + 30 * len(names), left=92)
        for number, parts in sorted(spans.items()):
            places, lefts, widths = zip(*parts, strict=True)
            name = KINDS[number].replace("+", " and ") or "none of these"
            axes.barh(places, widths, 0.64, left=lefts, color=_KIND_COLOURS[number], label=name)
        for phase, begin in begins.items():
            axes.axvline(begin / unit, color=GRID, linewidth=1, zorder=0)
            axes.text(begin / unit, 1.02, f"phase {phase}", transform=axes.get_xaxis_transform())
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)  # the first at the top
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, total / unit)
        _add_legend(plot, columns=len(spans))
    return Figure(title, note, plot, table, is_wide=True)


def plain(value: float) -> str:
    """Write `0.25`, `1200`, `1e-06`: four digits at most."""
    return f"{value:.4g}"


def percent(value: float) -> str:
    """Write `25 %`."""
    return f"{100 * value:.0f} %"


def _plot(
    x_label: str, y_label: str, *, width: int = _WIDTH, height: int = 260, left: int = 62, grid: str = ""
) -> tuple[Any, Any]:
    """Make a figure with one pair of axes, whose margins are fixed: finding them takes as long as all the drawing."""
    plot = new_figure(width / _UNIT, height / _UNIT, layout=None)
    axes = plot.add_axes((left / width, 42 / height, 1 - (left + 18) / width, 1 - 62 / height))
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    if grid:
        axes.grid(axis=grid)
    return plot, axes


def _add_legend(plot: Any, columns: int = 2) -> None:
    """Name the series above the axes, where there are several; the figure grows by that."""
    (axes,) = plot.axes
    handles, names = axes.get_legend_handles_labels()
    if len(names) < 2:
        return
    columns = 1 if max(map(len, names)) > 24 else columns
    width, height = plot.get_size_inches()
    more = 18 * math.ceil(len(names) / columns) / _UNIT
    left, bottom, across, up = axes.get_position().bounds
    plot.set_size_inches(width, height + more)
    axes.set_position([left, bottom * height / (height + more), across, up * height / (height + more)])
    plot.legend(handles, names, loc="upper left", ncols=columns, handlelength=1.2, borderaxespad=0.1)


def _inline(drawn: str, key: str) -> str:
    """Return what is inside of matplotlib's SVG, for the page.

    Styles become attributes, which the page's policy allows, and colours variables; ids begin with `key`.
    """

    def attributes(found: re.Match[str]) -> str:
        pairs = [part.strip().partition(": ") for part in found[1].split(";")]
        return " ".join(f'{n}="{_VARIABLES.get(text, text)}"' for n, _, text in pairs if n and n != "font-family")

    def rewrite(tag: re.Match[str]) -> str:
        text = re.sub(r'(?<= id=")|(?<=href="#)|(?<=url\(#)', f"{key}-", re.sub(r'style="([^"]*)"', attributes, tag[0]))
        return " ".join(re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", text).split())

    inside = drawn[drawn.index(">", drawn.index("<svg")) + 1 : drawn.rindex("</svg>")]
    inside = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|\n\s*", "", inside, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", rewrite, inside)


def _clean_texts(plot: Any) -> None:
    """Mask secrets and show control characters in everything that is written on a drawing."""
    from matplotlib.text import Text

    for text in plot.findobj(Text):
        text.set_text("\n".join(map(_clean, text.get_text().split("\n"))))


def _clean(text: str) -> str:
    """Mask before anything is cut or wrapped: half a secret is not known for one."""
    return visible(redact(text)).replace("\n", " ")


def _short(name: str) -> str:
    """A name for a legend; matplotlib leaves out those that begin with an underscore."""
    name = _clean(name).lstrip("_")
    return name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
