"""Pages as HTML: the simplified one that released WebRL checkpoints read, and the pruned one of BrowserGym.

Simplified: the rules are those of VAB-WebArena-Lite's `html_tools`, reimplemented. `html_page.js` copies the document
and marks every element with what can be seen of it; `simplify` turns the copy into text:

- an element is *seen* if it has a box that touches the window and is not `aria-hidden`; the options of a
  select that is kept count as seen;
- a seen element is *kept* if it is numbered (clickable, innermost, not covered), or has leading text or an
  attribute worth showing, or if two or more of its children have (seen or not); numbered elements are kept
  even where they are not seen;
- an element that is not kept is replaced by its kept descendants, and its text is dropped;
- kept elements print as `<tag id="number" attr="value" …> text children </tag>`, without escaping; values are
  stripped, cut at 500 characters, and one that repeats an earlier attribute's value is left out.

Boxes are data here: `data-bbox="left,top,width,height"` in window pixels.

Pruned, with a page's elements, from one DOM snapshot: what OpenEnv's clients get with the text. The page has just been
marked (`mark.js`), so that elements carry their `bid`. Both forms are BrowserGym's (`extract_dom_extra_properties`;
`flatten_dom_to_str` followed by `prune_html`), without its indentation; `visibility` is the share of an element's box
inside the viewport, which does not know of elements above it.
"""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from webrl.rollouts.devtools import load_script

if TYPE_CHECKING:
    from webrl.rollouts.devtools import Tab

SHOWN_ATTRIBUTES = (
    *("title", "value", "type", "placeholder", "selected", "data-value", "data-text", "data-testid", "data-label"),
    *("data-bbox", "data-status"),
)
"""Attributes that are shown, in the order in which they are shown."""

MAX_TEXT = 500
"""Characters kept of one text or attribute value."""

_LABEL = "data-label-id"
_BOX = "data-bbox"
_CUT_OUT = (("<!--", "", "-->"), ("<style", ">", "</style>"), ("<script", ">", "</script>"))
"""What is cut out, as (start, end of its tag, end): searched for without a regular expression, which on a page of
unclosed tags takes cubic time."""


async def observe_html(tab: Tab, hidden_ids: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The page as the simplified HTML of released WebRL checkpoints, and the bid of each number in it."""
    import lxml.html  # type: ignore[import-untyped]

    found = await tab.evaluate(f"({load_script('html_page')})()")
    document = found["html"]
    if hidden_ids:
        root = lxml.html.document_fromstring(document)
        for name in hidden_ids:
            for element in root.xpath("//*[@id=$name]", name=name):
                element.drop_tree()
        document = str(lxml.html.tostring(root, encoding="unicode"))
    text = simplify(document, found["width"], found["height"])
    if not text:
        text = "\n".join(f"Not shown: {what.format(number)}." for what, number in found["lacks"].items() if number)
    return text, {label: bid for label, bid in found["labels"] if bid}


def simplify(document: str, width: float, height: float) -> str:
    """Text of an annotated document (`html_page.js`) in a window of `width` x `height` pixels."""
    import lxml.etree  # type: ignore[import-untyped]
    import lxml.html

    for start, tag_end, end in _CUT_OUT:
        kept, position = [], 0
        while (first := document.find(start, position)) >= 0:
            inside = document.find(tag_end, first + len(start))
            last = document.find(end, inside + len(tag_end)) if inside >= 0 else -1
            if last < 0:  # one that does not end stays
                break
            kept.append(document[position:first])
            position = last + len(end)
        document = "".join((*kept, document[position:]))
    document = re.sub(r"\s+", " ", document).strip()
    if not document:
        return ""
    # Bytes, as in the released tool: libxml2 then takes the encoding from the page's own <meta charset>.
    try:
        root = lxml.html.fromstring(document.encode("utf-8", "replace"))
    except lxml.etree.ParserError:  # nothing in it but comments, NUL characters or declarations
        return ""
    text, _ = _render(root.getroottree().getroot(), width, height, parent_is_kept_select=False)
    return text


def _render(node: Any, width: float, height: float, parent_is_kept_select: bool) -> tuple[str, bool]:
    """(text of the subtree, whether it has anything to show)."""
    if not isinstance(node.tag, str):  # a comment or processing instruction
        return "", False
    label = node.get(_LABEL, "")
    seen = False
    with contextlib.suppress(ValueError):  # it has no box
        left, top, wide, high = map(float, node.get(_BOX, "").split(","))
        in_window = left + wide >= 0 and left <= width and top + high >= 0 and top <= height
        seen = in_window and node.get("aria-hidden", "false") != "true"
    can_keep = seen or bool(label) or (parent_is_kept_select and node.tag == "option")
    content = (node.text or "").strip()[:MAX_TEXT]
    values = {name: node.get(name, "") for name in SHOWN_ATTRIBUTES}
    shown = {name: value.strip()[:MAX_TEXT] for name, value in values.items() if (name, value) != ("type", "hidden")}
    attributes = {name: value for name, value in shown.items() if value}
    speaks = bool(content) or any(name != _BOX for name in attributes)

    parts = []
    num_speaking = 0
    for child in node:
        text, child_speaks = _render(child, width, height, can_keep and node.tag == "select")
        num_speaking += child_speaks
        if text:
            parts.append(text)
    text = " ".join(parts)
    if can_keep and (num_speaking > 1 or speaks or (label and seen)):
        opening = [node.tag, f'id="{label}"'] if label else [node.tag]
        written: set[str] = set()
        for name, value in attributes.items():
            if value not in written:
                written.add(value)
                opening.append(f'{name}="{value}"')
        inner = "".join(f" {part}" for part in (content, text) if part)
        text = f"<{' '.join(opening)}>{inner} </{node.tag}>"
    return text, num_speaking > 0 or speaks


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
