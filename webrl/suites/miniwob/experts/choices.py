"""Intents that choose from what a page offers: radio buttons, checkboxes, lists."""

from __future__ import annotations

import random
from collections.abc import Callable

from webrl.suites.miniwob.experts.goal import Goal
from webrl.suites.miniwob.experts.intent import Intent, Slots, nth, ordinal
from webrl.suites.miniwob.experts.page import Element, Page
from webrl.suites.miniwob.experts.words import random_code

_EVERYTHING = "everything"
_EXCEPT = "everything except "


def submit_button(page: Page) -> tuple[tuple[str, ...], ...]:
    """The page's submit button as the clicks of a `Goal`; empty if it has none."""
    buttons = [e for e in page.all("button") if e.name in ("Submit", "Login", "OK")]
    return ((buttons[0].bid,),) if buttons else ()


def _named_boxes(labels: str, boxes: list[Element]) -> frozenset[str] | None:
    """Bids of a comma-separated list of labels, `nothing`, `everything` or `everything except …`."""
    bids = {e.name: e.bid for e in boxes}
    if labels.lower() == "nothing":
        return frozenset()
    if labels.lower() == _EVERYTHING:
        return frozenset(bids.values())
    inverted = labels.lower().startswith(_EXCEPT)
    names = (labels[len(_EXCEPT) :] if inverted else labels).split(", ")
    if not set(names) <= set(bids):
        return None
    chosen = frozenset(bids[name] for name in names)
    return frozenset(bids.values()) - chosen if inverted else chosen


def _check(submit: bool) -> Callable[[Slots, Page], Goal | None]:
    def goal(slots: Slots, page: Page) -> Goal | None:
        boxes = page.all("checkbox")
        checked = _named_boxes(slots["labels"], boxes) if boxes else None
        if checked is None or (submit and not submit_button(page)):
            return None
        return Goal(checked=checked, clicks=submit_button(page) if submit else ())

    return goal


def _pick_radio(submit: bool) -> Callable[[Slots, Page], Goal | None]:
    def goal(slots: Slots, page: Page) -> Goal | None:
        radios = page.named(slots["label"], "radio")
        if not radios or (submit and not submit_button(page)):
            return None
        return Goal(checked=frozenset({radios[0].bid}), clicks=submit_button(page) if submit else ())

    return goal


def _choose(role: str, submit: bool) -> Callable[[Slots, Page], Goal | None]:
    def goal(slots: Slots, page: Page) -> Goal | None:
        lists = page.all(role)
        if not lists or (submit and not submit_button(page)):
            return None
        names = {o.name for o in page.options(lists[0].bid)}
        text = slots["labels"]
        labels = (text,) if text in names else tuple(text.split(", ")) if role == "listbox" else ()
        if not labels or not set(labels) <= names:
            return None
        return Goal(selected={lists[0].bid: labels}, clicks=submit_button(page) if submit else ())

    return goal


def _dropdown_then_button(slots: Slots, page: Page) -> Goal | None:
    chosen = _choose("combobox", submit=False)(slots, page)
    buttons = tuple(e.bid for e in page.named(slots["label"], "button"))
    return Goal(selected=chosen.selected, clicks=(buttons,)) if chosen and buttons else None


def _radio_then_submit(slots: Slots, page: Page) -> Goal | None:
    radio = nth(page.all("radio"), slots["nth"])
    return Goal(checked=frozenset({radio.bid}), clicks=submit_button(page)) if radio and submit_button(page) else None


def _radio_and_number(slots: Slots, page: Page) -> Goal | None:
    pressed, box = _radio_then_submit(slots, page), nth(page.all("textbox"), slots["where"])
    return (
        Goal(fills={box.bid: slots["text"]}, checked=pressed.checked, clicks=pressed.clicks)
        if pressed and box
        else None
    )


def _some_boxes(page: Page, rng: random.Random) -> Slots | None:
    names = [e.name for e in page.all("checkbox")]
    if not names:
        return None
    kind = rng.random()
    if kind < 0.08:
        return {"labels": _EVERYTHING}
    if kind < 0.14:
        return {"labels": "nothing"}
    excluded = kind < 0.28 and len(names) > 1
    count = rng.randint(1, min(2, len(names) - 1)) if excluded else rng.randint(1, min(4, len(names)))
    return {"labels": (_EXCEPT if excluded else "") + ", ".join(rng.sample(names, count))}


def _some_radio(page: Page, rng: random.Random) -> Slots | None:
    names = [e.name for e in page.all("radio") if e.name]
    return {"label": rng.choice(names)} if names else None


def _some_options(role: str, at_most: int) -> Callable[[Page, random.Random], Slots | None]:
    def propose(page: Page, rng: random.Random) -> Slots | None:
        lists = page.all(role)
        names = [o.name for o in page.options(lists[0].bid) if o.name and ", " not in o.name] if lists else []
        if not names:
            return None
        return {"labels": ", ".join(rng.sample(names, rng.randint(1, min(at_most, len(names)))))}

    return propose


def _option_and_button(page: Page, rng: random.Random) -> Slots | None:
    slots, buttons = _some_options("combobox", 1)(page, rng), page.all("button")
    return {**slots, "label": rng.choice(buttons).name} if slots and buttons else None


def _radio_and_text(page: Page, rng: random.Random) -> Slots | None:
    radios, boxes = page.all("radio"), page.all("textbox")
    if not radios or not boxes:
        return None
    text = str(rng.randint(-10, 50)) if rng.random() < 0.7 else random_code(rng)
    return {"nth": ordinal(rng.randint(1, len(radios))), "text": text, "where": ordinal(rng.randint(1, len(boxes)))}


CHECKBOXES = Intent(
    ("Select {labels} and click Submit.", "Check {labels}, then press Submit.", "Tick {labels} and submit."),
    _check(submit=True),
    _some_boxes,
)
CHECKBOXES_ONLY = Intent(("Select {labels}, but do not click Submit.",), _check(submit=False), _some_boxes)
RADIO = Intent(
    ("Select {label} and click Submit.", "Choose {label}, then press Submit."), _pick_radio(submit=True), _some_radio
)
RADIO_ONLY = Intent(("Select {label}, but do not click Submit.",), _pick_radio(submit=False), _some_radio)
DROPDOWN = Intent(
    ("Select {labels} from the list and click Submit.", "Pick {labels} in the list, then press Submit."),
    _choose("combobox", submit=True),
    _some_options("combobox", 1),
)
DROPDOWN_ONLY = Intent(
    ("Select {labels} from the list, but do not click Submit.",),
    _choose("combobox", submit=False),
    _some_options("combobox", 1),
)
SCROLL_LIST = Intent(
    ("Select {labels} from the scroll list and click Submit.", "Mark {labels} in the list, then press Submit."),
    _choose("listbox", submit=True),
    _some_options("listbox", 3),
)
DROPDOWN_BUTTON = Intent(
    (
        'Choose {labels} from the dropdown, then click the button labeled "{label}".',
        'Set the dropdown to {labels} and press "{label}".',
    ),
    _dropdown_then_button,
    _option_and_button,
)
DROPDOWN_BUTTON_ONLY = Intent(
    ("Choose {labels} from the dropdown, but do not click a button.",),
    _choose("combobox", submit=False),
    _some_options("combobox", 1),
)
RADIO_NUMBER = Intent(
    (
        'Check the {nth} radio button and enter the number "{text}" into the {where} textbox.',
        'Choose the {nth} radio button, type "{text}" in the {where} textbox and press Submit.',
    ),
    _radio_and_number,
    _radio_and_text,
)
RADIO_POSITION = Intent(
    ("Check the {nth} radio button, leave the textboxes empty and press Submit.",),
    _radio_then_submit,
    lambda page, rng: {"nth": ordinal(rng.randint(1, len(page.all("radio"))))} if page.all("radio") else None,
)
