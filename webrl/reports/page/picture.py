"""A chart of the page as an image, for places that show no SVG.

matplotlib draws the marks of the SVG itself, in the light colours of `page.css`: what the page shows is what is drawn,
and neither a browser nor the machine's fonts are needed.
"""

from __future__ import annotations

import re
import textwrap
import warnings
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from webrl.config.redaction import redact
from webrl.plots import new_figure
from webrl.reports.page.charts import Figure
from webrl.reports.page.svg import SHAPES
from webrl.runs.spelling import visible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Style = dict[str, str]
_DPI, _SCALE = 100, 2
_POINT = 72 / _DPI
"""Points in a unit of the drawing."""
_MARKERS = dict(zip(SHAPES, "os^D", strict=True))
_LINE, _MARGIN, _CHAR = 16, 8, 6.2
"""Units: the height of a line of the caption, the room around the drawing, the width of a character."""
_RULE = re.compile(r"(?<!\w)(?:rect)?\.(\w+)\s*\{([^{}]*)\}")
_VARIABLE = re.compile(r"var\((--[\w-]+)\)")


def picture(figure: Figure) -> NDArray[np.uint8]:
    """The chart under its title, note and legend, as pixels [height, width, 3]; secrets in its words are masked."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    root = ElementTree.fromstring(visible(str(figure.drawing)))
    width, height = int(root.attrib["width"]), int(root.attrib["height"])
    notes = textwrap.wrap(_clean(figure.note), max(1, int(width / _CHAR)))
    head = _LINE * (1 + len(notes) + (len(figure.legend) > 1)) + _MARGIN
    whole = new_figure((width + 2 * _MARGIN) / _DPI, (height + head + 2 * _MARGIN) / _DPI)
    whole.set_layout_engine("none")
    axes = whole.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(-_MARGIN, width + _MARGIN), ylim=(height + _MARGIN, -head - _MARGIN))
    _write(axes, 0, _LINE - head, _clean(figure.title), weight="bold", color=_colour("--ink"))
    for row, note in enumerate(notes, 2):
        _write(axes, 0, _LINE * row - head, note)
    if len(figure.legend) > 1:
        _draw_legend(axes, figure.legend, _LINE * (len(notes) + 2) - head)
    for order, mark in enumerate(root):
        _draw(axes, mark, order)
    canvas = FigureCanvasAgg(whole)
    whole.set_dpi(_DPI * _SCALE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that the font lacks: a box stands for them
        canvas.draw()
    pixels: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return pixels


def _draw(axes: Any, mark: Any, order: int) -> None:
    """One element of the SVG, above those before it."""
    from matplotlib.patches import Rectangle

    style = _style(mark.get("class", ""))
    names = mark.get("class", "").split()
    if mark.tag == "line":
        ends = [float(mark.get(key)) for key in ("x1", "x2", "y1", "y2")]
        _stroke(axes, ends[:2], ends[2:], style, order)
    elif mark.tag == "polyline":
        points = [tuple(map(float, point.split(","))) for point in mark.get("points").split()]
        _stroke(axes, [x for x, _ in points], [y for _, y in points], style, order)
    elif mark.tag == "rect":
        x, y, width, height = (float(mark.get(key)) for key in ("x", "y", "width", "height"))
        look: dict[str, Any] = {
            "facecolor": style["fill"],
            "alpha": float(style.get("fill-opacity", 1)),
            "linewidth": 0,
        }
        axes.add_patch(Rectangle((x, y), width, height, zorder=order, **look))
    elif mark.tag == "path":
        x, y = map(float, re.findall(r"-?[\d.]+", mark.get("transform")))
        look = {"color": style["fill"], "markeredgecolor": style["stroke"], "markersize": 8 * _POINT}
        axes.plot([x], [y], marker=_MARKERS[mark.get("d")], markeredgewidth=_POINT, zorder=order, **look)
    elif mark.tag == "text":
        side = "center" if "mid" in names else "right" if "end" in names else "left"
        _write(axes, float(mark.get("x")), float(mark.get("y")), _clean(mark.text or ""), ha=side)


def _stroke(axes: Any, xs: list[float], ys: list[float], style: Style, order: int) -> None:
    dashes = [float(part) for part in style.get("stroke-dasharray", "").split()]
    width, alpha = float(style.get("stroke-width", 1)) * _POINT, float(style.get("stroke-opacity", 1))
    (line,) = axes.plot(xs, ys, color=style["stroke"], linewidth=width, alpha=alpha, zorder=order)
    if dashes:
        line.set_dashes(dashes)


def _write(axes: Any, x: float, y: float, text: str, **look: Any) -> None:
    axes.text(x, y, text, **{"size": 12 * _POINT, "color": _colour("--soft"), "parse_math": False} | look)


def _draw_legend(axes: Any, legend: tuple[tuple[str, str], ...], y: float) -> None:
    x = 0.0
    for kind, name in legend:
        look = {"color": _style(f"fill {kind}")["fill"], "markersize": 8 * _POINT}
        axes.plot([x + 5], [y - 4], marker="s", **look)
        _write(axes, x + 14, y, _clean(name))
        x += 28 + 1.1 * _CHAR * len(name)


def _clean(text: str) -> str:
    return visible(redact(text)).replace("\n", " ")


def _style(names: str) -> Style:
    """What the page's style sheet says of these classes, with its variables filled in."""
    _, rules = _sheet()
    style: Style = {}
    for name in names.split():
        style |= rules.get(name, {})
    return {key: _filled(value, style) for key, value in style.items()}


def _colour(name: str) -> str:
    return _sheet()[0][name]


def _filled(value: str, style: Style) -> str:
    while found := _VARIABLE.search(value):
        value = value.replace(found[0], style.get(found[1]) or _colour(found[1]))
    return value


@cache
def _sheet() -> tuple[Style, dict[str, Style]]:
    """(variables of the light page, properties by class) of `page.css`."""
    css = files("webrl.reports.page").joinpath("page.css").read_text(encoding="utf-8")
    rules: dict[str, Style] = {}
    for name, body in _RULE.findall(css):
        rules.setdefault(name, {}).update(_properties(body))
    return _properties(css[css.index("{") + 1 : css.index("}")]), rules


def _properties(body: str) -> Style:
    pairs = (part.partition(":") for part in body.split(";"))
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}
