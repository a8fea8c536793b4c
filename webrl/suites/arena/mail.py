"""Tasks of the mail: customers look up what was written to them, write, answer, and keep their folders.

First what each task is about and how its success is measured, then how it is done, then the table of both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache, partial

from webrl.arena.content import catalogue
from webrl.arena.mail.content import Conversation, Letter, mail
from webrl.suites.arena.evals import Eval, is_answered, leads_to, quoted, rows
from webrl.suites.arena.script import Script, Step, after, click, click_on, fill, fill_in, first, rows_of, say
from webrl.suites.arena.templates import Entities, Instance, template
from webrl.suites.miniwob.experts.page import Page

_SAID = (
    "Thank you for the other day.",
    "Have you still got my umbrella?",
    "I found the recipe that you asked for.",
    "Please call me when you are back.",
    "The tickets are at the door.",
    "It fits, thank you very much.",
    "I shall be an hour late.",
    "My neighbour sends greetings.",
)


def _time(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: each.kind == "meeting")
    return _about(found, is_answered(found.value), customer=_name(found.letters[0].sender))


def _voucher(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: each.kind == "voucher")
    assert found.order is not None
    return Instance({"number": found.order.number}, is_answered(found.value), found.order.email)


def _num_messages(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: each.kind == "meeting" and len(each.letters) > 1)
    return _about(found, is_answered(str(len(found.letters))), customer=_name(found.letters[0].sender))


def _open(several: bool, e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: _is_own(each) and (len(each.letters) > 1) == several)
    return _about(found, leads_to(found.path.removeprefix("/mail"), "mail"))


def _write(e: Entities, rng: random.Random) -> Instance:
    login, address, name, text = *_people(e, rng, 2), rng.choice(e.names), rng.choice(_SAID)
    return Instance({"address": address, "name": name, "text": text}, sent(login, name, text, address), login)


def _write_two(e: Entities, rng: random.Random) -> Instance:
    login, address, other, name, text = *_people(e, rng, 3), rng.choice(e.names), rng.choice(_SAID)
    slots = {"address": address, "other": other, "name": name, "text": text}
    return Instance(slots, sent(login, name, text, address, other), login)


def _reply(e: Entities, rng: random.Random) -> Instance:
    found, text = pick(e, rng, lambda each: each.kind == "meeting"), rng.choice(_SAID)
    first = found.letters[0]
    evaluation = sent(first.recipient, f"Re: {found.subject}", text, first.sender)
    return _about(found, evaluation, customer=_name(first.sender), text=text)


def _archive(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: _is_own(each) and len(each.letters) == 1)
    return _about(found, archived(found))


def _delete(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: _is_own(each) and len(each.letters) == 1)
    return _about(found, _in_trash(found.letters[0]))


def _restore(e: Entities, rng: random.Random) -> Instance:
    found = rng.choice([each for each in e.mails if each.letters[0].folder == "trash"])
    return _about(found, _in_trash(found.letters[0]))


def _unread(e: Entities, rng: random.Random) -> Instance:
    """Which others are read on the way does not matter."""
    found = pick(e, rng, lambda each: _is_own(each) and len(each.letters) == 1 and each.letters[0].is_read)
    first = found.letters[0]
    before = ", ".join(str(each.pk) for each in mail().letters if not each.is_read)
    return _about(found, _are(f"m.read_at IS NULL AND m.id NOT IN ({before})", first.recipient, {first.pk}))


def pick(e: Entities, rng: random.Random, holds: Callable[[Conversation], bool]) -> Conversation:
    """One whose first message lies in the inbox."""
    return rng.choice([each for each in e.mails if each.letters[0].folder == "inbox" and holds(each)])


def sent(login: str, subject: str, text: str, *recipients: str) -> Eval:
    """Success by the messages that are new: one to each of these, and no other."""
    tables = f"""postman_message m JOIN auth_user s ON s.id = m.sender_id JOIN auth_user r ON r.id = m.recipient_id
        WHERE m.id > {mail().last_pk}"""
    wanted = {f"{login} / {recipient} / {subject} / {text}" for recipient in recipients}
    return rows("s.email || ' / ' || r.email || ' / ' || m.subject || ' / ' || m.body", tables, wanted)


def archived(found: Conversation) -> Eval:
    """Success by what its recipient has in the archives: this beside what was there."""
    first = found.letters[0]
    return _are("m.recipient_archived", first.recipient, {*_folder(first.recipient, "archives"), first.pk})


def _in_trash(changed: Letter) -> Eval:
    """Success by what its recipient has in the trash: this where it was not there, else the others alone."""
    condition = "m.recipient_deleted_at IS NOT NULL"
    return _are(condition, changed.recipient, _folder(changed.recipient, "trash") ^ {changed.pk})


def _are(condition: str, login: str, pks: set[int]) -> Eval:
    """Success by the messages to somebody that a condition holds of: these and no others."""
    tables = f"""postman_message m JOIN auth_user u ON u.id = m.recipient_id
        WHERE u.email = {quoted(login)} AND {condition}"""
    return rows("m.id", tables, {str(pk) for pk in pks})


def _folder(login: str, name: str) -> set[int]:
    return {letter.pk for letter in mail().letters if letter.recipient == login and letter.folder == name}


def _is_own(each: Conversation) -> bool:
    """In the mailbox of a customer, not of the staff."""
    return each.kind in ("meeting", "voucher")


def _about(found: Conversation, evaluation: Eval, **slots: str) -> Instance:
    return Instance({"mail": found.subject, **slots}, evaluation, found.letters[0].recipient)


def _people(e: Entities, rng: random.Random, count: int) -> list[str]:
    return [customer.email for customer in rng.sample(e.customers, count)]


def _name(email: str) -> str:
    return _names()[email]


@cache
def _names() -> dict[str, str]:
    return {customer.email: customer.name for customer in catalogue().customers}


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


def _num_messages_steps(subject: str) -> Callable[[Page], str | None]:
    def read(page: Page) -> str | None:
        shown = sum(text in (subject, f"Re: {subject}") for text in page.texts())
        return str(shown) if shown else None

    return read


_template = partial(template, "mail")

MAIL = (
    _template(
        "time",
        'At what time does {customer} want to meet me, by the first message of "{mail}"? Answer with the time alone, '
        "like 17:30.",
        '{customer} has written to me about "{mail}". When are we to meet? Say the time, like 17:30, nothing else.',
        draw=_time,
        script=lambda slots: [open_mail(slots["mail"]), say(_match(r"\bat (\d\d:\d\d)"))],
    ),
    _template(
        "voucher",
        "Which voucher code has the shop sent me for my order {number}? Answer with the code alone.",
        "Find the voucher that I got by mail for order {number}. Say its code, nothing else.",
        draw=_voucher,
        script=lambda slots: [
            open_mail(f"Order {slots['number']}: a voucher"),
            say(_match(r"voucher code (?:is )?([A-Z]+-\d+)")),
        ],
        held_out=True,
    ),
    _template(
        "num-messages",
        'How many messages are there in my conversation "{mail}" with {customer}, mine among them? Answer with the '
        "number alone.",
        'Count the messages that {customer} and I have exchanged under the subject "{mail}". Say the number, nothing '
        "else.",
        draw=_num_messages,
        script=lambda slots: [open_mail(slots["mail"]), say(_num_messages_steps(slots["mail"]))],
        held_out=True,
    ),
    _template(
        "open",
        'Open the message "{mail}" in my mail.',
        'Show me the mail whose subject is "{mail}".',
        draw=partial(_open, False),
        script=lambda slots: [open_mail(slots["mail"])],
    ),
    _template(
        "open-conversation",
        'Open the whole conversation "{mail}" in my mail.',
        'Show me all that was written under "{mail}" in my mail, on one page.',
        draw=partial(_open, True),
        script=lambda slots: [open_mail(slots["mail"])],
        held_out=True,
    ),
    _template(
        "write",
        'Write to {address} in the mail: subject "{name}", text "{text}"',
        'Send {address} a message with the subject "{name}" that says "{text}"',
        draw=_write,
        script=lambda slots: write(slots["address"], slots["name"], slots["text"]),
    ),
    _template(
        "write-two",
        'Send one message to both {address} and {other}: subject "{name}", text "{text}"',
        'Let {address} and {other} know by mail, under the subject "{name}": "{text}"',
        draw=_write_two,
        script=lambda slots: write(f"{slots['address']}, {slots['other']}", slots["name"], slots["text"]),
        held_out=True,
    ),
    _template(
        "reply",
        'Reply to what {customer} wrote to me under "{mail}" in the mail: "{text}"',
        'Answer the mail "{mail}" of {customer} with "{text}"',
        draw=_reply,
        script=lambda slots: reply(slots["mail"], slots["text"]),
    ),
    _template(
        "archive",
        'Archive the message "{mail}" in my mail.',
        'Move the message "{mail}" from my inbox into the archives.',
        draw=_archive,
        script=ticked("Archive"),
    ),
    _template(
        "delete",
        'Delete the message "{mail}" from my mail.',
        'Put the message "{mail}" of my inbox into the trash.',
        draw=_delete,
        script=ticked("Delete"),
        held_out=True,
    ),
    _template(
        "restore",
        'Bring the message "{mail}" back from the trash of my mail.',
        'I should not have deleted the message "{mail}": undelete it.',
        draw=_restore,
        script=ticked("Undelete", "»\xa0Trash"),
    ),
    _template(
        "unread",
        'Mark the message "{mail}" in my inbox as unread.',
        'Let the message "{mail}" of my inbox count as unread again.',
        draw=_unread,
        script=ticked("Mark as unread"),
        held_out=True,
    ),
)
