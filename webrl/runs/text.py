"""Texts of others: JSON that may be no valid Unicode, and pages on which what acts without being seen is spelled out.

Half an emoji (a lone surrogate) is U+FFFD, in both directions. A page can hold one, and so can an action or a model's
answer: JavaScript cuts texts anywhere, and JSON can spell each half. UTF-8 has none, so `orjson` refuses them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from webrl.types import Record


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate; two that make a pair become their character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def dump_json(value: Any, option: int | None = None) -> bytes:
    """Call `orjson.dumps`. Raises TypeError for what JSON does not know."""
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return orjson.dumps(_valid(value), option=option)


def load_json(data: bytes | str) -> Any:
    """Call `orjson.loads`. Raises orjson.JSONDecodeError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return _valid(json.loads(data if isinstance(data, str) else data.decode("utf-8", "replace")))
        except (ValueError, RecursionError):
            pass
        raise


def _valid(value: Any) -> Any:
    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, dict):
        return {valid_text(key): _valid(item) for key, item in value.items()}
    if isinstance(value, Record):
        return _valid(vars(value))
    return [_valid(item) for item in value] if isinstance(value, list | tuple) else value


_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff"
    "\U000e0000-\U000e007f]"
)
"""Characters that steer a terminal, turn the direction of text, show nothing, or are not characters."""


def visible(text: str) -> str:
    """The text with control characters, invisible ones and those that change the direction of writing spelled out."""
    return _UNSEEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)  # ␀ to ␟
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"
