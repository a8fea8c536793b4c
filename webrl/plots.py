"""The look of all figures, drawn without a display: matplotlib's object interface, without pyplot's global state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from webrl.runs.disk import atomic_path


def new_figure(width: float, height: float) -> Any:
    """An empty figure of so many inches, which finds room for its labels and legend."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def clean_axes(axes: Any, grid: Literal["x", "y", "both"] = "y") -> None:
    """A light grid behind the data, and no frame above and to the right."""
    axes.grid(axis=grid, color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure, whole or not at all; the suffix names the format."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix.removeprefix("."), dpi=150)
