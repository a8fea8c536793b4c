"""What the pages' intents mean there (`GOALS`), and how new instructions about them are drawn (`DRAWS`).

`intents.yaml` names them: buttons, tabs, dialogs, boxes, lists, a contact book; and text entry, of given text or of
text, dates and times that are looked up on the page.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from webrl.suites.miniwob.experts.goal import (
    Goal,
    Intent,
    Slots,
    nth,
    ordinal,
    random_code,
    random_name,
    submit_button,
)
from webrl.suites.miniwob.experts.page import Page, read_action

_EVERYTHING = "everything"
_EXCEPT = "everything except "
_ATTRIBUTES = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}


def _bids(page: Page, name: str, *roles: str) -> tuple[str, ...]:
    return tuple(e.bid for e in page.named(name, *roles))


def _click(slots: Slots, page: Page, *, roles: Sequence[str], name: str = "{label}") -> Goal | None:
    """One click on any element of this name, with one of these roles."""
    bids = tuple(bid for role in roles for bid in _bids(page, name.format(**slots), role))
    return Goal(clicks=(bids,)) if bids else None


def _dialog(slots: Slots, page: Page, *, label: str = "") -> Goal | None:
    label = label or slots["label"]
    name = "Close" if label == "x" else label
    return _click({"label": name}, page, roles=["button"]) if page.all("dialog") else None


def _expand(_slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    sections = tuple(e.bid for e in page.all("tab") if e.name.startswith("Section"))
    # The button sits in a header of its own that prints as a tab; a click on that lands on the button.
    submits = _bids(page, "Submit", "button") + _bids(page, "Submit", "tab")
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
    elif labels.lower() == _EVERYTHING:
        checked = frozenset(bids.values())
    else:
        inverted = labels.lower().startswith(_EXCEPT)
        names = (labels[len(_EXCEPT) :] if inverted else labels).split(", ")
        if not set(names) <= set(bids):
            return None
        checked = frozenset(bids[name] for name in names)
        checked = frozenset(bids.values()) - checked if inverted else checked
    return Goal(checked=checked, clicks=submit_button(page) if submit else ())


def _radio(slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    radios = page.named(slots["label"], "radio")
    if not radios or (submit and not submit_button(page)):
        return None
    return Goal(checked=frozenset({radios[0].bid}), clicks=submit_button(page) if submit else ())


def _choose(slots: Slots, page: Page, *, role: str, submit: bool = True) -> Goal | None:
    """Options by their labels; with a `label` then the button of that name."""
    lists, clicks = page.all(role), submit_button(page) if submit else ()
    if "label" in slots and (buttons := _bids(page, slots["label"], "button")):
        clicks = (buttons,)
    if not lists or (not clicks and (submit or "label" in slots)):
        return None
    names = {o.name for o in page.options(lists[0].bid)}
    text = slots["labels"]
    labels = (text,) if text in names else tuple(text.split(", ")) if role == "listbox" else ()
    return Goal(selected={lists[0].bid: labels}, clicks=clicks) if labels and set(labels) <= names else None


def _radio_then_submit(slots: Slots, page: Page) -> Goal | None:
    """The radio button at a position and, with a `text`, that text in the textbox `where`."""
    radio = nth(page.all("radio"), slots["nth"])
    box = nth(page.all("textbox"), slots["where"]) if "where" in slots else None
    if radio is None or not submit_button(page) or ("where" in slots and box is None):
        return None
    fills = {box.bid: slots["text"]} if box else {}
    return Goal(fills=fills, checked=frozenset({radio.bid}), clicks=submit_button(page))


def _table(page: Page) -> dict[str, str]:
    """Label → value of a two-column table."""
    cells = [e.name for e in page.all("cell", "gridcell")]  # gridcell: Chromium 123 and older
    return dict(zip(cells[::2], cells[1::2], strict=False))


def _words(page: Page) -> list[str]:
    return page.texts()[0].split() if page.all("paragraph") and page.texts() else []


def _letters(page: Page) -> list[str]:
    """The letters shown above the text field, one StaticText each."""
    return [t for t in page.texts() if len(t) == 1]


def _spelled(slots: Slots, page: Page) -> str | None:
    """The letters above the text field; `n` cuts them."""
    letters = _letters(page)
    number = int(slots.get("n", len(letters)))
    return "".join(letters[:number]) if 0 < number <= len(letters) else None


def _word(slots: Slots, page: Page) -> str | None:
    """The n-th word of the paragraph without punctuation (the page ignores it)."""
    word = nth(_words(page), slots["nth"])
    return re.sub(r"[^A-Za-z]", "", word) if word else None


def _moment(text: str, read: str, write: str) -> str | None:
    try:
        return datetime.datetime.strptime(text, read).strftime(write)
    except ValueError:
        return None


TEXTS: dict[str, Callable[[Slots, Page], str | None]] = {
    "given": lambda slots, _: slots["text"] if '"' not in slots["text"] else None,
    "table": lambda slots, page: _table(page).get(slots["label"]),
    "spelled": _spelled,
    "word": _word,
    "date": lambda slots, _: _moment(slots["date"], "%m/%d/%Y", "%Y-%m-%d"),
    "time": lambda slots, _: _moment(slots["time"].upper(), "%I:%M %p", "%H:%M"),
}
"""The text that an instruction means on a page; None if it means none."""


def _enter(
    slots: Slots, page: Page, *, text: str, role: str = "textbox", submit: bool = True, count: int = 1
) -> Goal | None:
    """The same text into the page's `count` fields of a role (exactly so many), then Submit if asked for.

    The picker of a date or time field shares the field's bid, so a click on it does not count against the goal.
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
    table, fills = _table(page), {}
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
    "radio_then_submit": _radio_then_submit,
    "enter": _enter,
    "log_in": _log_in,
    "fill_form": _fill_form,
}
"""(slots, page, options) -> what an intent means on the page; None if it cannot be done there."""


def _detail(page: Page, attribute: str) -> str:
    """Bid of the link under a detail's label, or ""."""
    label = _ATTRIBUTES.get(attribute, "-")
    return next((link.bid for link in page.all("link") if page.label_of(link.bid) == label), "")


@dataclass(frozen=True)
class ContactIntent(Intent):
    """Find a contact by name, or go a number of contacts on, and click on a detail."""

    def feasible(self, slots: Slots, page: Page) -> bool:
        """Only the contact shown first is known to exist; the others are on later pages."""
        return slots["attribute"] in _ATTRIBUTES and ("name" not in slots or bool(page.named(slots["name"], "heading")))

    def next_action(self, slots: Slots, page: Page, history: Sequence[str]) -> str | None:  # noqa: ARG002
        """Leaf on to the contact, then click; None for an unknown detail or past the last contact."""
        here = page.named(slots["name"], "heading") if "name" in slots else page.named("<", "link")
        bid = _detail(page, slots["attribute"]) if here else next(iter(_bids(page, ">", "link")), "")
        return f"click({bid!r})" if bid else None

    def accomplished(self, slots: Slots, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:  # noqa: ARG002
        """The first detail clicked is the wanted one of the wanted contact."""
        moved = 0
        for page, text in zip(pages, actions, strict=True):
            action = read_action(text)
            element = page.by_bid.get(action.bid) if action and action.name in ("click", "dblclick") else None
            if element is None or element.role != "link":
                continue
            if element.name in ("<", ">"):
                moved += 1 if element.name == ">" else -1
            elif not element.name.isdigit():
                here = bool(page.named(slots["name"], "heading")) if "name" in slots else moved == 1
                return here and element.bid == _detail(page, slots["attribute"])
        return False


def _one_of(items: Sequence[str], rng: random.Random) -> str | None:
    return rng.choice(items) if items else None


def _name(page: Page, rng: random.Random, *, role: str) -> str | None:
    return _one_of(sorted({e.name for e in page.all(role) if e.name}), rng)


def _dialog_button(page: Page, rng: random.Random) -> str | None:
    name = _name(page, rng, role="button") if page.all("dialog") else None
    return "x" if name == "Close" else name


def _position(page: Page, rng: random.Random, *, role: str) -> str | None:
    count = len(page.all(role))
    return ordinal(rng.randint(1, count)) if count else None


def _boxes(page: Page, rng: random.Random) -> str | None:
    names = [e.name for e in page.all("checkbox")]
    if not names:
        return None
    kind = rng.random()
    if kind < 0.08:
        return _EVERYTHING
    if kind < 0.14:
        return "nothing"
    excluded = kind < 0.28 and len(names) > 1
    count = rng.randint(1, min(2, len(names) - 1)) if excluded else rng.randint(1, min(4, len(names)))
    return (_EXCEPT if excluded else "") + ", ".join(rng.sample(names, count))


def _options(page: Page, rng: random.Random, *, role: str, at_most: int = 1) -> str | None:
    lists = page.all(role)
    names = [o.name for o in page.options(lists[0].bid) if o.name and ", " not in o.name] if lists else []
    return ", ".join(rng.sample(names, rng.randint(1, min(at_most, len(names))))) if names else None


def _date(_page: Page, rng: random.Random) -> str:
    day = datetime.date(2010, 1, 1) + datetime.timedelta(days=rng.randrange(3650))
    return day.strftime("%m/%d/%Y")


def _length(page: Page, rng: random.Random) -> str | None:
    count = len(_letters(page))
    return str(rng.randint(1, count - 1)) if count > 1 else None


def _word_position(page: Page, rng: random.Random) -> str | None:
    count = len(_words(page))
    return ordinal(rng.randint(1, count)) if count else None


DRAWS: dict[str, Callable[..., str | None]] = {
    "name": _name,
    "dialog_button": _dialog_button,
    "tab": lambda page, rng: _one_of([tab.name.removeprefix("Tab #") for tab in page.all("tab")], rng),
    "position": _position,
    "boxes": _boxes,
    "options": _options,
    "number": lambda _, rng: str(rng.randint(-10, 50)) if rng.random() < 0.7 else random_code(rng),
    "contact": lambda page, _: next((heading.name for heading in page.all("heading")), None),
    "attribute": lambda _, rng: rng.choice(list(_ATTRIBUTES)),
    "text": lambda _, rng: random_name(rng) if rng.random() < 0.5 else random_code(rng),
    "code": lambda _, rng: random_code(rng),
    "user": lambda _, rng: random_name(rng).lower(),
    "table": lambda page, rng: _one_of(list(_table(page)), rng),
    "field": lambda page, rng: _one_of([page.label_of(b.bid).removesuffix(":") for b in page.all("textbox")], rng),
    "date": _date,
    "time": lambda _, rng: f"{rng.randint(1, 12)}:{rng.randrange(60):02} {rng.choice(('AM', 'PM'))}",
    "length": _length,
    "word": _word_position,
}
"""(page, generator, options) -> a slot of a new instruction; None where the page offers nothing."""
