"""Page text as it is shown: what would control a terminal or reorder lines made visible, long texts cut, the element
that was acted on found.

Jinja2 escapes what comes from here: nothing in this module is markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from webrl.rollouts.actions import Action
from webrl.rollouts.answers import read_any
from webrl.runs.spelling import visible

SHOWN_CHARS = 20_000
"""Of a longer text, the beginning and the surroundings of the acted element are shown."""
_HEAD_CHARS = 8_000
_ELEMENT_ARGUMENTS = ("bid", "from_bid", "to_bid")


@dataclass(frozen=True)
class Piece:
    """A part of a text."""

    text: str
    kind: str = ""
    """`acted`: the element that was acted on; `cut`: says what is left out here; else ""."""


def pieces(text: str, elements: tuple[str, ...] = (), limit: int = SHOWN_CHARS) -> list[Piece]:
    """A page's text, cut to `limit` characters, with the lines of some elements marked."""
    spans = list(_element_lines(text, elements))
    windows = [(0, len(text))] if len(text) <= limit else _windows(text, spans, limit)
    parts: list[Piece] = []
    end = 0
    for start, stop in windows:
        if start > end:
            parts.append(_left_out(start - end))
        at = start
        for first, last in spans:
            if start <= first < stop:
                parts += [Piece(visible(text[at:first])), Piece(visible(text[first : min(last, stop)]), "acted")]
                at = min(last, stop)
        parts.append(Piece(visible(text[at:stop])))
        end = stop
    if end < len(text):
        parts.append(_left_out(len(text) - end))
    return [part for part in parts if part.text]


def acted_elements(action: str) -> tuple[str, ...]:
    """Ids of the elements that an action, in either dialect, acts on."""
    first = read_any(action)
    return tuple(dict.fromkeys(_ids(first))) if first else ()


def _ids(action: Action) -> Iterator[str]:
    for part in (action, *action.rest):
        yield from (str(part.arguments[name]) for name in _ELEMENT_ARGUMENTS if part.arguments.get(name))


def _element_lines(text: str, elements: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """(start, end) of what shows each element: `[12] button 'Ok'` of an accessibility tree, `<a id="12" …>` of HTML."""
    if not elements:
        return
    names = "|".join(re.escape(element) for element in elements)
    pattern = rf'^[ \t]*(\[(?:{names})\] [^\n]*)|(<\w+ (?:bid|id)="(?:{names})"[^>\n]*>)'
    for found in re.finditer(pattern, text, re.MULTILINE):
        yield found.span(1 if found[1] is not None else 2)


def _windows(text: str, spans: list[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
    outside = next((first for first, _ in spans), 0)
    if outside < limit or not spans:
        return [(0, limit)]
    start = max(_HEAD_CHARS, outside - (limit - _HEAD_CHARS) // 2)
    return [(0, _HEAD_CHARS), (start, min(len(text), start + limit - _HEAD_CHARS))]


def _left_out(count: int) -> Piece:
    return Piece(f"\n… {count:,} characters are left out here …\n", "cut")
