"""What the pages offer to do: buttons, tabs, dialogs, boxes, lists, a contact book; and text entry, of given text or of
text, dates and times that are looked up on the page.
"""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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
Source = Callable[[Slots, Page], "str | None"]
"""The text that an instruction means on a page; None if it means none."""


def _bids(page: Page, name: str, *roles: str) -> tuple[str, ...]:
    return tuple(e.bid for e in page.named(name, *roles))


def _click(page: Page, name: str, *roles: str) -> Goal | None:
    """One click on any element of this name, with one of these roles."""
    bids = tuple(bid for role in roles for bid in _bids(page, name, role))
    return Goal(clicks=(bids,)) if bids else None


def _click_in_dialog(slots: Slots, page: Page) -> Goal | None:
    label = "Close" if slots["label"] == "x" else slots["label"]
    return _click(page, label, "button") if page.all("dialog") else None


def _expand(_slots: Slots, page: Page, *, submit: bool) -> Goal | None:
    sections = tuple(e.bid for e in page.all("tab") if e.name.startswith("Section"))
    # The button sits in a header of its own that prints as a tab; a click on that lands on the button.
    submits = _bids(page, "Submit", "button") + _bids(page, "Submit", "tab")
    if not sections or not submits:
        return None
    return Goal(clicks=(sections, submits) if submit else (sections,))


def _focus(slots: Slots, page: Page) -> Goal | None:
    box = nth(page.all("textbox"), slots["nth"])
    return Goal(clicks=((box.bid,),), roles=frozenset({"textbox"}), touch=True) if box else None


def _check(slots: Slots, page: Page, *, submit: bool) -> Goal | None:
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


def _pick_radio(slots: Slots, page: Page, *, submit: bool) -> Goal | None:
    radios = page.named(slots["label"], "radio")
    if not radios or (submit and not submit_button(page)):
        return None
    return Goal(checked=frozenset({radios[0].bid}), clicks=submit_button(page) if submit else ())


def _choose(slots: Slots, page: Page, *, role: str, submit: bool) -> Goal | None:
    lists = page.all(role)
    if not lists or (submit and not submit_button(page)):
        return None
    names = {o.name for o in page.options(lists[0].bid)}
    text = slots["labels"]
    labels = (text,) if text in names else tuple(text.split(", ")) if role == "listbox" else ()
    if not labels or not set(labels) <= names:
        return None
    return Goal(selected={lists[0].bid: labels}, clicks=submit_button(page) if submit else ())


def _dropdown_then_button(slots: Slots, page: Page) -> Goal | None:
    chosen = _choose(slots, page, role="combobox", submit=False)
    buttons = _bids(page, slots["label"], "button")
    return Goal(selected=chosen.selected, clicks=(buttons,)) if chosen and buttons else None


def _radio_then_submit(slots: Slots, page: Page) -> Goal | None:
    """The radio button at a position and, with a `text`, that text in the textbox `where`."""
    radio = nth(page.all("radio"), slots["nth"])
    box = nth(page.all("textbox"), slots["where"]) if "where" in slots else None
    if radio is None or not submit_button(page) or ("where" in slots and box is None):
        return None
    fills = {box.bid: slots["text"]} if box else {}
    return Goal(fills=fills, checked=frozenset({radio.bid}), clicks=submit_button(page))


def _some_name(page: Page, rng: random.Random, *, role: str) -> Slots | None:
    names = sorted({e.name for e in page.all(role) if e.name})
    return {"label": rng.choice(names)} if names else None


def _dialog_button(page: Page, rng: random.Random) -> Slots | None:
    slots = _some_name(page, rng, role="button") if page.all("dialog") else None
    return {"label": "x"} if slots and slots["label"] == "Close" else slots


def _tab_number(page: Page, rng: random.Random) -> Slots | None:
    tabs = page.all("tab")
    return {"n": rng.choice(tabs).name.removeprefix("Tab #")} if tabs else None


def _some_position(page: Page, rng: random.Random, *, role: str) -> Slots | None:
    count = len(page.all(role))
    return {"nth": ordinal(rng.randint(1, count))} if count else None


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


def _some_options(page: Page, rng: random.Random, *, role: str, at_most: int) -> Slots | None:
    lists = page.all(role)
    names = [o.name for o in page.options(lists[0].bid) if o.name and ", " not in o.name] if lists else []
    if not names:
        return None
    return {"labels": ", ".join(rng.sample(names, rng.randint(1, min(at_most, len(names)))))}


def _option_and_button(page: Page, rng: random.Random) -> Slots | None:
    slots, buttons = _some_options(page, rng, role="combobox", at_most=1), page.all("button")
    return {**slots, "label": rng.choice(buttons).name} if slots and buttons else None


def _radio_and_text(page: Page, rng: random.Random) -> Slots | None:
    radios, boxes = page.all("radio"), page.all("textbox")
    if not radios or not boxes:
        return None
    text = str(rng.randint(-10, 50)) if rng.random() < 0.7 else random_code(rng)
    return {"nth": ordinal(rng.randint(1, len(radios))), "text": text, "where": ordinal(rng.randint(1, len(boxes)))}


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


def _some_contact(page: Page, rng: random.Random) -> Slots | None:
    names = [heading.name for heading in page.all("heading")]
    return {"name": names[0], "attribute": rng.choice(list(_ATTRIBUTES))} if names else None


def _given(slots: Slots, _page: Page) -> str | None:
    return slots["text"] if '"' not in slots["text"] else None


def _table(page: Page) -> dict[str, str]:
    """Label → value of a two-column table."""
    cells = [e.name for e in page.all("cell", "gridcell")]  # gridcell: Chromium 123 and older
    return dict(zip(cells[::2], cells[1::2], strict=False))


def _spelled(slots: Slots, page: Page) -> str | None:
    """The letters shown above the text field, one StaticText each; `n` cuts them."""
    letters = [t for t in page.texts() if len(t) == 1]
    if "n" in slots:
        letters = letters[: int(slots["n"])] if 0 < int(slots["n"]) <= len(letters) else []
    return "".join(letters) or None


def _words(page: Page) -> list[str]:
    return page.texts()[0].split() if page.all("paragraph") and page.texts() else []


def _word(slots: Slots, page: Page) -> str | None:
    """The n-th word of the paragraph without punctuation (the page ignores it)."""
    word = nth(_words(page), slots["nth"])
    return re.sub(r"[^A-Za-z]", "", word) if word else None


def _enter(
    source: Source, slots: Slots, page: Page, *, role: str = "textbox", submit: bool = True, count: int = 1
) -> Goal | None:
    """The same text into the page's `count` fields of a role (exactly so many), then Submit if asked for.

    The picker of a date or time field shares the field's bid, so a click on it does not count against the goal.
    """
    text, boxes = source(slots, page), page.all(role)
    if text is None or len(boxes) != count or not submit_button(page):
        return None
    return Goal(fills={box.bid: text for box in boxes}, clicks=submit_button(page) if submit else ())


def _log_in(slots: Slots, page: Page, *, submit: bool) -> Goal | None:
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


def _date(slots: Slots, _page: Page) -> str | None:
    try:
        return datetime.date(int(slots["yyyy"]), int(slots["mm"]), int(slots["dd"])).isoformat()
    except ValueError:
        return None


def _time(slots: Slots, _page: Page) -> str | None:
    try:
        return datetime.datetime.strptime(slots["time"].upper(), "%I:%M %p").strftime("%H:%M")
    except ValueError:
        return None


def _some_text(_page: Page, rng: random.Random) -> Slots | None:
    return {"text": random_name(rng) if rng.random() < 0.5 else random_code(rng)}


def _some_user(_page: Page, rng: random.Random) -> Slots | None:
    return {"user": random_name(rng).lower(), "password": random_code(rng)}


def _some_label(page: Page, rng: random.Random) -> Slots | None:
    labels = list(_table(page))
    return {"label": rng.choice(labels)} if labels else None


def _some_field(page: Page, rng: random.Random) -> Slots | None:
    labels = [page.label_of(box.bid).removesuffix(":") for box in page.all("textbox")]
    return {"label": rng.choice(labels)} if labels else None


def _some_date(_page: Page, rng: random.Random) -> Slots | None:
    day = datetime.date(2010, 1, 1) + datetime.timedelta(days=rng.randrange(3650))
    return {"mm": f"{day.month:02}", "dd": f"{day.day:02}", "yyyy": str(day.year)}


def _some_time(_page: Page, rng: random.Random) -> Slots | None:
    return {"time": f"{rng.randint(1, 12)}:{rng.randrange(60):02} {rng.choice(('AM', 'PM'))}"}


def _some_length(page: Page, rng: random.Random) -> Slots | None:
    letters = _spelled({}, page)
    return {"n": str(rng.randint(1, len(letters) - 1))} if letters and len(letters) > 1 else None


def _some_word(page: Page, rng: random.Random) -> Slots | None:
    count = len(_words(page))
    return {"nth": ordinal(rng.randint(1, count))} if count else None


BUTTON = Intent(
    ('Click on the "{label}" button.', 'Press the "{label}" button.', 'Click the button labeled "{label}".'),
    lambda slots, page: _click(page, slots["label"], "button"),
    partial(_some_name, role="button"),
)
DIALOG_BUTTON = Intent(
    ('Click the button in the dialog box labeled "{label}".', 'Press "{label}" in the dialog box.'),
    _click_in_dialog,
    _dialog_button,
)
CLOSE_DIALOG = Intent(
    ('Close the dialog box by clicking the "x".', "Close the dialog box."),
    lambda _slots, page: _click_in_dialog({"label": "x"}, page),
)
EXPAND = Intent(
    ("Expand the section below and click submit.", "Open the section, then press Submit."),
    partial(_expand, submit=True),
)
EXPAND_ONLY = Intent(("Expand the section below, but do not click submit.",), partial(_expand, submit=False))
TAB = Intent(
    ("Click on Tab #{n}.", "Open Tab #{n}.", "Switch to Tab #{n}."),
    # The link inside a tab is what the page listens to; the tab around it receives the same click.
    lambda slots, page: _click(page, f"Tab #{slots['n']}", "link", "tab"),
    _tab_number,
)
FOCUS = Intent(
    ("Focus into the {nth} input textbox.", "Click into the {nth} textbox.", "Put the cursor in the {nth} text field."),
    _focus,
    partial(_some_position, role="textbox"),
)
CHECKBOXES = Intent(
    ("Select {labels} and click Submit.", "Check {labels}, then press Submit.", "Tick {labels} and submit."),
    partial(_check, submit=True),
    _some_boxes,
)
CHECKBOXES_ONLY = Intent(("Select {labels}, but do not click Submit.",), partial(_check, submit=False), _some_boxes)
RADIO = Intent(
    ("Select {label} and click Submit.", "Choose {label}, then press Submit."),
    partial(_pick_radio, submit=True),
    _some_radio,
)
RADIO_ONLY = Intent(("Select {label}, but do not click Submit.",), partial(_pick_radio, submit=False), _some_radio)
DROPDOWN = Intent(
    ("Select {labels} from the list and click Submit.", "Pick {labels} in the list, then press Submit."),
    partial(_choose, role="combobox", submit=True),
    partial(_some_options, role="combobox", at_most=1),
)
DROPDOWN_ONLY = Intent(
    ("Select {labels} from the list, but do not click Submit.",),
    partial(_choose, role="combobox", submit=False),
    partial(_some_options, role="combobox", at_most=1),
)
SCROLL_LIST = Intent(
    ("Select {labels} from the scroll list and click Submit.", "Mark {labels} in the list, then press Submit."),
    partial(_choose, role="listbox", submit=True),
    partial(_some_options, role="listbox", at_most=3),
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
    partial(_choose, role="combobox", submit=False),
    partial(_some_options, role="combobox", at_most=1),
)
RADIO_NUMBER = Intent(
    (
        'Check the {nth} radio button and enter the number "{text}" into the {where} textbox.',
        'Choose the {nth} radio button, type "{text}" in the {where} textbox and press Submit.',
    ),
    _radio_then_submit,
    _radio_and_text,
)
RADIO_POSITION = Intent(
    ("Check the {nth} radio button, leave the textboxes empty and press Submit.",),
    _radio_then_submit,
    partial(_some_position, role="radio"),
)
CONTACT = ContactIntent(
    (
        "Find {name} in the contact book and click on their {attribute}.",
        "Look up {name} and click on the {attribute} of this contact.",
    ),
    lambda _slots, _page: None,
    _some_contact,
)
NEXT_CONTACT = ContactIntent(
    ("Go to the next contact in the book and click on their {attribute}.",),
    lambda _slots, _page: None,
    lambda _page, rng: {"attribute": rng.choice(list(_ATTRIBUTES))},
)
TEXT = Intent(
    ('Enter "{text}" into the text field and press Submit.', 'Type "{text}" in the textbox, then click Submit.'),
    partial(_enter, _given),
    _some_text,
)
TEXT_ONLY = Intent(
    ('Enter "{text}" into the text field, but do not press Submit.',), partial(_enter, _given, submit=False), _some_text
)
PASSWORD = Intent(
    (
        'Enter the password "{text}" into both text fields and press submit.',
        'Type the password "{text}" twice, then click Submit.',
    ),
    partial(_enter, _given, count=2),
    lambda _page, rng: {"text": random_code(rng)},
)
PASSWORD_ONLY = Intent(
    ('Enter the password "{text}" into both text fields, but do not press submit.',),
    partial(_enter, _given, submit=False, count=2),
    lambda _page, rng: {"text": random_code(rng)},
)
LOGIN = Intent(
    (
        'Enter the username "{user}" and the password "{password}" into the text fields and press login.',
        'Log in as "{user}" with the password "{password}".',
    ),
    partial(_log_in, submit=True),
    _some_user,
)
LOGIN_FIELDS = Intent(
    ('Enter the username "{user}" and the password "{password}" into the text fields, but do not press login.',),
    partial(_log_in, submit=False),
    _some_user,
)
USERNAME_ONLY = Intent(
    ('Enter only the username "{user}" and do not press login.',),
    partial(_log_in, submit=False),
    lambda _page, rng: {"user": random_name(rng).lower()},
)
TABLE_VALUE = Intent(
    (
        "Enter the value of {label} into the text field and press Submit.",
        "Look up {label} in the table, type it into the text field and click Submit.",
    ),
    partial(_enter, lambda slots, page: _table(page).get(slots["label"])),
    _some_label,
)
TABLE_VALUE_ONLY = Intent(
    ("Enter the value of {label} into the text field, but do not press Submit.",),
    partial(_enter, lambda slots, page: _table(page).get(slots["label"]), submit=False),
    _some_label,
)
TABLE_FORM = Intent(
    (
        "Enter the value that corresponds with each label into the form and submit when done.",
        "Fill in the form from the table and press Submit.",
    ),
    _fill_form,
)
TABLE_FIELD = Intent(("Fill in only {label} from the table and press Submit.",), _fill_form, _some_field)
SPELLED = Intent(
    ("Type the text below into the text field and press Submit.", "Copy the letters into the text field and submit."),
    partial(_enter, _spelled),
)
SPELLED_PART = Intent(
    ("Type the first {n} letters of the text below into the text field and press Submit.",),
    partial(_enter, _spelled),
    _some_length,
)
WORD = Intent(
    (
        'Find the {nth} word in the paragraph, type that into the textbox and press "Submit".',
        "Type the {nth} word of the paragraph into the textbox and click Submit.",
    ),
    partial(_enter, _word),
    _some_word,
)
DATE = Intent(
    ("Enter {mm}/{dd}/{yyyy} as the date and hit submit.", "Set the date to {mm}/{dd}/{yyyy} and click Submit."),
    partial(_enter, _date, role="Date"),
    _some_date,
)
DATE_ONLY = Intent(
    ("Enter {mm}/{dd}/{yyyy} as the date, but do not submit.",),
    partial(_enter, _date, role="Date", submit=False),
    _some_date,
)
TIME = Intent(
    ("Enter {time} as the time and press submit.", "Set the time to {time} and click Submit."),
    partial(_enter, _time, role="InputTime"),
    _some_time,
)
TIME_ONLY = Intent(
    ("Enter {time} as the time, but do not submit.",),
    partial(_enter, _time, role="InputTime", submit=False),
    _some_time,
)
