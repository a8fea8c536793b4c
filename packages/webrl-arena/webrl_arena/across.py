"""Tasks across the staff's sites: information from mail, forum and tracker is used on another site.

First what draws their entities and success, then the table: each template's name and its draw.
"""

from __future__ import annotations

import random

from webrl_arena.dashboard import in_status
from webrl_arena.forum import replied, talks, written
from webrl_arena.mail import archived, pick, sent
from webrl_arena.templates import Entities, Instance, Template, finds_all
from webrl_arena.tracker import reported
from webrl_arena.world.content import STAFF_EMAIL, load_words
from webrl_arena.world.forum import ANNOUNCEMENTS
from webrl_arena.world.tracker import tracker


def _cancel(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, "cancel")
    assert found.order is not None
    slots = {"number": found.order.number, "customer": found.order.customer}
    return Instance(slots, finds_all(in_status(found.order.number, "Cancelled"), archived(found)))


def _total(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, "total")
    assert found.order is not None
    evaluation = sent(STAFF_EMAIL, f"Re: {found.subject}", f"${found.order.total}", found.order.email)
    return Instance({"number": found.order.number, "customer": found.order.customer}, evaluation)


def _fault(e: Entities, rng: random.Random) -> Instance:
    found, component = pick(e, rng, "fault"), rng.choice([*tracker().owners])
    evaluation = finds_all(reported(found.subject, component, "staff"), archived(found))
    return Instance({"mail": found.subject, "component": component}, evaluation)


def _tell_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket = rng.choice([ticket for ticket in e.tickets if ticket.milestone])
    address, name = rng.choice(e.customers).email, rng.choice(e.names)
    slots = {"address": address, "name": name, "ticket": ticket.summary}
    return Instance(slots, sent(STAFF_EMAIL, name, ticket.milestone, address))


def _ticket_of_topic(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    component, text = rng.choice([*tracker().owners]), rng.choice(load_words("tasks").replies)
    evaluation = finds_all(reported(topic.subject, component, "staff"), replied(topic, STAFF_EMAIL, text))
    return Instance({"topic": topic.subject, "component": component, "text": text}, evaluation)


def _announce_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket, name = rng.choice([ticket for ticket in e.tickets if ticket.milestone]), rng.choice(e.names)
    evaluation = written(f"{ANNOUNCEMENTS} / {name} / {STAFF_EMAIL} / {ticket.milestone}")
    return Instance({"ticket": ticket.summary, "name": name}, evaluation)


ACROSS: tuple[Template, ...] = (
    Template("mail+shop_admin", "cancel-order", _cancel),
    Template("mail+shop_admin", "answer-total", _total, held_out=True),
    Template("mail+tracker", "report-fault", _fault),
    Template("tracker+mail", "tell-milestone", _tell_milestone, held_out=True),
    Template("forum+tracker", "ticket-of-topic", _ticket_of_topic),
    Template("tracker+forum", "announce-milestone", _announce_milestone, held_out=True),
)
