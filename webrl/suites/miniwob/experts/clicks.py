"""Intents that are a click or two: buttons, tabs, dialogs, the focus."""

from __future__ import annotations

import random
from collections.abc import Callable

from webrl.suites.miniwob.experts.goal import Goal
from webrl.suites.miniwob.experts.intent import Intent, Slots, no_slots, nth, ordinal
from webrl.suites.miniwob.experts.page import Page


def _bids(page: Page, name: str, *roles: str) -> tuple[str, ...]:
    return tuple(e.bid for e in page.named(name, *roles))


def _click_button(slots: Slots, page: Page) -> Goal | None:
    bids = _bids(page, slots["label"], "button")
    return Goal(clicks=(bids,)) if bids else None


def _click_in_dialog(slots: Slots, page: Page) -> Goal | None:
    label = "Close" if slots["label"] == "x" else slots["label"]
    bids = _bids(page, label, "button") if page.all("dialog") else ()
    return Goal(clicks=(bids,)) if bids else None


def _close_dialog(_slots: Slots, page: Page) -> Goal | None:
    return _click_in_dialog({"label": "x"}, page)


def _expand(submit: bool) -> Callable[[Slots, Page], Goal | None]:
    def goal(_slots: Slots, page: Page) -> Goal | None:
        sections = tuple(e.bid for e in page.all("tab") if e.name.startswith("Section"))
        # The button sits in a header of its own that prints as a tab; a click on that lands on the button.
        submits = _bids(page, "Submit", "button") + _bids(page, "Submit", "tab")
        if not sections or not submits:
            return None
        return Goal(clicks=(sections, submits) if submit else (sections,))

    return goal


def _click_tab(slots: Slots, page: Page) -> Goal | None:
    # The link inside a tab is what the page listens to; the tab around it receives the same click.
    bids = _bids(page, f"Tab #{slots['n']}", "link") + _bids(page, f"Tab #{slots['n']}", "tab")
    return Goal(clicks=(bids,)) if bids else None


def _focus(slots: Slots, page: Page) -> Goal | None:
    box = nth(page.all("textbox"), slots["nth"])
    return Goal(clicks=((box.bid,),), roles=frozenset({"textbox"}), touch=True) if box else None


def _name_of(*roles: str) -> Callable[[Page, random.Random], Slots | None]:
    def propose(page: Page, rng: random.Random) -> Slots | None:
        names = sorted({e.name for e in page.all(*roles) if e.name})
        return {"label": rng.choice(names)} if names else None

    return propose


def _dialog_button(page: Page, rng: random.Random) -> Slots | None:
    slots = _name_of("button")(page, rng) if page.all("dialog") else None
    return {"label": "x"} if slots and slots["label"] == "Close" else slots


def _tab_number(page: Page, rng: random.Random) -> Slots | None:
    tabs = page.all("tab")
    return {"n": rng.choice(tabs).name.removeprefix("Tab #")} if tabs else None


def _textbox_position(page: Page, rng: random.Random) -> Slots | None:
    count = len(page.all("textbox"))
    return {"nth": ordinal(rng.randint(1, count))} if count else None


BUTTON = Intent(
    ('Click on the "{label}" button.', 'Press the "{label}" button.', 'Click the button labeled "{label}".'),
    _click_button,
    _name_of("button"),
)
DIALOG_BUTTON = Intent(
    ('Click the button in the dialog box labeled "{label}".', 'Press "{label}" in the dialog box.'),
    _click_in_dialog,
    _dialog_button,
)
CLOSE_DIALOG = Intent(('Close the dialog box by clicking the "x".', "Close the dialog box."), _close_dialog, no_slots)
EXPAND = Intent(
    ("Expand the section below and click submit.", "Open the section, then press Submit."),
    _expand(submit=True),
    no_slots,
)
EXPAND_ONLY = Intent(("Expand the section below, but do not click submit.",), _expand(submit=False), no_slots)
TAB = Intent(("Click on Tab #{n}.", "Open Tab #{n}.", "Switch to Tab #{n}."), _click_tab, _tab_number)
FOCUS = Intent(
    ("Focus into the {nth} input textbox.", "Click into the {nth} textbox.", "Put the cursor in the {nth} text field."),
    _focus,
    _textbox_position,
)
