"""A page's pruned HTML and its elements, from one DOM snapshot: what OpenEnv's clients get with the text.

The page has just been marked (`mark.js`), so that elements carry their `bid`. Both forms are BrowserGym's
(`extract_dom_extra_properties`; `flatten_dom_to_str` followed by `prune_html`), without its indentation; `visibility`
is the share of an element's box inside the viewport, which does not know of elements above it.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

MAX_HTML_CHARS = 2_000_000
"""Pruned HTML is cut here."""
_ELEMENT, _TEXT = 1, 3
_DROPPED = frozenset(("style", "link", "script", "br"))
_UNWRAPPED = frozenset(("html", "body", "#document"))
_BARE = frozenset(("div", "span", "i", "p"))
"""Kept only with their own attributes."""
_VOID = frozenset(("area", "base", "col", "embed", "hr", "img", "input", "meta", "source", "track", "wbr"))


@dataclass(frozen=True)
class PageDetails:
    """See the module docstring."""

    html: str
    """The pruned HTML."""
    elements: dict[str, dict[str, Any]]
    """By bid: `bbox` ([x, y, width, height] in screenshot pixels from the viewport's top left corner, or None if the
    element is not laid out), `visibility` (0 to 1), `clickable`, `set_of_marks` (clickable and at least half visible).
    """


def describe(
    snapshot: dict[str, Any], hidden_ids: Collection[str], scale: float, viewport: tuple[int, int]
) -> PageDetails:
    """A page's pruned HTML and elements, without those of `hidden_ids` and what is in them, from the answer of CDP's
    `DOMSnapshot.captureSnapshot` with DOM rectangles. `scale`: screenshot pixels per CSS pixel, in which `viewport` is.
    """
    strings: Sequence[str] = snapshot["strings"]
    documents = [_Document(data, strings) for data in snapshot["documents"]]
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
            flat = [strings[index] if index >= 0 else "" for index in document.attributes[node]]
            attributes = dict(zip(flat[::2], flat[1::2], strict=True))
            if attributes.get("id") in hidden:
                continue
            box: list[float] = []
            if node in document.boxes:
                x, y, wide, high = document.boxes[node]
                box = [x - document.scrolled[0] + left, y - document.scrolled[1] + up, wide, high]
            if bid := attributes.get("bid"):
                visible, clickable = 0.0, node in document.clickable
                if box and wide > 0 and high > 0:  # the share of its area within the viewport
                    seen_wide = min(box[0] + wide, viewport[0]) - max(box[0], 0.0)
                    seen_high = min(box[1] + high, viewport[1]) - max(box[1], 0.0)
                    visible = max(0.0, seen_wide) * max(0.0, seen_high) / (wide * high)
                elements[bid] = {
                    "bbox": [scale * number for number in box] or None,
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
                corner = box[:2] or [left, up]
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
        self.attributes: Sequence[Sequence[int]] = nodes["attributes"]
        self.clickable = frozenset(nodes.get("isClickable", {}).get("index", ()))
        inner = nodes.get("contentDocumentIndex", {})
        self.frames = dict(zip(inner.get("index", ()), inner.get("value", ()), strict=True))
        layout = data["layout"]
        self.boxes: dict[int, Sequence[float]] = {}
        for number, bounds, shown in zip(layout["nodeIndex"], layout["bounds"], layout["clientRects"], strict=True):
            if shown:  # empty: not rendered
                self.boxes[number] = bounds
        self.scrolled = (float(data.get("scrollOffsetX") or 0), float(data.get("scrollOffsetY") or 0))
