"""The action language of released WebRL checkpoints: `do(...)` and `exit(...)` calls.

API: `bind_webrl(name, positional, keywords) -> Action` (raises `ActionError`). A WebRL action becomes the BrowserGym
actions that have its effect, the second and later ones in `Action.rest`; its canonical form stays in the language it
was written in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from webrl.rollouts.actions import ACTIONS, Action, ActionError, Parameter, bind

SCROLL_PX = 480
"""How far `Scroll Up` and `Scroll Down` go: two thirds of WebArena's window of 720, as in VAB-WebArena-Lite."""

SIGNATURES: dict[str, Sequence[Parameter]] = {
    "do": [Parameter("action", "str"), Parameter("argument", "text", None), Parameter("element", "id", None)],
    "exit": [Parameter("message", "text", "")],
    "go_backward": [],
    "go_forward": [],
}


def _simple(name: str, **arguments: Any) -> Action:
    return Action(name, bind(name, ACTIONS[name], (), arguments))


_Maker = Callable[[str, str], list[Action]]
"""(element id, argument) -> what to do."""

# action -> (needs an element, needs an argument, maker)
_DO: dict[str, tuple[bool, bool, _Maker]] = {
    "Click": (True, False, lambda e, _: [_simple("click", bid=e)]),
    "Right Click": (True, False, lambda e, _: [_simple("click", bid=e, button="right")]),
    "Type": (True, True, lambda e, a: [_simple("fill", bid=e, value=a)]),
    "Search": (True, True, lambda e, a: [_simple("fill", bid=e, value=a), _simple("press", bid=e, key_comb="Enter")]),
    "Hover": (True, False, lambda e, _: [_simple("hover", bid=e)]),
    "Scroll Up": (False, False, lambda *_: [_simple("scroll", delta_x=0, delta_y=-SCROLL_PX)]),
    "Scroll Down": (False, False, lambda *_: [_simple("scroll", delta_x=0, delta_y=SCROLL_PX)]),
    "Press Enter": (False, False, lambda *_: [_simple("keyboard_press", key="Enter")]),
    "Switch Tab": (False, True, lambda _, a: [_simple("tab_focus", index=_tab_number(a))]),
    "Select Dropdown Option": (True, True, lambda e, a: [_simple("select_option", bid=e, options=a)]),
    "Wait": (False, False, lambda *_: [_simple("noop")]),
}


def bind_webrl(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> Action:
    """The action of `do(action=…, argument=…, element=…)`, `exit(message=…)`, `go_backward()` or `go_forward()`.

    Raises ActionError.
    """
    values = bind(name, SIGNATURES[name], positional, keywords)
    written = f"{name}({', '.join(f'{key}={value!r}' for key, value in values.items() if value is not None)})"
    if name == "exit":
        return Action("send_msg_to_user", {"text": values["message"]}, written)
    if name != "do":
        return Action("go_back" if name == "go_backward" else "go_forward", {}, written)
    parts = _parts(values["action"], values["argument"], values["element"])
    return Action(parts[0].name, parts[0].arguments, written, tuple(parts[1:]))


def _parts(action: str, argument: str | None, element: str | None) -> list[Action]:
    if action not in _DO:
        raise ActionError(f"Invalid action {action!r}; expected one of {', '.join(_DO)}.")
    needs_element, needs_argument, make = _DO[action]
    if needs_element and not element:
        raise ActionError(f"do(action={action!r}) needs an element.")
    if needs_argument and argument is None:
        raise ActionError(f"do(action={action!r}) needs an argument.")
    return make(element or "", argument or "")


def _tab_number(argument: str) -> int:
    if not argument.strip().isdecimal():
        raise ActionError(f"'Switch Tab' needs a number as its argument, got {argument!r:.100}.")
    return int(argument)
