"""Templates across the staff's sites: what came by mail or stands in forum and tracker is carried to another."""

from __future__ import annotations

import random

from webrl.arena.content import STAFF_EMAIL
from webrl.arena.forum.words import ANNOUNCEMENTS
from webrl.arena.tracker.content import tracker
from webrl.suites.arena.dashboard import in_status
from webrl.suites.arena.evals import finds_all
from webrl.suites.arena.forum import replied, written
from webrl.suites.arena.mail import archived, pick, sent
from webrl.suites.arena.templates import Entities, Instance, template
from webrl.suites.arena.tracker import reported

_REPLIES = (
    "Noted, we look into it.",
    "There is a ticket for this now.",
    "Thank you, it is on our list.",
    "We have told the warehouse.",
)


def _cancel(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: each.kind == "cancel")
    assert found.order is not None
    slots = {"mail": found.subject, "customer": found.order.customer}
    return Instance(slots, finds_all(in_status(found.order.number, "Cancelled"), archived(found)))


def _total(e: Entities, rng: random.Random) -> Instance:
    found = pick(e, rng, lambda each: each.kind == "total")
    assert found.order is not None
    evaluation = sent(STAFF_EMAIL, f"Re: {found.subject}", f"${found.order.total}", found.order.email)
    return Instance({"mail": found.subject, "customer": found.order.customer}, evaluation)


def _fault(e: Entities, rng: random.Random) -> Instance:
    found, component = pick(e, rng, lambda each: each.kind == "fault"), rng.choice([*tracker().owners])
    evaluation = finds_all(reported(found.subject, component, "staff"), archived(found))
    return Instance({"mail": found.subject, "component": component}, evaluation)


def _tell_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket = rng.choice([ticket for ticket in e.tickets if ticket.milestone])
    address, name = rng.choice(e.customers).email, rng.choice(e.names)
    slots = {"address": address, "name": name, "ticket": ticket.summary}
    return Instance(slots, sent(STAFF_EMAIL, name, ticket.milestone, address))


def _ticket_of_topic(e: Entities, rng: random.Random) -> Instance:
    topic = rng.choice([topic for topic in e.topics if topic.posts[0].email and topic.shown == topic.posts])
    component, text = rng.choice([*tracker().owners]), rng.choice(_REPLIES)
    evaluation = finds_all(reported(topic.subject, component, "staff"), replied(topic, STAFF_EMAIL, text))
    return Instance({"topic": topic.subject, "component": component, "text": text}, evaluation)


def _announce_milestone(e: Entities, rng: random.Random) -> Instance:
    ticket, name = rng.choice([ticket for ticket in e.tickets if ticket.milestone]), rng.choice(e.names)
    evaluation = written(f"{ANNOUNCEMENTS} / {name} / {STAFF_EMAIL} / {ticket.milestone}")
    return Instance({"ticket": ticket.summary, "name": name}, evaluation)


ACROSS = (
    template(
        "mail+shop_admin",
        "cancel-order",
        _cancel,
        'Do in the dashboard what {customer} asks for in the message "{mail}", and archive the message.',
        'Cancel the order that {customer} has written about under "{mail}" in the dashboard, and put the message '
        "into the archives of the mail.",
    ),
    template(
        "mail+shop_admin",
        "answer-total",
        _total,
        '{customer} asks in the message "{mail}" for the total of an order. Look it up in the dashboard and reply '
        "with the total alone, written like $12.50.",
        'Reply to the mail "{mail}" of {customer} with the total of that order alone, like $12.50: the dashboard '
        "knows it.",
        held_out=True,
    ),
    template(
        "mail+tracker",
        "report-fault",
        _fault,
        'Open a ticket in the tracker whose summary is "{mail}" and whose component is "{component}", and archive '
        "the message of that subject in the mail.",
        'A customer has written "{mail}" to us: open a ticket of the component "{component}" with that summary, '
        "and archive the message.",
    ),
    template(
        "tracker+mail",
        "tell-milestone",
        _tell_milestone,
        'Send {address} a message with the subject "{name}" whose text is the milestone of the ticket "{ticket}", '
        "alone.",
        'Write to {address} by mail, under the subject "{name}", for which milestone the ticket "{ticket}" is '
        "planned: its name alone.",
        held_out=True,
    ),
    template(
        "forum+tracker",
        "ticket-of-topic",
        _ticket_of_topic,
        'Reply to the forum topic "{topic}" with "{text}", and open a ticket in the tracker with the topic\'s '
        'subject as its summary, of the component "{component}".',
        'Tell them in the forum topic "{topic}": "{text}". Then open a ticket for it: the summary is the topic\'s '
        'subject, the component "{component}".',
    ),
    template(
        "tracker+forum",
        "announce-milestone",
        _announce_milestone,
        'Start a topic in the forum\'s board "Announcements": the subject is "{name}", the message is the '
        'milestone of the ticket "{ticket}", alone.',
        'Announce in the forum (board "Announcements"), under the subject "{name}", for which milestone the ticket '
        '"{ticket}" is planned: its name alone.',
        held_out=True,
    ),
)
