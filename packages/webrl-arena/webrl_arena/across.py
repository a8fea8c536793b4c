"""Tasks across the staff's sites: information from mail, forum and tracker is used on another site.

Each template has its words, its script, and what draws its entities and how success is measured.
"""

from __future__ import annotations

import random

from webrl_arena.dashboard import FIND_ORDER, in_status, set_status
from webrl_arena.forum import open_topic, post, replied, start_topic, talks, written
from webrl_arena.mail import archived, pick, reply, sent, ticked, write
from webrl_arena.script import below, beside, click, noting
from webrl_arena.templates import Entities, Instance, Template, finds_all, template
from webrl_arena.tracker import find_ticket, new_ticket, reported
from webrl_arena.world.content import STAFF_EMAIL, load_words
from webrl_arena.world.forum import ANNOUNCEMENTS
from webrl_arena.world.tracker import tracker

_CANCEL, _TOTAL = (load_words("mail").requests[kind][0] for kind in ("cancel", "total"))
"""Subjects with the order's `{number}`."""

ACROSS: list[Template] = []


@template(
    ACROSS,
    "mail+shop_admin",
    "cancel-order",
    f'Do in the dashboard what {{customer}} asks for in the message "{_CANCEL}", and archive the message.',
    f'Cancel the order that {{customer}} has written about under "{_CANCEL}" in the dashboard, and put the message '
    "into the archives of the mail.",
    script=[*ticked(_CANCEL, "Archive"), click("Dashboard"), *FIND_ORDER, *set_status("Cancelled")],
)
def _cancel(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, "cancel")
    assert found.order is not None
    slots = {"number": found.order.number, "customer": found.order.customer}
    return Instance(slots, finds_all(in_status(found.order.number, "Cancelled"), archived(found)))


@template(
    ACROSS,
    "mail+shop_admin",
    "answer-total",
    f'{{customer}} asks in the message "{_TOTAL}" for the total of an order. Look it up in the dashboard and reply '
    "with the total alone, written like $12.50.",
    f'Reply to the mail "{_TOTAL}" of {{customer}} with the total of that order alone, like $12.50: the dashboard '
    "knows it.",
    script=[
        click("Dashboard"),
        *FIND_ORDER,
        noting(below("Order Total"), click("Return to site")),
        click("Mail"),
        *reply(_TOTAL, "{note}"),
    ],
    held_out=True,
)
def _total(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, "total")
    assert found.order is not None
    evaluation = sent(STAFF_EMAIL, f"Re: {found.subject}", f"${found.order.total}", found.order.email)
    return Instance({"number": found.order.number, "customer": found.order.customer}, evaluation)


@template(
    ACROSS,
    "mail+tracker",
    "report-fault",
    'Open a ticket in the tracker whose summary is "{mail}" and whose component is "{component}", and archive '
    "the message of that subject in the mail.",
    'A customer has written "{mail}" to us: open a ticket of the component "{component}" with that summary, '
    "and archive the message.",
    script=[*ticked("{mail}", "Archive"), click("Tracker"), *new_ticket("{mail}", "{component}")],
)
def _fault(e: Entities, rng: random.Random) -> Instance:
    found, component = pick(e, rng, "fault"), rng.choice([*tracker().owners])
    evaluation = finds_all(reported(found.subject, component, "staff"), archived(found))
    return Instance({"mail": found.subject, "component": component}, evaluation)


@template(
    ACROSS,
    "tracker+mail",
    "tell-milestone",
    'Send {address} a message with the subject "{name}" whose text is the milestone of the ticket "{ticket}", alone.',
    'Write to {address} by mail, under the subject "{name}", for which milestone the ticket "{ticket}" is '
    "planned: its name alone.",
    script=[
        *find_ticket("{ticket}"),
        noting(beside("Milestone:"), click("MAIL")),
        *write("{address}", "{name}", "{note}"),
    ],
    held_out=True,
)
def _tell_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket = rng.choice([ticket for ticket in e.tickets if ticket.milestone])
    address, name = rng.choice(e.customers).email, rng.choice(e.names)
    slots = {"address": address, "name": name, "ticket": ticket.summary}
    return Instance(slots, sent(STAFF_EMAIL, name, ticket.milestone, address))


@template(
    ACROSS,
    "forum+tracker",
    "ticket-of-topic",
    'Reply to the forum topic "{topic}" with "{text}", and open a ticket in the tracker with the topic\'s '
    'subject as its summary, of the component "{component}".',
    'Tell them in the forum topic "{topic}": "{text}". Then open a ticket for it: the summary is the topic\'s '
    'subject, the component "{component}".',
    script=[
        *open_topic("{topic}"),
        click("Post reply"),
        *post("{text}"),
        click("Shop", "link"),
        click("Tracker"),
        *new_ticket("{topic}", "{component}"),
    ],
)
def _ticket_of_topic(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice(talks(e))
    component, text = rng.choice([*tracker().owners]), rng.choice(load_words("tasks").replies)
    evaluation = finds_all(reported(topic.subject, component, "staff"), replied(topic, STAFF_EMAIL, text))
    return Instance({"topic": topic.subject, "component": component, "text": text}, evaluation)


@template(
    ACROSS,
    "tracker+forum",
    "announce-milestone",
    'Start a topic in the forum\'s board "Announcements": the subject is "{name}", the message is the '
    'milestone of the ticket "{ticket}", alone.',
    'Announce in the forum (board "Announcements"), under the subject "{name}", for which milestone the ticket '
    '"{ticket}" is planned: its name alone.',
    script=[
        *find_ticket("{ticket}"),
        noting(beside("Milestone:"), click("FORUM")),
        *start_topic(ANNOUNCEMENTS, "{name}", "{note}"),
    ],
    held_out=True,
)
def _announce_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket, name = rng.choice([ticket for ticket in e.tickets if ticket.milestone]), rng.choice(e.names)
    evaluation = written(f"{ANNOUNCEMENTS} / {name} / {STAFF_EMAIL} / {ticket.milestone}")
    return Instance({"ticket": ticket.summary, "name": name}, evaluation)
