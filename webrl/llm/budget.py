"""Cutting a page to a number of tokens, by tokens and never through the rest of the prompt."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from webrl.errors import PolicyError
from webrl.llm.tokens import encode_plain

_PAGE_SHARE = 0.25
"""History is cut (oldest first) only where it would leave the page less than this share of the prompt."""
_MAX_CHARS_PER_TOKEN = 32
"""Beyond this many characters a token, the page's tail is cut before it is tokenised: it cannot fit."""

_INTERACTIVE = re.compile(
    r"^\s*\[\w+\] (button|link|textbox|searchbox|checkbox|radio|combobox|listbox|option|menuitem\w*|tab|switch|"
    r"slider|spinbutton|treeitem|gridcell|Date|DateTime|InputTime|ColorWell)\b|clickable|focused"
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


def fit_prompt(
    tokenizer: Any,
    encode: Callable[[int, str], list[int]],
    page: str,
    num_history: int,
    max_tokens: int,
    cut: Callable[[Any, str, int], str],
) -> Prompt:
    """Make a prompt of at most `max_tokens`: the page gives way first, then the oldest history.

    Args:
        encode: (oldest history entry shown, page text) -> ids of the whole prompt.
        num_history: number of history entries; the last one always stays.
        cut: `cut_tail` or `cut_lines`.

    Raises:
        PolicyError: instruction, last history entry and headers alone do not fit.
    """
    if len(page) > _MAX_CHARS_PER_TOKEN * max_tokens:
        clipped = page[: _MAX_CHARS_PER_TOKEN * max_tokens]
    else:
        clipped = page
        ids = encode(0, page)
        if len(ids) <= max_tokens:
            return Prompt(tuple(ids), page)
    num_tokens = len(encode_plain(tokenizer, clipped))
    start = _first_history(encode, num_history, max_tokens - min(num_tokens, int(max_tokens * _PAGE_SHARE)))
    fixed = len(encode(start, ""))
    if fixed > max_tokens:
        raise PolicyError(
            f"the prompt without its page takes {fixed} tokens, more than max_prompt_tokens={max_tokens}: "
            "shorten the instruction or raise models.max_prompt_tokens"
        )
    room = max_tokens - fixed
    while True:
        shown = cut(tokenizer, clipped, room) if num_tokens > room or clipped is not page else page
        ids = encode(start, shown)
        if len(ids) <= max_tokens:
            break
        # Tokens at the seams may not add up; take the excess off the page and try again.
        room -= len(ids) - max_tokens
    kept = min(num_tokens, len(encode_plain(tokenizer, shown)))
    return Prompt(tuple(ids), shown, num_tokens - kept, start)


def _first_history(encode: Callable[[int, str], list[int]], num_history: int, room: int) -> int:
    """Fewest oldest entries to leave out so that the prompt without its page fits `room`; the last one stays."""
    low, high = 0, max(0, num_history - 1)
    while low < high:
        middle = (low + high) // 2
        if len(encode(middle, "")) <= room:
            high = middle
        else:
            low = middle + 1
    return low


def cut_tail(tokenizer: Any, page: str, room: int) -> str:
    """The first `room` tokens of the page, ending at a character border."""
    if room <= 0:
        return ""
    if not tokenizer.is_fast:
        return _common_prefix(page, tokenizer.decode(encode_plain(tokenizer, page)[:room]))
    encoded = tokenizer(page, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True)
    offsets = encoded["offset_mapping"]
    return page if len(offsets) <= room else page[: offsets[room - 1][1]]


def cut_lines(tokenizer: Any, page: str, room: int) -> str:
    """Leave out whole lines, last first: lines without an interactive element go before those with one.

    A last line says how many were left out. Falls back to `cut_tail` where not even one line fits.
    """
    lines = page.split("\n")
    costs = [len(encode_plain(tokenizer, line + "\n")) for line in lines]
    interactive = [_INTERACTIVE.search(line) is not None for line in lines]
    note = _note(len(lines), sum(interactive))
    total = sum(costs) + len(encode_plain(tokenizer, note))
    dropped: set[int] = set()
    for index in sorted(range(len(lines)), key=lambda i: (interactive[i], -i)):
        if total <= room:
            break
        dropped.add(index)
        total -= costs[index]
    if len(dropped) == len(lines):
        return cut_tail(tokenizer, page, room)
    if not dropped:
        return page
    kept = [line for i, line in enumerate(lines) if i not in dropped]
    return "\n".join([*kept, _note(len(dropped), sum(interactive[i] for i in dropped))])


def _note(num_lines: int, num_interactive: int) -> str:
    return f"… {num_lines} lines left out, {num_interactive} of them with interactive elements"


def _common_prefix(a: str, b: str) -> str:
    end = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:end]
