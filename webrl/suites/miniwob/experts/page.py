"""Reading what an agent reads: the flattened accessibility tree, and browsergym-dialect actions."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from webrl.rollouts.actions import ActionError, parse_call

_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LINE = re.compile(
    rf"^(?P<indent>\t*)(?:\[(?P<bid>\w+)\] )?(?P<role>[\w-]+)(?: (?P<name>{_STRING}))?"
    rf"(?: value=(?P<value>{_STRING}|[^,]+))?(?P<rest>(?:, .*)?)$"
)
_PROPERTY = re.compile(rf", (\w+)(?:=({_STRING}|[^,]*))?")


@dataclass(frozen=True)
class Element:
    """One line of the observation."""

    bid: str
    """BrowserGym id, or "" where the tree shows none."""
    role: str
    """Accessibility role as printed (`button`, `StaticText`, …)."""
    name: str
    """Accessible name."""
    value: str
    """Current value (`value=…`), or ""."""
    properties: dict[str, str]
    """Printed properties, values as text (`checked` → `true`)."""

    @property
    def checked(self) -> bool:
        """True for a ticked checkbox or radio button."""
        return self.properties.get("checked") == "true"

    @property
    def selected(self) -> bool:
        """True for a selected option or tab."""
        return self.properties.get("selected") == "True"

    @property
    def disabled(self) -> bool:
        """True if the element cannot be used now."""
        return self.properties.get("disabled") == "True"


@dataclass(frozen=True)
class Page:
    """A parsed observation; lines that cannot be read (cut by a token budget) are left out."""

    elements: tuple[Element, ...]

    @cached_property
    def by_bid(self) -> dict[str, Element]:
        """First element of each bid (a date field repeats its own on its parts)."""
        return {e.bid: e for e in reversed(self.elements) if e.bid}

    def all(self, *roles: str) -> list[Element]:
        """Elements of these roles that have a bid, in page order, each bid once."""
        return [e for e in self.elements if e.role in roles and self.by_bid.get(e.bid) is e]

    def named(self, name: str, *roles: str) -> list[Element]:
        """Elements of these roles with exactly this name."""
        return [e for e in self.all(*roles) if e.name == name]

    def texts(self) -> list[str]:
        """Non-empty StaticText lines."""
        return [e.name for e in self.elements if e.role == "StaticText" and e.name]

    def options(self, owner: str) -> list[Element]:
        """Options that follow the combobox or listbox `owner` (a bid)."""
        found: list[Element] = []
        inside = False
        for element in self.elements:
            if element.bid == owner:
                inside = True
            elif inside and element.role in ("option", "menuitem"):  # menuitem: Chromium 123 and older, closed lists
                found.append(element)
            elif inside and element.role != "MenuListPopup":
                break
        return found

    def label_of(self, bid: str) -> str:
        """The StaticText that precedes an element, as a form's labels do; "" if there is none."""
        last = ""
        for element in self.elements:
            if element.bid == bid:
                return last
            if element.role == "StaticText" and element.name:
                last = element.name
        return ""


@lru_cache(maxsize=256)
def read_page(observation: str) -> Page:
    """Parse an observation."""
    elements = []
    for line in observation.split("\n"):
        if match := _LINE.match(line):
            properties = {k: _unquote(v) if v else "True" for k, v in _PROPERTY.findall(match["rest"])}
            name, value = _unquote(match["name"] or "''"), _unquote(match["value"] or "''")
            elements.append(Element(match["bid"] or "", match["role"], name, value, properties))
    return Page(tuple(elements))


def _unquote(text: str) -> str:
    if text[:1] not in "'\"":
        return text
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text


@dataclass(frozen=True)
class Action:
    """A parsed action: `fill('13', 'abc')` is `Action("fill", "13", ("abc",))`."""

    name: str
    bid: str
    values: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def read_action(text: str) -> Action | None:
    """Parse one action; None if it is not a call with literal arguments."""
    try:
        name, positional, keywords = parse_call(text)
    except ActionError:
        return None
    bid, *rest = [*positional, *keywords.values()] or [""]
    values: list[str] = []
    for value in rest:
        values += [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]
    return Action(name, str(bid), tuple(values))


def read_actions(texts: Sequence[str]) -> list[Action]:
    """The readable ones of a history, in order."""
    return [action for text in texts if (action := read_action(text))]
