"""Actions as data: parsed with `ast`, never evaluated; only calls of known names with literal arguments.

API: `parse_action(text) -> Action` (raises `ActionError`), `Action(name, arguments).canonical`. Names, parameters
and defaults are those of BrowserGym's HighLevelActionSet. `bind_webrl(name, positional, keywords) -> Action` reads the
action language of released WebRL checkpoints, `do(...)` and `exit(...)`: an action becomes the BrowserGym actions that
have its effect, the second and later ones in `Action.rest`; its canonical form stays in the language it was written in.
`webrl/rollouts/execute.py` carries actions out.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from webrl.runs.text import valid_text

MAX_ACTION_CHARS = 20_000
_QUIET = threading.Lock()
REQUIRED = object()
_BUTTONS = ("left", "middle", "right")
ID = re.compile(r"[A-Za-z]*\d+")
"""An element's id: a number, after letters where it is in a frame."""
MODIFIERS = ("Alt", "Control", "ControlOrMeta", "Meta", "Shift")


class ActionError(ValueError):
    """An action that cannot be read; the text is shown to the agent."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an action."""

    name: str
    kind: str
    """`str` (a whole number is read as one), `number`, `int`, `bool`, `strs` (one string or a list), `button`,
    `modifiers`; `bid` (an element's id: 12, '12', a12, [12]), `id` (the same, or None), `text` (a string, number or
    None)."""
    default: Any = REQUIRED


@dataclass(frozen=True)
class Action:
    """One readable action.

    Example: `Action("fill", {"bid": "13", "value": "Ann", "enable_autocomplete_menu": False})`
    """

    name: str
    """Name of the BrowserGym function."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Every parameter's value, defaults included."""
    written: str = ""
    """Canonical form in the dialect it was written in, if that is not BrowserGym's."""

    rest: tuple[Action, ...] = ()
    """What follows, where one written action takes several (`Search`: fill, then Enter)."""
    note: str = field(default="", compare=False)
    """What was taken, where the answer says something else; "" where it says this."""

    @property
    def canonical(self) -> str:
        """One spelling for equal actions: `click('12')`; arguments at their defaults are left out."""
        if self.written:
            return self.written
        parts = []
        positional = True
        for parameter in ACTIONS[self.name]:
            value = self.arguments[parameter.name]
            if parameter.default is not REQUIRED and value == parameter.default:
                positional = False
            else:
                parts.append(repr(value) if positional else f"{parameter.name}={value!r}")
        return f"{self.name}({', '.join(parts)})"


def _point(*names: str) -> list[Parameter]:
    return [Parameter(name, "number") for name in names]


_BID = Parameter("bid", "bid")
_BUTTON = Parameter("button", "button", "left")
_MODIFIER = Parameter("modifiers", "modifiers", [])
_KEY = Parameter("key", "str")
_TEXT = Parameter("text", "str")

ACTIONS: dict[str, Sequence[Parameter]] = {
    "noop": [Parameter("wait_ms", "number", 1000)],
    "send_msg_to_user": [_TEXT],
    "report_infeasible": [Parameter("reason", "str")],
    "click": [_BID, _BUTTON, _MODIFIER],
    "dblclick": [_BID, _BUTTON, _MODIFIER],
    "hover": [_BID],
    "fill": [_BID, Parameter("value", "str"), Parameter("enable_autocomplete_menu", "bool", False)],
    "clear": [_BID],
    "check": [_BID],
    "uncheck": [_BID],
    "select_option": [_BID, Parameter("options", "strs")],
    "press": [_BID, Parameter("key_comb", "str")],
    "focus": [_BID],
    "drag_and_drop": [Parameter("from_bid", "bid"), Parameter("to_bid", "bid")],
    "upload_file": [_BID, Parameter("file", "strs")],
    "scroll": _point("delta_x", "delta_y"),
    "scroll_at": _point("x", "y", "dx", "dy"),
    "mouse_move": _point("x", "y"),
    "mouse_down": [*_point("x", "y"), _BUTTON],
    "mouse_up": [*_point("x", "y"), _BUTTON],
    "mouse_click": [*_point("x", "y"), _BUTTON],
    "mouse_dblclick": [*_point("x", "y"), _BUTTON],
    "mouse_drag_and_drop": _point("from_x", "from_y", "to_x", "to_y"),
    "mouse_upload_file": [*_point("x", "y"), Parameter("file", "strs")],
    "keyboard_press": [_KEY],
    "keyboard_up": [_KEY],
    "keyboard_down": [_KEY],
    "keyboard_type": [_TEXT],
    "keyboard_insert_text": [_TEXT],
    "goto": [Parameter("url", "str")],
    "go_back": [],
    "go_forward": [],
    "new_tab": [],
    "tab_close": [],
    "tab_focus": [Parameter("index", "int")],
}
"""Every action with its parameters, in BrowserGym's order."""
_SYNONYMS = {
    **dict.fromkeys(("id", "element", "element_id"), ("bid",)),
    "text": ("value",),
    **dict.fromkeys(("option", "value", "label"), ("options",)),
    "key": ("key_comb",),
    "keys": ("key_comb", "key", "text"),
}
"""Names of arguments that can only mean one."""


class Bare(str):
    """A word without quotes; only an element's id is read from one."""


def parse_action(text: str) -> Action:
    """Read one BrowserGym call, e.g. `click('12')` or `fill(bid='13', value='x')`; comments are ignored.

    Raises:
        ActionError: not exactly one call of a known action with literal arguments of the right types.
    """
    name, positional, keywords = parse_call(text)
    if name not in ACTIONS:
        raise ActionError(f"No action {name!r}.")
    return Action(name, bind(name, ACTIONS[name], positional, keywords))


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """(name, positional, keyword arguments) of the one call that `text` is; arguments are literals.

    Raises ActionError.
    """
    if len(text) > MAX_ACTION_CHARS:
        raise ActionError(f"The action is {len(text)} characters long; at most {MAX_ACTION_CHARS} are read.")
    text = valid_text(text)
    try:
        # A model's escapes, '\\p', are no fault of our code. What is ignored is the process's, not the thread's.
        with _QUIET, warnings.catch_warnings(action="ignore"):
            body = ast.parse(text.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ActionError(f"Not an action: {text.strip()!r:.200}. Expected one call such as click('12').") from None
    if not body:
        raise ActionError("There is no action. Expected one call such as click('12').")
    if len(body) > 1:
        raise ActionError("There are several actions. Expected one call such as click('12').")
    call = body[0].value if isinstance(body[0], ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ActionError(f"Not an action: {text.strip()!r:.200}. Expected one call such as click('12').")
    positional = [_literal(node) for node in call.args]
    keywords: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in keywords:
            raise ActionError(f"Repeated or unnamed argument in {text.strip()!r:.200}.")
        keywords[keyword.arg] = _literal(keyword.value)
    return call.func.id, positional, keywords


def bind(
    name: str, parameters: Sequence[Parameter], positional: Sequence[Any], keywords: dict[str, Any]
) -> dict[str, Any]:
    """Match arguments with parameters, check their types, fill in defaults. Raises ActionError."""
    if len(positional) > len(parameters):
        raise ActionError(f"{name}() takes {len(parameters)} arguments, {len(positional)} were given.")
    names = [parameter.name for parameter in parameters]
    given = dict(zip(names, positional, strict=False))
    for key, value in keywords.items():
        known = key if key in names else next((n for n in _SYNONYMS.get(key, ()) if n in names), None)
        if known is None:
            raise ActionError(f"{name}() has no argument {key!r}; it takes {', '.join(names) or 'none'}.")
        if known in given:
            raise ActionError(f"{name}() got argument {known!r} twice.")
        given[known] = value
    bound = {}
    for parameter in parameters:
        value = given.get(parameter.name, parameter.default)
        if value is REQUIRED:
            raise ActionError(f"{name}() is missing its argument {parameter.name!r}.")
        bound[parameter.name] = _check(name, parameter, value)
    return bound


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return Bare(node.id)
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ActionError(f"Arguments must be literals, found {ast.unparse(node)!r:.100}.") from None
    if isinstance(value, list | tuple):
        return [valid_text(item) if isinstance(item, str) else item for item in value]
    return valid_text(value) if isinstance(value, str) else value


def _check(name: str, parameter: Parameter, value: Any) -> Any:
    kind = parameter.kind
    if kind in ("bid", "id"):
        return None if kind == "id" and value is None else _element(name, value)
    if kind in ("str", "strs") and type(value) is int:
        value = str(value)
    good = (
        not isinstance(value, Bare)
        and {
            "str": lambda: isinstance(value, str),
            "text": lambda: value is None or isinstance(value, str) or type(value) in (int, float),
            "bool": lambda: isinstance(value, bool),
            "int": lambda: type(value) is int and abs(value) < 1e9,
            "number": lambda: type(value) in (int, float) and abs(value) < 1e9,
            "strs": lambda: isinstance(value, str) or _is_strings(value),
            "button": lambda: value in _BUTTONS,
            "modifiers": lambda: _is_strings(value) and set(value) <= set(MODIFIERS),
        }[kind]()
    )
    if not good:
        wanted = {"str": "a string", "strs": "a string or a list of strings", "number": "a number"}.get(kind, kind)
        quoted = f"; put it in quotes: {str(value)!r:.100}" if isinstance(value, Bare) else ""
        raise ActionError(f"{name}(): {parameter.name} must be {wanted}, got {value!r:.100}{quoted}.")
    if kind == "text":
        return None if value is None else str(value)
    return list(value) if isinstance(value, tuple) else value


def _element(name: str, value: Any) -> str:
    """An element's id, however it is written. Raises ActionError."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if type(value) is int and value >= 0:
        return str(value)
    if isinstance(value, str) and not (isinstance(value, Bare) and not ID.fullmatch(value)):
        bracketed = re.match(rf"\s*\[({ID.pattern})\](?:\s|$)", value)  # of the page's line, [18] or all of it
        return bracketed[1] if bracketed else str(value)
    raise ActionError(f"{name}(): ids are the numbers in square brackets, e.g. {name}('18'); got {value!r:.100}.")


def _is_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


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
    action, argument, element = values["action"], values["argument"], values["element"]
    if action not in _DO:
        raise ActionError(f"Invalid action {action!r}; expected one of {', '.join(_DO)}.")
    needs_element, needs_argument, make = _DO[action]
    if needs_element and not element:
        raise ActionError(f"do(action={action!r}) needs an element.")
    if needs_argument and argument is None:
        raise ActionError(f"do(action={action!r}) needs an argument.")
    first, *rest = make(element or "", argument or "")
    return Action(first.name, first.arguments, written, tuple(rest))


def _tab_number(argument: str) -> int:
    if not argument.strip().isdecimal():
        raise ActionError(f"'Switch Tab' needs a number as its argument, got {argument!r:.100}.")
    return int(argument)
