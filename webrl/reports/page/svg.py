"""Charts as inline SVG that takes its colours from the page: sharp, light or dark, with a title and a description.

Marks have classes (`s1` … `s6` a series, `grid`, `axis`, `band`) that `page.css` colours; nothing else is styled here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

WIDTH, HEIGHT = 440, 250
NUM_SERIES = 6
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 18, 26, 36
SHAPES = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "M-3.6,-3.6h7.2v7.2h-7.2z",
    "M0,-4.6L4.4,3.4H-4.4z",
    "M0,-5L5,0L0,5L-5,0z",
)
"""Circle, square, triangle and diamond: the points of the series, in turn."""
Format = Callable[[float], str]


def plain(value: float) -> str:
    """`0.25`, `1200`, `1e-06`: four digits at most."""
    return f"{value:.4g}"


def percent(value: float) -> str:
    """`25 %`."""
    return f"{100 * value:.0f} %"


@dataclass
class Frame:
    """A coordinate system; what is added to it is drawn in order."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    marks: list[Markup] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the data lies on the drawing."""
        (x0, x1), (y0, y1) = self.x, self.y
        across = (x - x0) / ((x1 - x0) or 1)
        up = (y - y0) / ((y1 - y0) or 1)
        return (
            round(self.left + across * (self.width - self.left - _RIGHT), 2),
            round(self.height - _BOTTOM - up * (self.height - _TOP - _BOTTOM), 2),
        )

    def add(self, markup: str, *values: object) -> None:
        """Add a mark; values are escaped where the text has `{}`."""
        self.marks.append(Markup(markup).format(*values))

    def axes(
        self, x_label: str, y_label: str, xs: Sequence[float], ys: Sequence[float], x_form: Format, y_form: Format
    ) -> None:
        """Grid lines, numbers at them, and the names of both axes."""
        bottom = self.height - _BOTTOM
        for value in ys:
            _, at = self.at(self.x[0], value)
            self.add('<line class="grid" x1="{}" x2="{}" y1="{}" y2="{}"/>', self.left, self.width - _RIGHT, at, at)
            self.add('<text class="tick end" x="{}" y="{}">{}</text>', self.left - 6, at + 4, y_form(value))
        for value in xs:
            at, _ = self.at(value, self.y[0])
            self.add('<text class="tick mid" x="{}" y="{}">{}</text>', at, bottom + 15, x_form(value))
        self.add('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>', self.left, self.width - _RIGHT, bottom, bottom)
        middle = (self.left + self.width - _RIGHT) / 2
        self.add('<text class="label mid" x="{}" y="{}">{}</text>', middle, self.height - 4, x_label)
        if y_label:
            self.add('<text class="label" x="0" y="10">{}</text>', y_label)

    def box(self, kind: str, x: tuple[float, float], y: tuple[float, float], tip: str = "") -> None:
        """A filled rectangle between two corners of the data."""
        (x0, y0), (x1, y1) = self.at(x[0], y[0]), self.at(x[1], y[1])
        tip_text = Markup("<title>{}</title>").format(tip) if tip else ""
        self.add(
            '<rect class="{}" x="{}" y="{}" width="{}" height="{}">{}</rect>',
            kind, min(x0, x1), min(y0, y1), round(abs(x1 - x0), 2), round(abs(y1 - y0), 2), tip_text,
        )  # fmt: skip

    def line(self, kind: str, points: Sequence[tuple[float, float]]) -> None:
        """A line through points of the data."""
        path = " ".join(f"{x},{y}" for x, y in (self.at(*point) for point in points))
        self.add('<polyline class="{}" points="{}"/>', kind, path)

    def marker(self, series: int, x: float, y: float, tip: str) -> None:
        """A point, whose shape tells series apart as well as its colour does."""
        cx, cy = self.at(x, y)
        shape = SHAPES[series % len(SHAPES)]
        self.add(
            '<path class="dot s{}" transform="translate({} {})" d="{}"><title>{}</title></path>',
            series % NUM_SERIES + 1, cx, cy, shape, tip,
        )  # fmt: skip

    def svg(self, title: str, description: str) -> Markup:
        """The drawing, which scales to its place, with what a screen reader says of it."""
        return Markup(
            '<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" aria-label="{2}. {3}">'
            "<title>{2}</title><desc>{3}</desc>{4}</svg>"
        ).format(self.width, self.height, title, description, Markup("").join(self.marks))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from `low` to `high`, at most so many and one more."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def padded(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all values with a little room."""
    low, high = min(values), max(values)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


def share_bar(share: float) -> Markup:
    """A small bar in a table, and the share that it shows."""
    return Markup(
        '<svg class="bar" viewBox="0 0 120 10" width="120" height="10" aria-hidden="true">'
        '<rect class="fill s1" width="{}" height="10" rx="1"/></svg> {}'
    ).format(round(120 * share, 2), percent(share))
