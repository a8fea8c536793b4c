"""The arena's own tasks: templates filled with entities of a split, the same ones on every machine.

A quarter of the products and customers (with their orders), and a third of the categories, belong to the evaluation;
training neither names them nor has them as an answer. The held-out templates are in no training task either.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

from webrl.arena.content import Product, catalogue, for_evaluation
from webrl.arena.forum.content import forum
from webrl.arena.mail.content import mail
from webrl.arena.tracker.content import Ticket, tracker
from webrl.suites.arena.across import ACROSS
from webrl.suites.arena.dashboard import DASHBOARD
from webrl.suites.arena.expert import ArenaExpert
from webrl.suites.arena.forum import FORUM
from webrl.suites.arena.mail import MAIL
from webrl.suites.arena.storefront import STOREFRONT
from webrl.suites.arena.templates import Entities, Instance, Template
from webrl.suites.arena.tracker import TRACKER

Split = Literal["train", "eval"]
TEMPLATES: tuple[Template, ...] = (*STOREFRONT, *DASHBOARD, *FORUM, *TRACKER, *MAIL, *ACROSS)
ARENA_EXPERTS = {template.key: ArenaExpert(template) for template in TEMPLATES}
"""By task type."""
_TRIES = 40
"""Draws a task that is asked for, before there are said to be no more."""
_TOO_MUCH = 1000
_FIRST = [
    "Amber",
    "Birch",
    "Cobalt",
    "Dune",
    "Ember",
    "Fjord",
    "Glacier",
    "Harbour",
    "Indigo",
    "Juniper",
    "Kelp",
    "Lupin",
]
_SECOND = ["Workshop", "Selection", "Corner", "Favourites", "Classics", "Supplies", "Works", "Finds", "Series", "Line"]
_THINGS = [
    "Label printer",
    "Packing table",
    "Door bell",
    "Parcel scales",
    "Handheld scanner",
    "Tape dispenser",
    "Loading ramp",
    "Shelf ladder",
    "Photo lamp",
    "Return bin",
    "Stock sheet",
    "Gift wrap",
]
_FAULTS = ["is broken", "is missing", "makes noise", "needs a second one", "is hard to find", "stands in the way"]
_SURNAMES = [
    "Arkwright",
    "Bellamy",
    "Castellano",
    "Dragomir",
    "Eastwick",
    "Falkner",
    "Grimaldi",
    "Hollister",
    "Ivarsson",
    "Jankowski",
    "Kimura",
    "Lindqvist",
    "Moreau",
    "Novotny",
    "Oduya",
    "Petrakis",
    "Quennell",
    "Rasmussen",
    "Sarkisian",
    "Thornbury",
    "Ulrich",
    "Vasquez",
    "Westergaard",
    "Yardley",
]


@cache
def entities(split: Split) -> Entities:
    """What the tasks of a split may be about."""
    content, mine = catalogue(), split == "eval"
    sides: dict[bool, list[Product]] = {False: [], True: []}
    for i, product in enumerate(content.products):
        sides[for_evaluation(i)].append(product)
    customers = tuple(c for i, c in enumerate(content.customers) if for_evaluation(i) == mine)
    emails = {customer.email for customer in customers}
    shelves = [path for path in content.categories if len(path) > 1]
    names = [f"{first} {second}" for first, second in itertools.product(_FIRST, _SECOND)]
    upcs = {product.upc for product in sides[mine]}
    plans = itertools.product(tracker().owners, (milestone.name for milestone in tracker().milestones))
    problems = itertools.product(_THINGS, _FAULTS)
    kinds = list(dict.fromkeys(product.kind for product in content.products))
    return Entities(
        products=tuple(sides[mine]),
        spared=frozenset() if mine else frozenset(product.upc for product in sides[True]),
        customers=customers,
        orders=tuple(order for order in content.orders if order.email in emails and order.total < _TOO_MUCH),
        shelves=tuple(path for i, path in enumerate(shelves) if (i % 3 == 0) == mine),
        kinds=tuple(kind for i, kind in enumerate(kinds) if for_evaluation(i) == mine),
        topics=tuple(topic for topic in forum().topics if topic.evaluation == mine),
        surnames=tuple(name for i, name in enumerate(_SURNAMES) if for_evaluation(i) == mine),
        names=tuple(name for i, name in enumerate(names) if for_evaluation(i) == mine),
        tickets=tuple(ticket for ticket in tracker().tickets if _is_of(ticket, upcs, emails)),
        shelf_pages=tuple(page for i, page in enumerate(tracker().shelves) if (i % 3 == 0) == mine),
        plans=tuple(plan for i, plan in enumerate(plans) if for_evaluation(i) == mine),
        problems=tuple(" ".join(p) for i, p in enumerate(problems) if for_evaluation(i) == mine),
        mails=tuple(each for each in mail().conversations if each.evaluation == mine),
    )


def _is_of(ticket: Ticket, upcs: set[str], emails: set[str]) -> bool:
    """By its product, or by the customer who reported it."""
    return ticket.upc in upcs if ticket.upc else f"{ticket.reporter}@example.com" in emails


def draw(template: Template, split: Split, count: int, seed: int | str = 0) -> list[dict[str, Any]]:
    """At most `count` different tasks of a template, as objects of a task file."""
    rng = random.Random(f"{template.key} {split} {seed}")
    found: dict[str, dict[str, Any]] = {}
    for instance in _instances(template, split, rng, _TRIES * count):
        if len(found) == count:
            break
        wording = rng.choice(template.wordings)
        key = str(sorted(instance.slots.items()))
        found.setdefault(key, _entry(template, instance, wording, f"{split}-{seed}-{len(found)}"))
    return list(found.values())


def _instances(template: Template, split: Split, rng: random.Random, tries: int) -> Iterator[Instance]:
    for _ in range(tries):
        instance = template.draw(entities(split), rng)
        if instance is not None:
            yield instance


def _entry(template: Template, instance: Instance, wording: str, number: str) -> dict[str, Any]:
    sites = template.site.split("+")
    return {
        "task_id": f"{template.site}.{template.name}-{number}",
        "sites": sites,
        "require_login": True,
        "login": instance.login,
        "start_url": f"__{sites[0].upper()}__/",
        "intent_template_id": template.name,
        "intent_template": wording,
        "instantiation_dict": instance.slots,
        "intent": wording.format(**instance.slots),
        "eval": instance.eval,
    }
