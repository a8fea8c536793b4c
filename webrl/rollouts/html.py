"""Pages as the simplified HTML that released WebRL checkpoints read.

The rules are those of VAB-WebArena-Lite's `html_tools`, reimplemented. `html_page.js` copies the document and marks
every element with what can be seen of it; `simplify` turns the copy into text:

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
from collections.abc import Sequence
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
