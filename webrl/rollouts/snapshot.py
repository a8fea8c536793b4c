"""A page's elements and its pruned HTML, from one DOM snapshot, which OpenEnv's clients get with the text.

API: `await take(tab, hidden_ids, scale, viewport) -> PageDetails`. The page has just been marked (`mark.js`), so that
elements carry their `bid`. Both forms are BrowserGym's (`extract_dom_extra_properties`; `flatten_dom_to_str` followed
by `prune_html`), without its indentation; `visibility` is the share of an element's box inside the viewport, which does
not know of elements above it.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from webrl.rollouts.devtools import Tab

MAX_HTML_CHARS = 2_000_000
"""Pruned HTML is cut here."""
_ELEMENT, _TEXT = 1, 3
_DROPPED = frozenset(("style", "link", "script", "br"))
_UNWRAPPED = frozenset(("html", "body", "#document"))
_BARE = frozenset(("div", "span", "i", "p"))
"""Kept only with attributes of their own."""
_VOID = frozenset(("area", "base", "col", "embed", "hr", "img", "input", "meta", "source", "track", "wbr"))

Box = tuple[float, float, float, float]
"""x, y, width and height in screenshot pixels, from the viewport's top left corner."""


@dataclass(frozen=True)
class PageDetails:
    """See the module docstring."""

    html: str
    """The pruned HTML."""
    elements: dict[str, dict[str, Any]]
    """By bid: `bbox` (a Box as a list, or None where the element is not laid out), `visibility` (0 to 1), `clickable`,
    `set_of_marks` (clickable and at least half visible)."""


async def take(tab: Tab, hidden_ids: Collection[str], scale: float, viewport: tuple[int, int]) -> PageDetails:
    """Look at the page as it is. Raises ChannelError, ChannelClosed."""
    options = {"computedStyles": [], "includeDOMRects": True}
    return describe(await tab.channel.send("DOMSnapshot.captureSnapshot", options), hidden_ids, scale, viewport)


def describe(
    snapshot: dict[str, Any], hidden_ids: Collection[str], scale: float = 1.0, viewport: tuple[int, int] = (1280, 720)
) -> PageDetails:
    """The pure part of `take`.

    Args:
        snapshot: answer of CDP's `DOMSnapshot.captureSnapshot` with DOM rectangles.
        hidden_ids: DOM ids of the elements that are left out with everything below them.
        scale: screenshot pixels per CSS pixel.
        viewport: width and height in CSS pixels.
    """
    documents = [_Document(data, snapshot["strings"]) for data in snapshot["documents"]]
    width, height = viewport[0] * scale, viewport[1] * scale
    hidden = frozenset(hidden_ids)
    elements: dict[str, dict[str, Any]] = {}
    parts: list[str] = []
    # What is left, from the end: closing tags, and (document, node, its document's corner). No recursion, since pages
    # nest as deep as they like.
    stack: list[str | tuple[_Document, int, float, float]] = [(documents[0], 0, 0.0, 0.0)]
    while stack:
        top = stack.pop()
        if isinstance(top, str):
            parts.append(top)
            continue
        document, node, left, up = top
        name = document.names[node]
        if document.types[node] == _TEXT:
            if text := " ".join(document.values[node].split()):
                parts.append(html.escape(text, quote=False) + "\n")
            continue
        if document.types[node] == _ELEMENT:
            attributes = document.attributes(node)
            if attributes.get("id") in hidden:
                continue
            rectangle = document.rectangle(node, left, up)
            if bid := attributes.get("bid"):
                box = [scale * number for number in rectangle] if rectangle else None
                visible = _share_inside(box, width, height) if box else 0.0
                clickable = node in document.clickable
                elements[bid] = {
                    "bbox": box,
                    "visibility": visible,
                    "clickable": clickable,
                    "set_of_marks": clickable and visible >= 0.5,
                }
            if name in _DROPPED or name.startswith("::"):
                continue
            if not (name in _UNWRAPPED or (name in _BARE and attributes.keys() <= {"bid"})):
                ordered = ({"bid": bid} if bid is not None else {}) | attributes
                shown = (f'{key}="{html.escape(value)}"' for key, value in ordered.items())
                parts.append(f"<{' '.join([name, *shown])}>\n")
                if name not in _VOID:
                    stack.append(f"</{name}>\n")
            if node in document.frames:
                corner = rectangle or (left, up)
                stack.append((documents[document.frames[node]], 0, corner[0], corner[1]))
        stack.extend((document, child, left, up) for child in reversed(document.children.get(node, ())))
    return PageDetails("".join(parts)[:MAX_HTML_CHARS], elements)


class _Document:
    """One document of a snapshot, by node number."""

    def __init__(self, data: dict[str, Any], strings: Sequence[str]) -> None:
        nodes = data["nodes"]
        self.children: dict[int, list[int]] = {}
        for number, parent in enumerate(nodes["parentIndex"]):
            self.children.setdefault(parent, []).append(number)
        self.types: Sequence[int] = nodes["nodeType"]
        self.names = [strings[index].lower() if index >= 0 else "" for index in nodes["nodeName"]]
        self.values = [strings[index] if index >= 0 else "" for index in nodes["nodeValue"]]
        self._attributes = nodes["attributes"]
        self._strings = strings
        self.clickable = frozenset(nodes.get("isClickable", {}).get("index", ()))
        inner = nodes.get("contentDocumentIndex", {})
        self.frames = dict(zip(inner.get("index", ()), inner.get("value", ()), strict=True))
        layout = data["layout"]
        self.boxes: dict[int, Sequence[float]] = {}
        for number, bounds, shown in zip(layout["nodeIndex"], layout["bounds"], layout["clientRects"], strict=True):
            if shown:  # empty: not rendered
                self.boxes[number] = bounds
        self.scrolled = (float(data.get("scrollOffsetX") or 0), float(data.get("scrollOffsetY") or 0))

    def attributes(self, node: int) -> dict[str, str]:
        flat = self._attributes[node]
        return {
            self._strings[name]: self._strings[value] if value >= 0 else ""
            for name, value in zip(flat[::2], flat[1::2], strict=True)
        }

    def rectangle(self, node: int, left: float, up: float) -> Box | None:
        """Where a node is, with its document's corner at (left, up); None where it is not laid out."""
        if node not in self.boxes:
            return None
        x, y, width, height = self.boxes[node]
        return x - self.scrolled[0] + left, y - self.scrolled[1] + up, width, height


def _share_inside(box: Sequence[float], width: float, height: float) -> float:
    """Share of a box's area within the viewport."""
    x, y, wide, high = box
    if wide <= 0 or high <= 0:
        return 0.0
    seen = max(0.0, min(x + wide, width) - max(x, 0.0)) * max(0.0, min(y + high, height) - max(y, 0.0))
    return seen / (wide * high)
