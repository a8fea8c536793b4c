"""The action names that public BrowserGym scripts teach their models and that BrowserGym itself does not know.

API: `spell_out(text) -> str` returns the BrowserGym call that is meant, or the text as it is.

    type('13', 'Ann')     fill('13', 'Ann')
    type('Ann')           keyboard_type('Ann')
    send_keys('Enter')    keyboard_press('Enter')       a key, or a combination such as Control+a
    send_keys('Ann')      keyboard_type('Ann')
    scroll('down')        scroll(0, 480)                up, down, left, right; also scroll(down)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from webrl.rollouts.actions import ActionError, parse_call
from webrl.rollouts.dialects import SCROLL_PX

_DIRECTIONS = {"up": (0, -SCROLL_PX), "down": (0, SCROLL_PX), "left": (-SCROLL_PX, 0), "right": (SCROLL_PX, 0)}
_BARE_DIRECTION = re.compile(rf"\bscroll\(\s*({'|'.join(_DIRECTIONS)})\s*\)")
_KEYS = (
    "Enter|Tab|Escape|Backspace|Delete|Insert|Space|Home|End|PageUp|PageDown|CapsLock|ContextMenu"
    "|Arrow(?:Up|Down|Left|Right)|F(?:[1-9]|1[0-2])"
)
_MODIFIERS = "Alt|Control|ControlOrMeta|Meta|Shift"
_KEY = re.compile(rf"(?:(?:{_MODIFIERS})\+)+(?:{_KEYS}|\S)|{_KEYS}|{_MODIFIERS}")


def spell_out(text: str) -> str:
    """The action in BrowserGym's own words; what is no alias, or cannot be read, is returned as it is."""
    try:
        name, positional, keywords = parse_call(_BARE_DIRECTION.sub(r"scroll('\1')", text))
    except ActionError:
        return text
    values = [*positional, *keywords.values()]
    if name not in _MEANINGS or not all(isinstance(value, str) for value in values):
        return text
    return _MEANINGS[name](values) or text


def _type(values: list[Any]) -> str | None:
    if len(values) == 1:
        return f"keyboard_type({values[0]!r})"
    return f"fill({values[0]!r}, {values[1]!r})" if len(values) == 2 else None


def _send_keys(values: list[Any]) -> str | None:
    if len(values) != 1:
        return None
    return f"keyboard_{'press' if _KEY.fullmatch(values[0]) else 'type'}({values[0]!r})"


def _scroll(values: list[Any]) -> str | None:
    if len(values) != 1 or values[0] not in _DIRECTIONS:
        return None
    x, y = _DIRECTIONS[values[0]]
    return f"scroll({x}, {y})"


_MEANINGS: dict[str, Callable[[list[Any]], str | None]] = {"type": _type, "send_keys": _send_keys, "scroll": _scroll}
