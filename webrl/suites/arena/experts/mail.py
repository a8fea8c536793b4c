"""How the tasks of the mail are done."""

from __future__ import annotations

import re
from collections.abc import Callable

from webrl.suites.arena.experts.script import Script, Step, after, click, click_on, fill, fill_in, first, rows_of, say
from webrl.suites.miniwob.experts.page import Page


def open_mail(subject: str) -> Step:
    """A message or conversation of a folder; a link also shows how the latest message begins."""
    names = (f"{subject} - ", f"Re: {subject} - ")

    def step(page: Page) -> str | None:
        return click_on(next((link for link in page.all("link") if link.name.startswith(names)), None))

    return step


def tick(subject: str) -> Step:
    """The box before a message of a folder."""

    def step(page: Page) -> str | None:
        row = next((row for row in rows_of(page) if any(e.name.startswith(f"{subject} - ") for e in row)), [])
        return click_on(first(row, "checkbox"))

    return step


def write(recipients: str, subject: str, text: str) -> list[Step]:
    """A new message, from any page of the mail."""
    fields = [fill("Recipients:", recipients), fill("Subject:", subject), fill("Body:", text)]
    return [click("»\xa0Write"), *fields, click("Send", "button")]


def reply(subject: str, text: str) -> list[Step]:
    """Below the message."""

    def answer(page: Page) -> str | None:
        return fill_in(first(after(page, "Reply", "heading"), "textbox"), text)

    return [open_mail(subject), answer, click("Reply", "button")]


def ticked(button: str, folder: str = "") -> Script:
    """Tick a message, and press a button of its folder."""
    way = [click(folder)] if folder else []
    return lambda slots: [*way, tick(slots["mail"]), click(button, "button")]


def _match(pattern: str) -> Callable[[Page], str | None]:
    """Reads what a message's text has at this place."""

    def read(page: Page) -> str | None:
        found = (re.search(pattern, text) for text in page.texts())
        return next((match[1] for match in found if match), None)

    return read


def _num_messages(subject: str) -> Callable[[Page], str | None]:
    def read(page: Page) -> str | None:
        shown = sum(text in (subject, f"Re: {subject}") for text in page.texts())
        return str(shown) if shown else None

    return read


SCRIPTS: dict[str, Script] = {
    "time": lambda slots: [open_mail(slots["mail"]), say(_match(r"\bat (\d\d:\d\d)"))],
    "voucher": lambda slots: [
        open_mail(f"Order {slots['number']}: a voucher"),
        say(_match(r"voucher code (?:is )?([A-Z]+-\d+)")),
    ],
    "num-messages": lambda slots: [open_mail(slots["mail"]), say(_num_messages(slots["mail"]))],
    "open": lambda slots: [open_mail(slots["mail"])],
    "open-conversation": lambda slots: [open_mail(slots["mail"])],
    "write": lambda slots: write(slots["address"], slots["name"], slots["text"]),
    "write-two": lambda slots: write(f"{slots['address']}, {slots['other']}", slots["name"], slots["text"]),
    "reply": lambda slots: reply(slots["mail"], slots["text"]),
    "archive": ticked("Archive"),
    "delete": ticked("Delete"),
    "restore": ticked("Undelete", "»\xa0Trash"),
    "unread": ticked("Mark as unread"),
}
"""By template."""
