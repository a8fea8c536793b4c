"""Simplified HTML: the text of a page that the released WebRL checkpoints were trained on.

The rules are those of VAB-WebArena-Lite's `html_tools`, reimplemented. `html_page.js` copies the document and
marks every element with what can be seen of it; `simplify` turns the copy into text:

- an element is *seen* if it has a box that touches the window and is not `aria-hidden`; the options of a
  select that is kept count as seen;
- a seen element is *kept* if it is numbered (clickable, innermost, not covered), or has leading text or an
  attribute worth showing, or if two or more of its children have (seen or not); numbered elements are kept
  even where they are not seen;
- an element that is not kept is replaced by its kept descendants, and its text is dropped;
- kept elements print as `<tag id="number" attr="value" …> text children </tag>`, without escaping; values are
  stripped, cut at 500 characters, and one that repeats an earlier attribute's value is left out.

Boxes are data here: `data-bbox="left,top,width,height"` in window pixels.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import Page

SHOWN_ATTRIBUTES = (
    "title",
    "value",
    "type",
    "placeholder",
    "selected",
    "data-value",
    "data-text",
    "data-testid",
    "data-label",
    "data-bbox",
    "data-status",
)
"""Attributes that are shown, in the order in which they are shown."""

MAX_TEXT = 500
"""Characters kept of one text or attribute value."""

_LABEL = "data-label-id"
_BOX = "data-bbox"
_DROPPED = (("<!--", "", "-->"), ("<style", ">", "</style>"), ("<script", ">", "</script>"))
"""What is cut out, as (start, end of its tag, end): searched for without a regular expression, which on a page of
unclosed tags takes cubic time."""


async def hide_scrollbars(page: Page) -> None:
    """Lay the page out as in the released harness, whose browser hides scroll bars (BrowserGym's shows them)."""
    from playwright.async_api import Error

    with contextlib.suppress(Error):  # a page that closes at once
        session = await page.context.new_cdp_session(page)  # the setting lasts as long as the session
        await session.send("Emulation.setScrollbarsHidden", {"hidden": True})


def simplify(html: str, width: float, height: float) -> str:
    """Text of an annotated document (`html_page.js`) in a window of `width` x `height` pixels."""
    import lxml.etree  # type: ignore[import-untyped]
    import lxml.html  # type: ignore[import-untyped]

    for marks in _DROPPED:
        html = _without(html, *marks)
    html = re.sub(r"\s+", " ", html).strip()
    if not html:
        return ""
    # Bytes, as in the released tool: libxml2 then takes the encoding from the page's own <meta charset>.
    try:
        root = lxml.html.fromstring(html.encode("utf-8", "replace"))
    except lxml.etree.ParserError:  # nothing in it but comments, NUL characters or declarations
        return ""
    text, _ = _render(root.getroottree().getroot(), width, height, parent_is_kept_select=False)
    return text


def _without(html: str, start: str, tag_end: str, end: str) -> str:
    """The text without every stretch from `start` over `tag_end` to `end`; one that does not end stays."""
    kept, position = [], 0
    while (first := html.find(start, position)) >= 0:
        inside = html.find(tag_end, first + len(start))
        last = html.find(end, inside + len(tag_end)) if inside >= 0 else -1
        if last < 0:
            break
        kept.append(html[position:first])
        position = last + len(end)
    return "".join((*kept, html[position:]))


def _render(node: Any, width: float, height: float, parent_is_kept_select: bool) -> tuple[str, bool]:
    """(text of the subtree, whether it has anything to show)."""
    if not isinstance(node.tag, str):  # a comment or processing instruction
        return "", False
    label = node.get(_LABEL, "")
    seen = _is_seen(node, width, height)
    can_keep = seen or bool(label) or (parent_is_kept_select and node.tag == "option")
    content = (node.text or "").strip()[:MAX_TEXT]
    attributes = _attributes(node)
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
        text = _element(node.tag, label, attributes, content, text)
    return text, num_speaking > 0 or speaks


def _is_seen(node: Any, width: float, height: float) -> bool:
    try:
        left, top, box_width, box_height = map(float, node.get(_BOX, "").split(","))
    except ValueError:
        return False
    is_in_window = left + box_width >= 0 and left <= width and top + box_height >= 0 and top <= height
    return is_in_window and node.get("aria-hidden", "false") != "true"


def _attributes(node: Any) -> dict[str, str]:
    shown = {}
    for name in SHOWN_ATTRIBUTES:
        value = node.get(name, "")
        if name == "type" and value == "hidden":
            continue
        value = value.strip()[:MAX_TEXT]
        if value:
            shown[name] = value
    return shown


def _element(tag: str, label: str, attributes: dict[str, str], content: str, children: str) -> str:
    opening = [tag]
    if label:
        opening.append(f'id="{label}"')
    values: set[str] = set()
    for name, value in attributes.items():
        if value not in values:
            values.add(value)
            opening.append(f'{name}="{value}"')
    inner = "".join(f" {text}" for text in (content, children) if text)
    return f"<{' '.join(opening)}>{inner} </{tag}>"
