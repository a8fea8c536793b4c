"""How the tasks of the forum are done, and those that need the shop beside it."""

from __future__ import annotations

from collections.abc import Callable

from webrl.arena.content import catalogue
from webrl.arena.forum.words import ANNOUNCEMENTS, ORDERS
from webrl.arena.words import shelves
from webrl.suites.arena.experts.script import (
    Script,
    Step,
    beside,
    click,
    click_after,
    click_on,
    fill,
    first,
    noting,
    number_in,
    say,
    select,
    text_below,
)
from webrl.suites.arena.experts.storefront import open_own_order, open_product
from webrl.suites.miniwob.experts.page import Element, Page

_SURE = click("Yes, I'm sure", "button")


def open_topic(topic: str) -> list[Step]:
    """Search for a topic, and open it."""
    return [fill("Search", topic, "searchbox"), click("Search", "button"), click(topic, "link")]


def _in_topic(*steps: Step) -> Script:
    return lambda slots: [*open_topic(slots["topic"]), *steps]


def post(text: str) -> list[Step]:
    """Write in the form of a post."""
    return [fill("Message", text), click("Submit", "button")]


def start_topic(board: str, subject: str, text: str) -> list[Step]:
    """From the list of boards."""
    return [click(board, "link"), click("New topic"), fill("Subject", subject), *post(text)]


def _writers(page: Page) -> list[Element]:
    """The link to each post's writer, in order."""
    starts = [i for i, e in enumerate(page.elements) if e.role == "StaticText" and e.name == "By:"]
    found = (first(page.elements[i:], "link") for i in starts)
    return [link for link in found if link]


def _writer(place: int) -> Callable[[Page], str | None]:
    def read(page: Page) -> str | None:
        found = _writers(page)
        return found[place].name if found else None

    return read


def _open_writer(page: Page) -> str | None:
    return click_on(next(iter(_writers(page)), None))


def _num_replies(page: Page) -> str | None:
    return str(len(_writers(page)) - 1)


def _num_posts(page: Page) -> str | None:
    headings = [e.name for e in page.all("heading")]
    return next((name for name in headings if name.isdigit()), None)


def _finish(slots: dict[str, str]) -> list[Step]:
    finishes = sorted({finish for shelf in shelves() for finish in shelf.finishes}, key=len, reverse=True)

    def read(page: Page) -> str | None:
        link = next((link for link in _writers(page) if link.name == slots["customer"]), None)
        if link is None:
            return None
        texts = [e.name for e in page.elements[page.elements.index(link) :] if e.role == "StaticText"]
        return next((finish for finish in finishes if finish in texts[1]), None)  # the first is the date

    return [*open_topic(slots["topic"]), say(read)]


def _moderate(entry: str, *steps: Step) -> Script:
    return _in_topic(click("Moderate", "button"), click(entry, "link"), *steps, _SURE)


def _waiting(decision: str) -> Script:
    return lambda slots: [
        click("Moderation queue"),
        click(f"Re: {slots['topic']}", "link"),
        click(decision),
        _SURE,
    ]


def _answer(read: Callable[[Page], str | None]) -> Script:
    return lambda slots: [
        click("Shop", "link"),
        *open_product(slots["product"]),
        noting(read, click("Forum", "link")),
        *open_topic(slots["topic"]),
        click("Post reply"),
        *post(slots.get("note", "")),
    ]


def _product_asked_about(page: Page) -> str | None:
    found = [p.title for p in catalogue().products if any(p.title in text for text in page.texts())]
    return max(found, key=len, default=None)


SCRIPTS: dict[str, Script] = {
    "author": _in_topic(say(_writer(0))),
    "last-author": _in_topic(say(_writer(-1))),
    "num-replies": _in_topic(say(_num_replies)),
    "finish": _finish,
    "num-posts": _in_topic(_open_writer, say(_num_posts)),
    "open-topic": _in_topic(),
    "open-member": _in_topic(_open_writer),
    "search": lambda slots: [fill("Search", slots["words"], "searchbox"), click("Search", "button")],
    "new-topic": lambda slots: start_topic(slots["board"], slots["name"], slots["text"]),
    "announce": lambda slots: start_topic(ANNOUNCEMENTS, slots["name"], slots["text"]),
    "reply": lambda slots: [*open_topic(slots["topic"]), click("Post reply"), *post(slots["text"])],
    "edit": lambda slots: [*open_topic(slots["topic"]), click("Edit"), *post(slots["text"])],
    "delete": _in_topic(click("Delete"), _SURE),
    "subscribe": _in_topic(click("Subscribe"), _SURE),
    "unsubscribe": _in_topic(click("Unsubscribe"), _SURE),
    "vote": lambda slots: [*open_topic(slots["topic"]), click(slots["option"], "radio"), click("Submit", "button")],
    "signature": lambda slots: [
        click_after("Shop", None, "link"),  # to one's own profile
        click("Edit profile"),
        fill("Signature (optional)", slots["text"]),
        click("Submit", "button"),
    ],
    "lock": _moderate("Lock topic"),
    "sticky": _moderate("Change to sticky topic"),
    "move": lambda slots: _moderate("Move topic", select("Select a destination forum", slots["board"]))(slots),
    "approve": _waiting("Approve"),
    "disapprove": _waiting("Disapprove"),
    "answer-price": _answer(beside("Price (incl. tax)")),
    "answer-weight": _answer(beside("Weight")),
    "answer-stock": _answer(number_in(beside("Availability"))),
    "basket-of-topic": lambda slots: [
        *open_topic(slots["topic"]),
        noting(_product_asked_about, click("Shop", "link")),
        *open_product(slots.get("note", "")),
        click("Add to basket"),
    ],
    "report-order": lambda slots: [
        *open_own_order(slots["number"]),
        noting(text_below("Status"), click("Forum", "link")),
        *start_topic(ORDERS, slots["number"], slots.get("note", "")),
    ],
}
"""By template."""
