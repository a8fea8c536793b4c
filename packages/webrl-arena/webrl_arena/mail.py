"""Tasks of the mail: customers look up what was written to them, write, answer, and keep their folders.

First what several tasks share and what draws their entities and success, then the table: each template's name and its
draw. `experts.yaml` says how it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from webrl_arena.templates import Draw, Entities, Eval, Instance, Template, about, is_answered, leads_to, quoted, rows
from webrl_arena.world.content import catalogue, load_words
from webrl_arena.world.mail import Conversation, Letter, mail

_TO_CUSTOMERS = ("meeting", "voucher")
"""Kinds of conversations whose first message is in a customer's mailbox, not the staff's."""


def _to_customer(
    succeeds: Callable[[Conversation], Eval],
    holds: Callable[[Conversation], bool],
    slots: Callable[[Conversation], dict[str, str]] = lambda found: {"mail": found.subject},
    folder: str = "inbox",
) -> Draw:
    """Draw a conversation whose first message is in a folder of a customer, who is logged in."""
    return about(
        lambda e: [c for c in e.mails if c.letters[0].folder == folder and c.kind in _TO_CUSTOMERS and holds(c)],
        slots,
        succeeds,
        lambda found: found.letters[0].recipient,
    )


def _subject_and_sender(found: Conversation) -> dict[str, str]:
    (customer,) = (c.name for c in catalogue().customers if c.email == found.letters[0].sender)
    return {"mail": found.subject, "customer": customer}


def _is_single(found: Conversation) -> bool:
    return len(found.letters) == 1


def _is_meeting(found: Conversation) -> bool:
    return found.kind == "meeting"


def _opened(found: Conversation) -> Eval:
    return leads_to(found.path.removeprefix("/mail"), "mail")


def _unread(found: Conversation) -> Eval:
    """Require that this message is unread again; which others are read on the way does not matter."""
    first = found.letters[0]
    before = ", ".join(str(each.pk) for each in mail().letters if not each.is_read)
    return _are(f"m.read_at IS NULL AND m.id NOT IN ({before})", first.recipient, {first.pk})


def pick(e: Entities, rng: random.Random, kind: str) -> Conversation:
    """Draw a conversation of a kind whose first message is in the inbox."""
    return rng.choice([each for each in e.mails if each.letters[0].folder == "inbox" and each.kind == kind])


def sent(login: str, subject: str, text: str, *recipients: str) -> Eval:
    """Require new messages: one to each of these recipients, and no other."""
    tables = f"""postman_message m JOIN auth_user s ON s.id = m.sender_id JOIN auth_user r ON r.id = m.recipient_id
        WHERE m.id > {mail().last_pk}"""
    wanted = {f"{login} / {recipient} / {subject} / {text}" for recipient in recipients}
    return rows("s.email || ' / ' || r.email || ' / ' || m.subject || ' / ' || m.body", tables, wanted)


def archived(found: Conversation) -> Eval:
    """Require this in its recipient's archives, and what was there before."""
    first = found.letters[0]
    return _are("m.recipient_archived", first.recipient, {*_folder(first.recipient, "archives"), first.pk})


def _in_trash(changed: Letter) -> Eval:
    """Require this in its recipient's trash if it was not there, else only the others."""
    condition = "m.recipient_deleted_at IS NOT NULL"
    return _are(condition, changed.recipient, _folder(changed.recipient, "trash") ^ {changed.pk})


def _are(condition: str, login: str, pks: set[int]) -> Eval:
    """Require that a condition holds of these messages to one user, and of no others."""
    tables = f"""postman_message m JOIN auth_user u ON u.id = m.recipient_id
        WHERE u.email = {quoted(login)} AND {condition}"""
    return rows("m.id", tables, {str(pk) for pk in pks})


def _folder(login: str, name: str) -> set[int]:
    return {letter.pk for letter in mail().letters if letter.recipient == login and letter.folder == name}


def _write(e: Entities, rng: random.Random) -> Instance:
    login, address = (customer.email for customer in rng.sample(e.customers, 2))
    name, text = rng.choice(e.names), rng.choice(load_words("tasks").mails)
    return Instance({"address": address, "name": name, "text": text}, sent(login, name, text, address), login)


def _write_two(e: Entities, rng: random.Random) -> Instance:
    login, address, other = (customer.email for customer in rng.sample(e.customers, 3))
    name, text = rng.choice(e.names), rng.choice(load_words("tasks").mails)
    slots = {"address": address, "other": other, "name": name, "text": text}
    return Instance(slots, sent(login, name, text, address, other), login)


def _reply(e: Entities, rng: random.Random) -> Instance:
    found, text = pick(e, rng, "meeting"), rng.choice(load_words("tasks").mails)
    first = found.letters[0]
    evaluation = sent(first.recipient, f"Re: {found.subject}", text, first.sender)
    return Instance({**_subject_and_sender(found), "text": text}, evaluation, first.recipient)


_task = partial(Template, "mail")
_held = partial(_task, held_out=True)
MAIL: tuple[Template, ...] = (
    _task("time", _to_customer(lambda f: is_answered(f.value), _is_meeting, _subject_and_sender)),
    _held(
        "voucher",
        _to_customer(
            lambda f: is_answered(f.value),
            lambda f: f.kind == "voucher",
            lambda f: {"number": f.order.number if f.order else ""},
        ),
    ),
    _held(
        "num-messages",
        _to_customer(
            lambda f: is_answered(str(len(f.letters))),
            lambda f: _is_meeting(f) and not _is_single(f),
            _subject_and_sender,
        ),
    ),
    _task("open", _to_customer(_opened, _is_single)),
    _held("open-conversation", _to_customer(_opened, lambda f: not _is_single(f))),
    _task("write", _write),
    _held("write-two", _write_two),
    _task("reply", _reply),
    _task("archive", _to_customer(archived, _is_single)),
    _held("delete", _to_customer(lambda f: _in_trash(f.letters[0]), _is_single)),
    _task("restore", _to_customer(lambda f: _in_trash(f.letters[0]), lambda _: True, folder="trash")),
    _held("unread", _to_customer(_unread, lambda f: _is_single(f) and f.letters[0].is_read)),
)
