"""Scripted experts for the MiniWoB pages we train and evaluate on: they see an agent's text and write its actions.

They record demonstrations. The reinforcement-learning loop never sees them: only demonstrations and benchmarks do.

Left out, because the text of the page or BrowserGym's reward makes them impossible: what only colour, shape,
size or position shows; click-link, click-tab-2, click-collapsible-2, multi-layouts, order-food, find-greatest
(the things to click are text without a bid); click-widget (text input and textarea print alike); email and
social-media (nameless icons); odd-or-even (marks are not shown); navigate-tree (files and folders print alike,
a wrong one ends the episode); search-engine (its links change the address, for which BrowserGym gives 0);
click-test-2, click-button-sequence and button-delay (one button covers the other at every fifth seed).

An instruction has one of an intent's wordings, with slots (`Intent`); on a page it means a goal (`Goal`): a state of
the page's fields, then clicks in order. `intents.yaml` names the functions of `GOALS`: buttons, tabs, dialogs, boxes,
lists, a contact book; and text entry, of given text or of text, dates and times that are looked up on the page. `Page`
is what an agent reads, the flattened accessibility tree.
"""

from __future__ import annotations

import ast
import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TypeVar

import yaml

from webrl.rollouts.actions import Action, read_any

T = TypeVar("T")
Slots = dict[str, str]

DONE = "send_msg_to_user('done')"
_CLICKS = frozenset({"click", "dblclick"})
_POSITION = r"\d+(?:st|nd|rd|th)"
_SLOT_PATTERNS = {"nth": _POSITION, "where": _POSITION, "n": r"\d+", "date": r"\d\d/\d\d/\d{4}"}
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
    """BrowserGym id, or "" if the tree shows none."""
    role: str
    """Accessibility role as printed (`button`, `StaticText`, …)."""
    name: str
    """Accessible name."""
    value: str
    """Current value (`value=…`), or ""."""
    checked: bool
    """A ticked checkbox or radio button."""
    selected: bool
    """A selected option or tab."""
    disabled: bool
    """It cannot be used now."""


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

    def named(self, name: str, *roles: str) -> tuple[str, ...]:
        """Bids of the elements of these roles with exactly this name."""
        return tuple(e.bid for e in self.all(*roles) if e.name == name)

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
            of = {key: _unquote(text) for key, text in _PROPERTY.findall(match["rest"])}
            states = of.get("checked") == "true", of.get("selected") == "True", of.get("disabled") == "True"
            name, value = _unquote(match["name"] or "''"), _unquote(match["value"] or "''")
            elements.append(Element(match["bid"] or "", match["role"], name, value, *states))
    return Page(tuple(elements))


def _unquote(text: str) -> str:
    if text[:1] not in "'\"":
        return text
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text


@dataclass(frozen=True)
class Goal:
    """Bids of one page: the fields' wanted state, then the clicks that follow. A click is a set of bids, any of which
    is right (two buttons of the same name).
    """

    fills: dict[str, str] = field(default_factory=dict)
    """Field → text it must hold; other text fields must stay as they were."""
    checked: frozenset[str] | None = None
    """Exactly these checkboxes or radio buttons are ticked; None: they do not matter."""
    selected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """List → labels selected in it, exactly."""
    clicks: tuple[tuple[str, ...], ...] = ()
    """Clicks in order, after the state holds."""
    roles: frozenset[str] = frozenset({"button", "link", "tab", "menuitem"})
    """Roles whose clicks count: one more or another order of these is a mistake."""
    touch: bool = False
    """Whether filling or focusing counts as a click (the instruction is about the focus)."""

    def next_action(self, page: Page, history: Sequence[str]) -> str:
        """The next action towards the goal, `DONE` if nothing is left."""
        done = [action for text in history if (action := read_any(text))]
        for bid, text in self.fills.items():
            if not holds(page, bid, text, done):
                return f"fill({bid!r}, {text!r})"
        for element in page.all("checkbox", "radio") if self.checked is not None else []:
            can_toggle = element.role == "checkbox" or not element.checked
            if element.checked != (element.bid in (self.checked or ())) and can_toggle:
                return f"click({element.bid!r})"
        for bid, labels in self.selected.items():
            if selected_in(page, bid) != set(labels):
                return f"select_option({bid!r}, {labels[0] if len(labels) == 1 else list(labels)!r})"
        remaining = self.clicks
        for action in done:
            if remaining and action.name in _CLICKS and action.arguments["bid"] in remaining[0]:
                remaining = remaining[1:]
        return f"click({remaining[0][0]!r})" if remaining else DONE


def holds(page: Page, bid: str, text: str, done: Sequence[Action]) -> bool:
    """Return whether a field shows `text`; a masked field (bullets) counts if its last fill was `text`."""
    value = page.by_bid[bid].value if bid in page.by_bid else ""
    if value and set(value) == {"•"}:
        fills = [a.arguments["value"] for a in done if a.name == "fill" and a.arguments["bid"] == bid]
        return bool(fills) and fills[-1] == text and len(value) == len(text)
    return value == text or (value != "" and value == text.strip())


def selected_in(page: Page, owner: str) -> set[str]:
    """Labels of the selected options of a list."""
    return {o.name for o in page.options(owner) if o.selected}


@dataclass(frozen=True)
class Intent:
    """One kind of instruction for a page (`intents.yaml`)."""

    name: str
    templates: tuple[str, ...]
    """Wordings, the usual one first; slots are `{name}`."""
    goal: Callable[[Slots, Page], Goal | None] | None
    """Gives its goal on a page, None if it is infeasible there; None itself for contacts, which lie on later pages."""


@cache
def template_pattern(template: str) -> re.Pattern[str]:
    """Regular expression of a wording, without its last dot."""
    parts = re.split(r"\{(\w+)\}", template.removesuffix("."))
    pattern = ""
    for i, part in enumerate(parts):
        pattern += f"(?P<{part}>{_SLOT_PATTERNS.get(part, '.+?')})" if i % 2 else re.escape(part)
    return re.compile(pattern, re.IGNORECASE)


def nth(items: Sequence[T], position: str) -> T | None:
    """The item that `1st`, `2nd`, … names; None if there are fewer."""
    index = int(re.sub(r"\D", "", position)) - 1
    return items[index] if 0 <= index < len(items) else None


def submit_button(page: Page) -> tuple[tuple[str, ...], ...]:
    """Return the page's submit button as the clicks of a `Goal`; empty if it has none."""
    buttons = [e for e in page.all("button") if e.name in ("Submit", "Login", "OK")]
    return ((buttons[0].bid,),) if buttons else ()


EVERYTHING = "everything"
EXCEPT = "everything except "
ATTRIBUTES = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}


def _click(slots: Slots, page: Page, *, roles: Sequence[str], name: str = "{label}") -> Goal | None:
    """One click on any element of this name, with one of these roles."""
    bids = tuple(bid for role in roles for bid in page.named(name.format(**slots), role))
    return Goal(clicks=(bids,)) if bids else None


def _dialog(slots: Slots, page: Page, *, label: str = "") -> Goal | None:
    label = label or slots["label"]
    name = "Close" if label == "x" else label
    return _click({"label": name}, page, roles=["button"]) if page.all("dialog") else None


def _expand(_slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    sections = tuple(e.bid for e in page.all("tab") if e.name.startswith("Section"))
    # The button sits in its own header that prints as a tab; a click on that lands on the button.
    submits = page.named("Submit", "button") + page.named("Submit", "tab")
    if not sections or not submits:
        return None
    return Goal(clicks=(sections, submits) if submit else (sections,))


def _focus(slots: Slots, page: Page) -> Goal | None:
    box = nth(page.all("textbox"), slots["nth"])
    return Goal(clicks=((box.bid,),), roles=frozenset({"textbox"}), touch=True) if box else None


def _check(slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    """Boxes by a comma-separated list of labels, `nothing`, `everything` or `everything except …`."""
    bids = {e.name: e.bid for e in page.all("checkbox")}
    if not bids or (submit and not submit_button(page)):
        return None
    labels = slots["labels"]
    if labels.lower() == "nothing":
        checked = frozenset[str]()
    elif labels.lower() == EVERYTHING:
        checked = frozenset(bids.values())
    else:
        inverted = labels.lower().startswith(EXCEPT)
        names = (labels[len(EXCEPT) :] if inverted else labels).split(", ")
        if not set(names) <= set(bids):
            return None
        checked = frozenset(bids[name] for name in names)
        checked = frozenset(bids.values()) - checked if inverted else checked
    return Goal(checked=checked, clicks=submit_button(page) if submit else ())


def _radio(slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    """The radio button of a label or at a position and, with a `text`, that text in the textbox `where`."""
    found = page.named(slots["label"], "radio") if "label" in slots else ()
    if "nth" in slots and (radio := nth(page.all("radio"), slots["nth"])):
        found = (radio.bid,)
    box = nth(page.all("textbox"), slots["where"]) if "where" in slots else None
    if not found or (submit and not submit_button(page)) or ("where" in slots and box is None):
        return None
    fills = {box.bid: slots["text"]} if box else {}
    return Goal(fills=fills, checked=frozenset(found[:1]), clicks=submit_button(page) if submit else ())


def _choose(slots: Slots, page: Page, *, role: str, submit: bool = True) -> Goal | None:
    """Options by their labels; with a `label` then the button of that name."""
    lists, clicks = page.all(role), submit_button(page) if submit else ()
    if "label" in slots and (buttons := page.named(slots["label"], "button")):
        clicks = (buttons,)
    if not lists or (not clicks and (submit or "label" in slots)):
        return None
    names = {o.name for o in page.options(lists[0].bid)}
    text = slots["labels"]
    labels = (text,) if text in names else tuple(text.split(", ")) if role == "listbox" else ()
    return Goal(selected={lists[0].bid: labels}, clicks=clicks) if labels and set(labels) <= names else None


def read_table(page: Page) -> dict[str, str]:
    """Label → value of a two-column table."""
    cells = [e.name for e in page.all("cell", "gridcell")]  # gridcell: Chromium 123 and older
    return dict(zip(cells[::2], cells[1::2], strict=False))


def read_words(page: Page) -> list[str]:
    """The words of the paragraph."""
    return page.texts()[0].split() if page.all("paragraph") and page.texts() else []


def read_letters(page: Page) -> list[str]:
    """The letters shown above the text field, one StaticText each."""
    return [t for t in page.texts() if len(t) == 1]


def _spelled(slots: Slots, page: Page) -> str | None:
    """The letters above the text field; `n` cuts them."""
    letters = read_letters(page)
    number = int(slots.get("n", len(letters)))
    return "".join(letters[:number]) if 0 < number <= len(letters) else None


def _moment(text: str, read: str, write: str) -> str | None:
    try:
        return datetime.datetime.strptime(text, read).strftime(write)
    except ValueError:
        return None


TEXTS: dict[str, Callable[[Slots, Page], str | None]] = {
    "given": lambda slots, _: slots["text"] if '"' not in slots["text"] else None,
    "table": lambda slots, page: read_table(page).get(slots["label"]),
    "spelled": _spelled,
    # without punctuation, which the page ignores
    "word": lambda slots, page: (
        re.sub(r"[^A-Za-z]", "", word) if (word := nth(read_words(page), slots["nth"])) else None
    ),
    "date": lambda slots, _: _moment(slots["date"], "%m/%d/%Y", "%Y-%m-%d"),
    "time": lambda slots, _: _moment(slots["time"].upper(), "%I:%M %p", "%H:%M"),
}
"""The text that an instruction means on a page; None if it means none."""


def _enter(
    slots: Slots, page: Page, *, text: str, role: str = "textbox", submit: bool = True, count: int = 1
) -> Goal | None:
    """Write the same text into the page's fields of a role (exactly `count`), then press Submit if requested. The
    picker of a date or time field shares the field's bid, so a click on it does not count against the goal.
    """
    found, boxes = TEXTS[text](slots, page), page.all(role)
    if found is None or len(boxes) != count or not submit_button(page):
        return None
    return Goal(fills={box.bid: found for box in boxes}, clicks=submit_button(page) if submit else ())


def _log_in(slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    boxes = page.all("textbox")
    texts = [slots[key] for key in ("user", "password") if key in slots]
    if len(boxes) != 2 or not submit_button(page) or any('"' in text for text in texts):
        return None
    fills = {box.bid: text for box, text in zip(boxes, texts, strict=False)}
    return Goal(fills=fills, clicks=submit_button(page) if submit else ())


def _fill_form(slots: Slots, page: Page) -> Goal | None:
    """Each labelled field gets its value from the table; with a `label` only that field."""
    table, fills = read_table(page), {}
    for box in page.all("textbox"):
        label = page.label_of(box.bid).removesuffix(":")
        if label in table and slots.get("label", label) == label:
            fills[box.bid] = table[label]
    return Goal(fills=fills, clicks=submit_button(page)) if fills and submit_button(page) else None


GOALS: dict[str, Callable[..., Goal | None]] = {
    "click": _click,
    "dialog": _dialog,
    "expand": _expand,
    "focus": _focus,
    "check": _check,
    "radio": _radio,
    "choose": _choose,
    "enter": _enter,
    "log_in": _log_in,
    "fill_form": _fill_form,
}
"""(slots, page, options) -> what an intent means on the page; None if it cannot be done there."""


def detail_of(page: Page, attribute: str) -> str:
    """Bid of the link under a detail's label, or ""."""
    label = ATTRIBUTES.get(attribute, "-")
    return next((link.bid for link in page.all("link") if page.label_of(link.bid) == label), "")


@dataclass(frozen=True)
class Expert:
    """What one MiniWoB page can be asked to do, and how to do it."""

    intents: tuple[Intent, ...]
    """The page's own intent first, then what else it can be used for."""
    popup: bool = False
    """True if a pop-up may come up; it is closed with its Cancel button first."""

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """The next action; `send_msg_to_user('done')` if nothing is left; None if it cannot be done here.

        `history` holds the actions that were carried out: leave out those that came back with an error
        (a click that timed out on a busy machine), and they are tried again.
        """
        found, page = self.match(instruction), read_page(observation)
        if found is None:
            return None
        if self.popup and (cancel := page.named("Cancel", "button")):
            return f"click({cancel[0]!r})"
        intent, slots = found
        if intent.goal is not None:
            goal = intent.goal(slots, page)
            return None if goal is None else goal.next_action(page, history)
        # To the named contact, or one further, then the detail; None for an unknown one or past the last one.
        here = page.named(slots["name"], "heading") if "name" in slots else page.named("<", "link")
        bid = detail_of(page, slots["attribute"]) if here else next(iter(page.named(">", "link")), "")
        return f"click({bid!r})" if bid else None

    def match(self, instruction: str) -> tuple[Intent, Slots] | None:
        """The intent whose wording an instruction has, with its slots; case of its words and the last dot are free."""
        text = " ".join(instruction.split()).removesuffix(".")
        for intent in self.intents:
            for template in intent.templates:
                if found := template_pattern(template).fullmatch(text):
                    return intent, found.groupdict()
        return None


@cache
def experts() -> dict[str, Expert]:
    """Every page's expert, by the page's BrowserGym name, with the intents of `intents.yaml`."""
    data = yaml.safe_load(Path(__file__).with_name("intents.yaml").read_text(encoding="utf-8"))
    known: dict[str, Intent] = {}
    for name, entry in data["intents"].items():
        goal = None
        if "goal" in entry:
            ((function, options),) = entry["goal"].items()
            goal = partial(GOALS[function], **options)
        known[name] = Intent(name, tuple(entry["wordings"]), goal)
    return {
        f"miniwob.{page}": Expert(tuple(known[name] for name in names), page == "login-user-popup")
        for page, names in data["pages"].items()
    }
