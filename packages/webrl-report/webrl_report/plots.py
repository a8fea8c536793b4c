"""The look of all figures, drawn without a display: matplotlib's object interface, without pyplot's global state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from webrl.runs.disk import atomic_path

COLOURS = ("#1a66a8", "#bf4a12", "#0c7a66", "#86489a", "#8f6400", "#5c6670")
"""Of series, in their order: `--c1` to `--c6` of the report's style sheet, which has others for a dark screen."""
INK, SOFT, GRID, PAPER, IDLE = "#1c2126", "#59636e", "#e6e9ec", "#ffffff", "#d4d9de"
MARKERS = "os^D"
"""Shapes of the points of series, in turn: they tell series apart as well as the colours do."""
_STYLE: Any = {
    "font.size": 12, "text.color": SOFT, "text.parse_math": False, "svg.fonttype": "none",
    "svg.hashsalt": "webrl",  # the same drawing has the same ids
    "axes.edgecolor": SOFT, "axes.labelcolor": SOFT, "axes.titlecolor": INK, "axes.spines.top": False,
    "axes.spines.right": False, "axes.axisbelow": True, "grid.color": GRID, "xtick.color": SOFT, "ytick.color": SOFT,
    "legend.frameon": False,
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Make everything that is drawn inside the block look alike; text is taken literally."""
    from matplotlib import rc_context

    return rc_context(_STYLE)


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """Make an empty figure of so many inches, which finds room for its labels and legend unless it has no layout."""
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
