"""Texts of others on a page: what acts without being seen is spelled out."""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
    "\U000e0000-\U000e007f]"
)
"""Characters that steer a terminal, turn the direction of text, show nothing, or are none."""


def visible(text: str) -> str:
    """The text with control characters, invisible ones and those that change the direction of writing spelled out."""
    return _UNSEEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ to ␟
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
