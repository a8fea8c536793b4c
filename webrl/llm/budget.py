"""Cutting a page to a number of tokens, by tokens and never through the rest of the prompt."""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from webrl.errors import PromptTooLong
from webrl.llm.tokens import encode_plain

_PAGE_SHARE = 0.25
"""History is cut (oldest first) only where it would leave the page less than this share of the prompt."""
_LIKELY_CHARS_PER_TOKEN = 4
"""A page of more characters a token of the budget is not tried whole first."""
_NOTE_TOKENS = 24
"""About what the note on left-out lines takes; more is seen at the seams."""
_MAX_CHARS_PER_TOKEN = 32
"""Beyond this many characters a token, the page's tail is cut before it is tokenised: it cannot fit."""

INTERACTIVE = re.compile(
    r"^\s*\[\w+\] (button|link|textbox|searchbox|checkbox|radio|combobox|listbox|option|menuitem\w*|tab|switch|"
    r"slider|spinbutton|treeitem|gridcell|Date|DateTime|InputTime|ColorWell)\b|"
    r"clickable|focused|, (draggable|droppable|editable)$"
)


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits, and what did not.

    Example: `Prompt(ids=(0, 1, …), observation="RootWebArea …", num_page_tokens_cut=0, num_history_cut=0)`
    """

    ids: tuple[int, ...]
    """[P] token ids, the answer's header included."""
    observation: str
    """The page text that is in it."""
    num_page_tokens_cut: int = 0
    """Tokens of the page left out (before any note about it)."""
    num_history_cut: int = 0
    """Oldest past steps left out."""
    image: bytes | None = None
    """PNG that the image tokens among `ids` stand for; None for a prompt of text alone."""


@dataclass(frozen=True)
class Page:
    """A page's text and where its tokens end, so that it is tokenised once however often it is cut."""

    text: str
    ends: Sequence[int]
    """[T] character positions, ascending."""

    @classmethod
    def of(cls, tokenizer: Any, text: str) -> Page:
        """Tokenise a page (a slow tokenizer, which knows no positions: line by line, evenly within a line)."""
        if tokenizer.is_fast:
            found = tokenizer(text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
            return cls(text, [end for _, end in found["offset_mapping"]])
        ends, start = [], 0
        for line in text.splitlines(keepends=True):
            count = len(encode_plain(tokenizer, line))
            ends += [start + len(line) * (i + 1) // count for i in range(count)]
            start += len(line)
        return cls(text, ends)


def fit_prompt(
    tokenizer: Any,
    encode: Callable[[int, str], list[int]],
    page: str,
    num_history: int,
    max_tokens: int,
    cut: Callable[[Page, int], str],
) -> Prompt:
    """Make a prompt of at most `max_tokens`: the page gives way first, then the oldest history.

    Args:
        encode: (oldest history entry shown, page text) -> ids of the whole prompt.
        num_history: number of history entries; the last one always stays.
        cut: `cut_tail` or `cut_lines`.

    Raises:
        PromptTooLong: instruction, last history entry and headers alone do not fit.
    """
    if len(page) <= _LIKELY_CHARS_PER_TOKEN * max_tokens:
        ids = encode(0, page)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), page)
    tokenised = Page.of(tokenizer, page[: _MAX_CHARS_PER_TOKEN * max_tokens])
    num_tokens, is_clipped = len(tokenised.ends), len(tokenised.text) < len(page)
    # The fewest oldest entries to leave out, so that what is left and the page's share fit; the last one stays.
    past_room = max_tokens - min(num_tokens, int(max_tokens * _PAGE_SHARE))
    start = bisect_left(range(max(0, num_history - 1)), True, key=lambda n: len(encode(n, "")) <= past_room)
    fixed = len(encode(start, ""))
    if fixed > max_tokens:
        raise PromptTooLong(
            f"the prompt without its page takes {fixed} tokens, more than max_prompt_tokens={max_tokens}: "
            "shorten the instruction or raise models.max_prompt_tokens"
        )
    room = max_tokens - fixed
    while True:
        shown = cut(tokenised, room) if num_tokens > room or is_clipped else page
        ids = encode(start, shown)
        if len(ids) <= max_tokens:
            break
        # Tokens at the seams may not add up; take the excess off the page and try again.
        room -= len(ids) - max_tokens
    num_cut = 0 if shown == page else max(0, num_tokens - (len(ids) - fixed))
    return Prompt(tuple(ids), shown, num_cut, start)


def cut_tail(page: Page, room: int) -> str:
    """The first `room` tokens of the page, ending at a character border."""
    if room <= 0:
        return ""
    return page.text if len(page.ends) <= room else page.text[: page.ends[room - 1]]


def cut_lines(page: Page, room: int) -> str:
    """Leave out whole lines, last first: lines without an interactive element go before those with one.

    A last line says how many were left out. Falls back to `cut_tail` where not even one line fits.
    """
    lines = page.text.split("\n")
    borders = list(itertools.accumulate((len(line) + 1 for line in lines), initial=0))
    tokens = [bisect_right(page.ends, border) for border in borders]  # up to each line's start
    interactive = [INTERACTIVE.search(line) is not None for line in lines]
    total = len(page.ends) + _NOTE_TOKENS
    dropped: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda i: (interactive[i], -i)):
        if total <= room:
            break
        dropped.add(index)
        total -= tokens[index + 1] - tokens[index]
    if len(dropped) == len(lines):
        return cut_tail(page, room)
    if not dropped:
        return page.text
    kept = [line for i, line in enumerate(lines) if i not in dropped]
    num_interactive = sum(interactive[i] for i in dropped)
    note = f"… {len(dropped)} lines left out, {num_interactive} of them with interactive elements"
    return "\n".join([*kept, note])
