"""Reads the action in a model's answer: the one reader of rollouts, evaluations, servers and GRPO.

API: `read_answer(text, dialect) -> Action` (raises `ActionError`, whose text is shown to the agent and names the fix).

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from webrl.llm.tokens import without_thinking
from webrl.rollouts.actions import (
    ACTIONS,
    MAX_ACTION_CHARS,
    SCROLL_PX,
    SIGNATURES,
    Action,
    ActionError,
    Bare,
    bind,
    bind_webrl,
    parse_call,
)

Dialect = Literal["browsergym", "webrl"]

_TAGGED = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.DOTALL | re.IGNORECASE)
_TOOL_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_FENCED = re.compile(r"```[\w+-]*(.*?)(?:```|\Z)", re.DOTALL)
_ANNOUNCED = re.compile(r"\baction\b[*_`]*\s*:(.*)", re.DOTALL | re.IGNORECASE)
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_NAME = re.compile(r"(?<!\w)([A-Za-z_]\w*)\(")
_ARGUMENTS = ("arguments", "parameters", "args", "action_input")
_ASIDES = ("thought", "reasoning")
_MAX_CALLS = 32
"""As many are looked for in one text: one that never closes is read to its end."""
_QUOTES = {"'": "'", '"': '"', "\N{LEFT SINGLE QUOTATION MARK}": "\N{RIGHT SINGLE QUOTATION MARK}"}
_QUOTES["\N{LEFT DOUBLE QUOTATION MARK}"] = "\N{RIGHT DOUBLE QUOTATION MARK}"
_DIRECTIONS = {"up": (0, -SCROLL_PX), "down": (0, SCROLL_PX), "left": (-SCROLL_PX, 0), "right": (SCROLL_PX, 0)}
_KEYS = (
    "Enter|Tab|Escape|Backspace|Delete|Insert|Space|Home|End|PageUp|PageDown|CapsLock|ContextMenu"
    "|Arrow(?:Up|Down|Left|Right)|F(?:[1-9]|1[0-2])"
)
_MODIFIERS = "Alt|Control|ControlOrMeta|Meta|Shift"
_KEY = re.compile(rf"(?:(?:{_MODIFIERS})\+)+(?:{_KEYS}|\S)|{_KEYS}|{_MODIFIERS}")
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
    """The action that an answer takes, as it was sampled; its reasoning is left out.

    Raises:
        ActionError: no call, or one that is not certain.
    """
    for answer in (text, without_thinking(text).strip()):
        try:
            call = parse_call(answer)
        except ActionError as error:
            problem = error
        else:
            return _known(*call, dialect)
    return _first_call(answer, dialect, problem)


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


def _first_call(text: str, dialect: Dialect, problem: ActionError) -> Action:
    """The first call of an answer that is not one call by itself; `problem` says so."""
    for part in _parts(text) if len(text) <= MAX_ACTION_CHARS else ():
        actions: list[Action] = []
        for name, positional, keywords in part:
            try:
                actions.append(_known(name, positional, keywords, dialect))
            except ActionError:
                # Prose names actions, click(), and option(s); what follows what is taken is not carried out.
                values = [*positional, *keywords.values()]
                is_meant = name.lower() in _known_names(dialect) or not all(isinstance(v, Bare) for v in values)
                if values and is_meant and not actions:
                    raise
        if actions:
            count = len({action.canonical for action in actions})
            several = f"the first of {count} actions, answer with one" if count > 1 else ""
            return dataclasses.replace(actions[0], note="; ".join(filter(None, (actions[0].note, several))))
    raise problem


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
            arguments = {k: v for k, v in call.items() if k not in (key, *_ASIDES)}
        if isinstance(arguments, dict):
            found.append((call[key], [], arguments))
        else:
            found.append((call[key], arguments if isinstance(arguments, list) else [arguments], {}))
    return found


def _known_names(dialect: Dialect) -> Mapping[str, Any]:
    return ACTIONS if dialect == "browsergym" else SIGNATURES


def _known(name: str, positional: Sequence[Any], keywords: dict[str, Any], dialect: Dialect) -> Action:
    """The action of a call. Raises ActionError."""
    known = _known_names(dialect)
    lower = name.lower()
    if dialect == "webrl":
        if lower in known:
            return bind_webrl(lower, positional, keywords)
        raise ActionError(f"No action {name!r}{_meant(lower, dialect)}")
    values = [*positional, *keywords.values()]
    if meant := _alias(lower, values):
        arguments = [*map(repr, positional), *(f"{key}={value!r}" for key, value in keywords.items())]
        if meant == "scroll":
            positional, keywords = _DIRECTIONS[values[0].lower()], {}
        bound = bind(meant, ACTIONS[meant], positional, keywords)
        return Action(meant, bound, note=f"for {name}({', '.join(arguments)})")
    if lower in known:
        return Action(lower, bind(lower, ACTIONS[lower], positional, keywords))
    raise ActionError(f"No action {name!r}{_meant(lower, dialect)}")


def _meant(name: str, dialect: Dialect) -> str:
    """`: did you mean fill('12', 'text')?`, where that can be guessed."""
    if dialect == "webrl":
        return f": did you mean {_EXAMPLES['exit' if name in _ENDS else 'do']}?"
    near = difflib.get_close_matches(name, ACTIONS, n=1)
    guess = "send_msg_to_user" if name in _ENDS else _MEANT.get(name) or next(iter(near), "")
    return f": did you mean {_EXAMPLES.get(guess, f'{guess}(…)')}?" if guess else ", take one of those listed."


def _alias(name: str, values: list[Any]) -> str:
    """The action of BrowserGym's that a call of another name, or with other arguments, means; "" if none is certain."""
    text = values[0] if len(values) == 1 and isinstance(values[0], str) else ""
    if name in ("send_keys", "press_key", "press") and _KEY.fullmatch(text):
        return "keyboard_press"
    if name == "scroll" and text.lower() in _DIRECTIONS:
        return "scroll"
    return _ALIASES.get((name, len(values)), "")


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
