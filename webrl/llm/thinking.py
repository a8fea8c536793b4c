"""Which part of an answer is reasoning: kept in what is trained on, dropped before an answer is read."""

from __future__ import annotations

import re

OPEN, CLOSE = "<think>", "</think>"
_THINKING = re.compile(rf"\A.*?{CLOSE}\s*|\A\s*{OPEN}.*\Z", re.DOTALL)


def without_thinking(text: str) -> str:
    """An answer without the reasoning before it: all up to `</think>`, or all behind a `<think>` left open.

    (Templates that open the block themselves leave only `</think>` in the answer.)
    """
    return _THINKING.sub("", text, count=1)


def split_thinking(text: str) -> tuple[str, str]:
    """(reasoning with its tags, rest); joined they are `text`."""
    rest = without_thinking(text)
    return text[: len(text) - len(rest)], rest
