"""Intents with text entry: given text, text looked up on the page, dates and times."""

from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
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
from webrl.suites.miniwob.experts.page import Page

Source = Callable[[Slots, Page], "str | None"]
"""The text that an instruction means on a page; None if it means none."""


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


def _enter(source: Source, slots: Slots, page: Page, *, submit: bool = True, count: int = 1) -> Goal | None:
    """The same text into the page's `count` text fields (exactly so many), then Submit if asked for."""
    text, boxes = source(slots, page), page.all("textbox")
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


def _enter_special(role: str, source: Source, slots: Slots, page: Page, *, submit: bool = True) -> Goal | None:
    text, boxes = source(slots, page), page.all(role)
    if text is None or not boxes or not submit_button(page):
        return None
    # The picker beside the field shares its bid, so a click on it does not count against the goal.
    return Goal(fills={boxes[0].bid: text}, clicks=submit_button(page) if submit else ())


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


def _some_position(page: Page, rng: random.Random) -> Slots | None:
    count = len(_words(page))
    return {"nth": ordinal(rng.randint(1, count))} if count else None


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
    _some_position,
)
DATE = Intent(
    ("Enter {mm}/{dd}/{yyyy} as the date and hit submit.", "Set the date to {mm}/{dd}/{yyyy} and click Submit."),
    partial(_enter_special, "Date", _date),
    _some_date,
)
DATE_ONLY = Intent(
    ("Enter {mm}/{dd}/{yyyy} as the date, but do not submit.",),
    partial(_enter_special, "Date", _date, submit=False),
    _some_date,
)
TIME = Intent(
    ("Enter {time} as the time and press submit.", "Set the time to {time} and click Submit."),
    partial(_enter_special, "InputTime", _time),
    _some_time,
)
TIME_ONLY = Intent(
    ("Enter {time} as the time, but do not submit.",),
    partial(_enter_special, "InputTime", _time, submit=False),
    _some_time,
)
