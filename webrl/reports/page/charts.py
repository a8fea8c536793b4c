"""The kinds of charts of a report, each with the table that says the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from webrl.reports.page.svg import NUM_SERIES, Frame, padded, percent, plain, ticks

MAX_POINTS = 240
"""Points of a curve that are drawn; a longer one is averaged over as many stretches, with its range behind it."""
KINDS = ("sampling", "browsers", "browsers+sampling", "scoring", "gradient steps", "model files", "")
"""What a stage's time is spent on (`webrl/runs/clock.py`), in the order of the colours; others share the last."""


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
    drawing: Markup
    table: Table
    legend: tuple[tuple[str, str], ...] = ()
    """(class, name) of each series."""
    is_wide: bool = False


@dataclass(frozen=True)
class Series:
    """A line: points of (x, y, lower, upper end of the interval)."""

    name: str
    points: list[tuple[float, float, float, float]]
    texts: list[str]
    """What each point is called on pointing at it, and in the table."""


def interval_chart(
    title: str,
    note: str,
    series: Sequence[Series],
    *,
    x_label: str = "phase",
    y_label: str = "success",
    diagonal: bool = False,
) -> Figure:
    """Proportions with their intervals, over phases or over another proportion."""
    xs = sorted({point[0] for line in series for point in line.points})
    frame = Frame((0, 1) if diagonal else (min(xs) - 0.3, max(xs) + 0.3), (0, 1))
    places = ticks(0, 1) if diagonal else _thinned(xs)
    frame.axes(x_label, y_label, places, ticks(0, 1, 5), percent if diagonal else plain, percent)
    if diagonal:
        frame.line("guide", [(0, 0), (1, 1)])
    for number, line in enumerate(series):
        kind, shift = f"s{number % NUM_SERIES + 1}", (0 if diagonal else 0.05 * (number - (len(series) - 1) / 2))
        frame.line(f"line {kind}", [(x + shift, y) for x, y, _, _ in line.points])
        for (x, y, low, high), text in zip(line.points, line.texts, strict=True):
            frame.line(f"whisker {kind}", [(x + shift, low), (x + shift, high)])
            frame.marker(number, x + shift, y, f"{line.name}: {text}")
    rows: list[tuple[object, ...]] = [
        (line.name, percent(p[0]) if diagonal else plain(p[0]), text)
        for line in series
        for p, text in zip(line.points, line.texts, strict=True)
    ]
    legend = tuple((f"s{n % NUM_SERIES + 1}", line.name) for n, line in enumerate(series))
    return Figure(title, note, frame.svg(title, note), Table(("series", x_label, y_label), rows), legend)


def curve(title: str, note: str, parts: Sequence[tuple[int, Sequence[float]]]) -> Figure | None:
    """One quantity by step, phase after phase, with the mean of each phase; None without values."""
    parts = [(phase, [v for v in values if math.isfinite(v)]) for phase, values in parts]
    parts = [(phase, values) for phase, values in parts if values]
    total = sum(len(values) for _, values in parts)
    if not total:
        return None
    frame = Frame((0, total), padded([v for _, values in parts for v in values]), height=190)
    frame.axes("optimizer step, all phases", "", ticks(0, total, 4), ticks(*frame.y, 4), plain, plain)
    start, rows = 0, []
    size = math.ceil(total / MAX_POINTS)
    for index, (phase, values) in enumerate(parts):
        pieces = [values[k : k + size] for k in range(0, len(values), size)]
        places = [start + k * size + len(piece) / 2 for k, piece in enumerate(pieces)]
        if index % 2:
            frame.box("stripe", (start, start + len(values)), frame.y)
        if size > 1:
            for place, piece in zip(places, pieces, strict=True):
                frame.line("range", [(place, min(piece)), (place, max(piece))])
        frame.line("thin s1", [(at, sum(p) / len(p)) for at, p in zip(places, pieces, strict=True)])
        mean = sum(values) / len(values)
        frame.line("mean", [(start, mean), (start + len(values), mean)])
        x, _ = frame.at(start + len(values) / 2, 0)
        frame.add(
            '<text class="tick mid" x="{}" y="{}">{}</text>', x, 18, f"phase {phase}" if len(parts) < 6 else phase
        )
        figures = values[0], values[-1], mean, min(values), max(values)
        rows.append((phase, len(values), *map(plain, figures)))
        start += len(values)
    table = Table(("phase", "steps", "first", "last", "mean", "least", "most"), rows)
    return Figure(title, note, frame.svg(title, note), table)


def histogram(
    title: str,
    note: str,
    groups: Sequence[tuple[str, Sequence[float]]],
    edges: Sequence[float],
    *,
    x_label: str,
    band: tuple[float, float] | None = None,
) -> Figure:
    """How often values fall between the edges, groups stacked; what lies beyond the last edge is in the last bar."""
    stacks = [bin_counts(values, edges) for _, values in groups]
    tops = [sum(stack[k] for stack in stacks) for k in range(len(edges) - 1)]
    frame = Frame((edges[0], edges[-1]), (0, max([*tops, 1]) * 1.06), height=210)
    if band:
        low, high = max(band[0], edges[0]), min(band[1], edges[-1])
        frame.box("band", (low, high), frame.y, f"band {plain(band[0])} to {plain(band[1])}")
    frame.axes(x_label, "steps", ticks(edges[0], edges[-1]), ticks(*frame.y, 4), plain, plain)
    gap = (edges[-1] - edges[0]) * 0.002
    rows: list[tuple[object, ...]] = []
    for k, (low, high) in enumerate(pairwise(edges)):
        floor = 0
        for number, stack in enumerate(stacks):
            if stack[k]:
                tip = f"{plain(low)} to {plain(high)}: {stack[k]} {groups[number][0]}"
                frame.box(f"fill s{number + 1}", (low + gap, high - gap), (floor, floor + stack[k]), tip)
            floor += stack[k]
        if floor:
            rows.append((f"{plain(low)} to {plain(high)}", *(stack[k] for stack in stacks)))
    legend = tuple((f"s{n + 1}", name) for n, (name, _) in enumerate(groups))
    return Figure(title, note, frame.svg(title, note), Table((x_label, *(name for name, _ in groups)), rows), legend)


def bin_counts(values: Iterable[float], edges: Sequence[float]) -> list[int]:
    """Values between neighbouring edges; those beyond either end count in the bin there."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        place = sum(value >= edge for edge in edges[1:-1])
        counts[place] += 1
    return counts


def strips(
    title: str, note: str, rows: Sequence[tuple[str, Sequence[int]]], band: tuple[float, float] | None
) -> Figure:
    """A row a phase, each a histogram of values from 0 to 1 in equal bins; darker is more."""
    height = 60 + 26 * len(rows)
    frame = Frame((0, 1), (0, len(rows)), height=height, left=64)
    frame.axes("critic's value of the task", "", ticks(0, 1), [], plain, plain)
    for index, (name, counts) in enumerate(rows):
        floor, most, size = len(rows) - 1 - index, max([*counts, 1]), 1 / max(len(counts), 1)
        _, y = frame.at(0, floor + 0.5)
        frame.add('<text class="tick end" x="{}" y="{}">{}</text>', 58, y + 4, name)
        for k, number in enumerate(counts):
            tip = f"{name}, {plain(k * size)} to {plain((k + 1) * size)}: {number}"
            frame.box(f"heat h{shade(number / most)}", (k * size, (k + 1) * size), (floor + 0.1, floor + 0.9), tip)
    for edge in band or ():
        frame.line("edge", [(edge, 0), (edge, len(rows))])
    table_rows = [(name, sum(counts), plain(_mean_of_bins(counts))) for name, counts in rows]
    return Figure(title, note, frame.svg(title, note), Table(("phase", "tasks", "mean value (by bins)"), table_rows))


def gantt(title: str, note: str, bars: Sequence[tuple[str, int, float, dict[str, float]]], table: Table) -> Figure:
    """Stages over the run's time: (stage, phase, seconds, what they were spent on), in the order of the run."""
    names = list(dict.fromkeys(name for name, _, _, _ in bars))
    total = sum(seconds for _, _, seconds, _ in bars) or 1.0
    unit, unit_name = (3600.0, "hours") if total > 3 * 3600 else (60.0, "minutes") if total > 180 else (1.0, "seconds")
    frame = Frame((0, total / unit), (0, len(names)), width=900, height=56 + 30 * len(names), left=92)
    frame.axes(f"{unit_name} of work, pauses between stages left out", "", ticks(0, total / unit, 8), [], plain, plain)
    start = 0.0
    seen_phases = set()
    for name, phase, seconds, spent in bars:
        floor = len(names) - 1 - names.index(name)
        if phase not in seen_phases:
            seen_phases.add(phase)
            frame.line("grid", [(start / unit, 0), (start / unit, len(names))])
            x, _ = frame.at(start / unit, 0)
            frame.add('<text class="tick" x="{}" y="{}">{}</text>', x + 3, 18, f"phase {phase}")
        at = start
        known = sum(spent.values())
        parts = [*spent.items(), ("", seconds - known)] if seconds > known else list(spent.items())
        for kind, part in parts:
            tip = f"{name}, phase {phase}: {part:.1f} s {kind or 'none of these'} of {seconds:.1f} s"
            frame.box(f"fill k{kind_number(kind)}", (at / unit, (at + part) / unit), (floor + 0.18, floor + 0.82), tip)
            at += part
        start += seconds
    for index, name in enumerate(names):
        _, y = frame.at(0, len(names) - 1 - index + 0.5)
        frame.add('<text class="tick end" x="{}" y="{}">{}</text>', 86, y + 4, name)
    used = sorted({kind_number(kind) for *_, spent in bars for kind in spent})
    legend = tuple((f"k{k}", KINDS[k - 1].replace("+", " and ") or "none of these") for k in used)
    return Figure(title, note, frame.svg(title, note), table, legend, is_wide=True)


def kind_number(kind: str) -> int:
    """Number of the colour of a kind of work."""
    return KINDS.index(kind) + 1 if kind in KINDS else len(KINDS)


def shade(share: float) -> int:
    """0 (none) to 10 (all) of a heat map's colours."""
    return max(0, min(10, round(10 * share)))


def _mean_of_bins(counts: Sequence[int]) -> float:
    total = sum(counts)
    return sum(n * (k + 0.5) / len(counts) for k, n in enumerate(counts)) / total if total else math.nan


def _thinned(xs: Sequence[float]) -> list[float]:
    return list(xs[:: math.ceil(len(xs) / 10)])
