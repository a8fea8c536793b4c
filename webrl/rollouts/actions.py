"""Actions as data: read from a model's answer, by the one reader of rollouts, evaluations, servers and GRPO.

Calls are parsed with `ast`, never evaluated: known names with literal arguments. Names, parameters and defaults are
those of BrowserGym's HighLevelActionSet. The other dialect is the action language of released WebRL checkpoints,
`do(...)` and `exit(...)` (`bind_webrl`): an action becomes the BrowserGym actions that have its effect, the second and
later ones in `Action.rest`; its canonical form stays in the language it was written in.

An answer that is one literal call is taken as it is written, so what a quoted text holds is never touched. From any
other answer the first call is taken, out of the first of these that holds one: `<action>` tags, JSON tool calls,
fenced code, what follows `Action:`, the whole text. `Action.note` tells what was taken where that is not what the
answer says: the first of several calls, a name of another action space.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from webrl.config import Dialect
from webrl.llm.tokens import without_thinking
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
    """What follows, if one written action takes several (`Search`: fill, then Enter)."""
    note: str = field(default="", compare=False)
    """What was read, if the answer says something else; otherwise ""."""

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
    """Read one BrowserGym call such as `click('12')`; comments are ignored. Raises ActionError for anything else."""
    name, positional, keywords = parse_call(text)
    if name not in ACTIONS:
        raise ActionError(f"No action {name!r}.")
    return Action(name, bind(name, ACTIONS[name], positional, keywords))


def parse_call(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """(name, positional, keyword arguments) of the call that `text` is; arguments are literals. Raises ActionError."""
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
    if kind == "id" and value is None:
        return None
    if kind in ("bid", "id"):
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        if type(value) is int and value >= 0:
            return str(value)
        if isinstance(value, str) and not (isinstance(value, Bare) and not ID.fullmatch(value)):
            bracketed = re.match(rf"\s*\[({ID.pattern})\](?:\s|$)", value)  # of the page's line, [18] or all of it
            return bracketed[1] if bracketed else str(value)
        raise ActionError(f"{name}(): ids are the numbers in square brackets, e.g. {name}('18'); got {value!r:.100}.")
    if kind in ("str", "strs") and type(value) is int:
        value = str(value)
    is_strings = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    good = (
        not isinstance(value, Bare)
        and {
            "str": lambda: isinstance(value, str),
            "text": lambda: value is None or isinstance(value, str) or type(value) in (int, float),
            "bool": lambda: isinstance(value, bool),
            "int": lambda: type(value) is int and abs(value) < 1e9,
            "number": lambda: type(value) in (int, float) and abs(value) < 1e9,
            "strs": lambda: isinstance(value, str) or is_strings,
            "button": lambda: value in _BUTTONS,
            "modifiers": lambda: is_strings and set(value) <= set(MODIFIERS),
        }[kind]()
    )
    if not good:
        wanted = {"str": "a string", "strs": "a string or a list of strings", "number": "a number"}.get(kind, kind)
        quoted = f"; put it in quotes: {str(value)!r:.100}" if isinstance(value, Bare) else ""
        raise ActionError(f"{name}(): {parameter.name} must be {wanted}, got {value!r:.100}{quoted}.")
    if kind == "text":
        return None if value is None else str(value)
    return list(value) if isinstance(value, tuple) else value


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


# action -> (needs an element, needs an argument, (element id, argument) -> what to do)
_DO: dict[str, tuple[bool, bool, Callable[[str, str], list[Action]]]] = {
    "Click": (True, False, lambda e, _: [_simple("click", bid=e)]),
    "Right Click": (True, False, lambda e, _: [_simple("click", bid=e, button="right")]),
    "Type": (True, True, lambda e, a: [_simple("fill", bid=e, value=a)]),
    "Search": (True, True, lambda e, a: [_simple("fill", bid=e, value=a), _simple("press", bid=e, key_comb="Enter")]),
    "Hover": (True, False, lambda e, _: [_simple("hover", bid=e)]),
    "Scroll Up": (False, False, lambda *_: [_simple("scroll", delta_x=0, delta_y=-SCROLL_PX)]),
    "Scroll Down": (False, False, lambda *_: [_simple("scroll", delta_x=0, delta_y=SCROLL_PX)]),
    "Press Enter": (False, False, lambda *_: [_simple("keyboard_press", key="Enter")]),
    "Switch Tab": (False, True, lambda _, a: [_simple("tab_focus", index=int(a))]),
    "Select Dropdown Option": (True, True, lambda e, a: [_simple("select_option", bid=e, options=a)]),
    "Wait": (False, False, lambda *_: [_simple("noop")]),
}


def bind_webrl(name: str, positional: Sequence[Any], keywords: dict[str, Any]) -> Action:
    """The action of `do(action=…, …)`, `exit(message=…)`, `go_backward()` or `go_forward()`. Raises ActionError."""
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
    if action == "Switch Tab" and not argument.strip().isdecimal():
        raise ActionError(f"'Switch Tab' needs a number as its argument, got {argument!r:.100}.")
    first, *rest = make(element or "", argument or "")
    return Action(first.name, first.arguments, written, tuple(rest))


_TAGGED = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.DOTALL | re.IGNORECASE)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```[\w+-]*(.*?)(?:```|\Z)", re.DOTALL)
_ANNOUNCED = re.compile(r"\baction\b[*_`]*\s*:(.*)", re.DOTALL | re.IGNORECASE)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NAME = re.compile(r"(?<!\w)([A-Za-z_]\w*)\(")
_ARGUMENTS = ("arguments", "parameters", "args", "action_input")
_MAX_CALLS = 32
"""As many are looked for in one text: one that never closes is read to its end."""
_QUOTES = {"'": "'", '"': '"', "\N{LEFT SINGLE QUOTATION MARK}": "\N{RIGHT SINGLE QUOTATION MARK}"}
_QUOTES["\N{LEFT DOUBLE QUOTATION MARK}"] = "\N{RIGHT DOUBLE QUOTATION MARK}"
_DIRECTIONS = {"up": (0, -SCROLL_PX), "down": (0, SCROLL_PX), "left": (-SCROLL_PX, 0), "right": (SCROLL_PX, 0)}
_KEYS = (
    "Enter|Tab|Escape|Backspace|Delete|Insert|Space|Home|End|PageUp|PageDown|CapsLock|ContextMenu"
    "|Arrow(?:Up|Down|Left|Right)|F(?:[1-9]|1[0-2])"
)
_HELD = "|".join(MODIFIERS)
_KEY_PRESS = re.compile(rf"(?:(?:{_HELD})\+)+(?:{_KEYS}|\S)|{_KEYS}|{_HELD}")
_EXAMPLES = {
    "click": "click('12')",
    "fill": "fill('12', 'text')",
    "select_option": "select_option('12', 'option')",
    "press": "press('12', 'Enter')",
    "scroll": "scroll(0, 300)",
    "send_msg_to_user": "send_msg_to_user('text')",
    "do": 'do(action="Click", element="12")',
    "exit": 'exit(message="text")',
}
_LABELLED = re.compile(r"^[ \t]*\[(\w+)\] [\w ]+? ('(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")", re.MULTILINE)


def read_answer(text: str, dialect: Dialect) -> Action:
    """The action that an answer takes, without its reasoning. Raises ActionError: no call, or none that is certain."""
    for answer in (text, without_thinking(text).strip()):
        try:
            call = parse_call(answer)
        except ActionError as error:
            problem = error
        else:
            return _known(*call, dialect)
    for part in _parts(answer) if len(answer) <= MAX_ACTION_CHARS else ():
        actions: list[Action] = []
        for name, positional, keywords in part:
            try:
                actions.append(_known(name, positional, keywords, dialect))
            except ActionError:
                # Prose names actions, click(), and option(s); what follows what is taken is not carried out.
                values = [*positional, *keywords.values()]
                known = name.lower() in (ACTIONS if dialect == "browsergym" else SIGNATURES)
                is_meant = known or not all(isinstance(v, Bare) for v in values)
                if values and is_meant and not actions:
                    raise
        if actions:
            count = len({action.canonical for action in actions})
            several = f"the first of {count} actions, answer with one" if count > 1 else ""
            return dataclasses.replace(actions[0], note="; ".join(filter(None, (actions[0].note, several))))
    raise problem


def read_any(text: str) -> Action | None:
    """The action of an answer in either language; None if there is none."""
    for dialect in get_args(Dialect):
        try:
            return read_answer(text, dialect)
        except ActionError:
            continue
    return None


def labelled(page: str, label: str) -> list[str]:
    """Ids of the elements of a page's text that have this name; letter case counts only if it decides."""
    names = []
    for bid, name in _LABELLED.findall(page):
        with contextlib.suppress(ValueError, SyntaxError):  # a page's own text may look like one of ours
            names.append((bid, str(ast.literal_eval(name)).strip()))
    exact = [bid for bid, name in names if name == label.strip()]
    return exact or [bid for bid, name in names if name.casefold() == label.strip().casefold()]


_Call = tuple[str, list[Any], dict[str, Any]]


def _parts(text: str) -> Iterator[list[_Call]]:
    """The calls in each part of an answer, the part most certain to hold the action first."""
    for pattern in (_TAGGED, _TOOL_CALL):
        for found in pattern.findall(text):
            yield _json_calls(found) or _calls(found)
    yield _json_calls(text)
    for pattern in (_FENCED, _ANNOUNCED):
        for found in pattern.findall(text):
            yield _json_calls(found) or _calls(found)
    yield _calls(_COMMENT.sub("", text))
    yield _calls(text)


def _calls(text: str) -> list[_Call]:
    """The calls in a text, in order: all of it, or every `name(…)` with literal arguments."""
    with contextlib.suppress(ActionError):
        return [parse_call(text)]
    found: list[_Call] = []
    end = 0
    for _ in range(_MAX_CALLS):
        if not (match := _NAME.search(text, end)):
            break
        source, end = _call_source(text, match)
        with contextlib.suppress(ActionError):
            found.append(parse_call(source))
    return found


def _call_source(text: str, match: re.Match[str]) -> tuple[str, int]:
    """(Python source of the call that begins at `match`, where it ends); ("", behind the bracket) if it never ends."""
    parts, depth, at = [match[1], "("], 1, match.end()
    while at < len(text) and depth:
        letter = text[at]
        if letter in _QUOTES:
            mark = letter * 3 if letter in "'\"" and text.startswith(letter * 3, at) else letter
            close = re.compile(rf"(?:[^\\]|\\.)*?{mark if len(mark) == 3 else _QUOTES[letter]}", re.DOTALL)
            if not (inside := close.match(text, at + len(mark))):
                return "", match.end()
            quoted = inside[0].removesuffix(mark if len(mark) == 3 else _QUOTES[letter])
            # Models break lines inside 'one pair of quotes', which Python does not read.
            quote = mark if letter in "'\"" else '"'
            plain = quoted if letter in "'\"" else quoted.replace('"', '\\"')
            parts.append(quote + plain.replace("\r", "\\r").replace("\n", "\\n") + quote)
            at = inside.end()
            continue
        depth += (letter in "([{") - (letter in ")]}")
        parts.append(letter)
        at += 1
    return ("".join(parts), at) if depth == 0 else ("", match.end())


def _json_calls(text: str) -> list[_Call]:
    """Tool calls as JSON: `{"name": "click", "arguments": {"bid": "12"}}`, or a list of them."""
    start = re.search(r"[\[{]\s*[\"{]", text)
    try:
        data: Any = json.JSONDecoder(strict=False).raw_decode(text, start.start())[0] if start else None
    except (ValueError, RecursionError):
        return []
    found: list[_Call] = []
    for item in data if isinstance(data, list) else [data]:
        call: Any = item.get("function", item) if isinstance(item, dict) else None
        call = call if isinstance(call, dict) else item  # {"function": "click", …}
        key = next((k for k in ("name", "action", "function") if isinstance(call, dict) and k in call), None)
        if key is None or not isinstance(call[key], str):
            continue
        if "(" in call[key]:
            found += _calls(call[key])
            continue
        arguments = next((call[k] for k in _ARGUMENTS if k in call), None)
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        if arguments is None:
            arguments = {k: v for k, v in call.items() if k not in (key, "thought", "reasoning")}
        if isinstance(arguments, dict):
            found.append((call[key], [], arguments))
        else:
            found.append((call[key], arguments if isinstance(arguments, list) else [arguments], {}))
    return found


def _known(name: str, positional: Sequence[Any], keywords: dict[str, Any], dialect: Dialect) -> Action:
    """The action of a call. Raises ActionError."""
    lower = name.lower()
    if dialect == "webrl":
        if lower in SIGNATURES:
            return bind_webrl(lower, positional, keywords)
        guess = "exit" if lower in _ENDS else "do"
    else:
        values = [*positional, *keywords.values()]
        text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
        meant = _ALIASES.get((lower, len(values)), "")
        if lower in ("send_keys", "press_key", "press") and _KEY_PRESS.fullmatch(text):
            meant = "keyboard_press"
        elif lower == "scroll" and text.lower() in _DIRECTIONS:
            meant = "scroll"
        if meant:
            arguments = [*map(repr, positional), *(f"{key}={value!r}" for key, value in keywords.items())]
            if meant == "scroll":
                positional, keywords = _DIRECTIONS[text.lower()], {}
            bound = bind(meant, ACTIONS[meant], positional, keywords)
            return Action(meant, bound, note=f"for {name}({', '.join(arguments)})")
        if lower in ACTIONS:
            return Action(lower, bind(lower, ACTIONS[lower], positional, keywords))
        near = [*difflib.get_close_matches(lower, ACTIONS, n=1), ""]
        guess = "send_msg_to_user" if lower in _ENDS else _MEANT.get(lower, near[0])
    hint = f": did you mean {_EXAMPLES.get(guess, f'{guess}(…)')}?" if guess else ", take one of those listed."
    raise ActionError(f"No action {name!r}{hint}")


_ALIASES: dict[tuple[str, int], str] = {
    **{(name, 1): "keyboard_type" for name in ("type", "input", "type_text", "input_text", "send_keys", "press_key")},
    **{(name, 2): "fill" for name in ("type", "input", "type_text", "input_text")},
    **{(name, 2): "select_option" for name in ("choose", "select")},
    **{(name, 1): "click" for name in ("tap", "left_click")},
    ("double_click", 1): "dblclick",
}
"""Names that public scripts teach and models know from elsewhere, with their number of arguments.

`type('13', 'Ann')` is `fill('13', 'Ann')`, `type('Ann')` `keyboard_type('Ann')`, `send_keys('Enter')`
`keyboard_press('Enter')`, `scroll('down')` `scroll(0, 480)`.
"""
_MEANT = {
    **dict.fromkeys(("type", "input", "type_text", "input_text", "enter", "write", "set_value"), "fill"),
    **dict.fromkeys(("choose", "select", "pick"), "select_option"),
    **dict.fromkeys(("tap", "left_click", "submit", "toggle"), "click"),
    "wait": "noop",
    "send_keys": "press",
    "navigate": "goto",
}
_ENDS = ("answer", "stop", "finish", "done", "respond", "terminate", "complete", "exit", "send_msg_to_user")
