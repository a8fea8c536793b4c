"""What templates choose, by the names that `templates.yaml` has for it.

API: `drawn(name, entities, rng, chosen)`. Each draws from entities of one split; most look at what was chosen before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from webrl_arena.world.content import Customer, Order, Product, Review, catalogue, load_words
from webrl_arena.world.forum import ANNOUNCEMENTS, SWAP, Topic, forum
from webrl_arena.world.mail import Conversation
from webrl_arena.world.tracker import PRIORITIES, RESOLUTIONS, ShelfPage, Ticket, tracker


@dataclass(frozen=True)
class Entities:
    """What the tasks of a split are about; no entity is in two splits."""

    products: tuple[Product, ...]
    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    """Those of its customers, of less than 1,000 dollars (more are printed with a comma)."""
    shelves: tuple[tuple[str, ...], ...]
    """Paths of leaf categories."""
    kinds: tuple[str, ...]
    """Of products: words to search for."""
    surnames: tuple[str, ...]
    """No customer has one of these."""
    topics: tuple[Topic, ...]
    """Of the forum; who writes in them, and what they are about, is of the same split."""
    spared: frozenset[str]
    """UPCs of the other split's products, where these are not even to be an answer."""
    names: tuple[str, ...]
    """For what is made or renamed: nothing in the shop is called so."""
    tickets: tuple[Ticket, ...]
    """Of its products and customers."""
    shelf_pages: tuple[ShelfPage, ...]
    """The wiki's pages about its shelves."""
    plans: tuple[tuple[str, str], ...]
    """Component and milestone of the tracker."""
    problems: tuple[str, ...]
    """For summaries of new tickets: none has one of these."""
    mails: tuple[Conversation, ...]
    """Of the mail; who writes in them, and the orders that they are about, are of the same split."""


Chosen = SimpleNamespace
"""What was drawn for a task so far, by name."""
_NEXT_STATUSES = {"Pending": ("Being processed", "Cancelled"), "Being processed": ("Complete", "Cancelled")}
"""What the dashboard can make of an order."""
_AISLES = tuple(f"{number}{letter}" for number in range(25, 60) for letter in "GHJK")
"""No shelf is in one of these."""
_QUANTITIES = range(2, 7)


def drawn(name: str, e: Entities, rng: random.Random, chosen: Chosen) -> Any:
    """Draw something by its name; None where what was chosen does not go together."""
    if name in _VALUES:
        return _VALUES[name](e, rng, chosen)
    if name in _POOLS:
        return rng.choice(_POOLS[name](e, chosen))
    return rng.choice(getattr(load_words("tasks"), name.removeprefix("words.")) if "." in name else getattr(e, name))


def _questions(asks: str) -> Callable[[Entities, Chosen], Sequence[Topic]]:
    return lambda e, _: [topic for topic in e.topics if topic.asks == asks]


def _mails(
    holds: Callable[[Conversation], bool], folder: str = "inbox", kinds: Sequence[str] = ("meeting", "voucher")
) -> Callable[[Entities, Chosen], Sequence[Conversation]]:
    """Choose conversations whose first message is in a folder; of these kinds it is a customer's."""
    return lambda e, _: [c for c in e.mails if c.letters[0].folder == folder and c.kind in kinds and holds(c)]


_POOLS: dict[str, Callable[[Entities, Chosen], Sequence[Any]]] = {
    "products in stock": lambda e, _: [p for p in e.products if p.stock >= max(_QUANTITIES)],
    "products sold out": lambda e, _: [p for p in e.products if not p.stock],
    "quantities": lambda *_: _QUANTITIES,
    "open orders": lambda e, _: [order for order in e.orders if order.status in _NEXT_STATUSES],
    "next statuses": lambda _, c: _NEXT_STATUSES[c.order.status],
    # begun by customers, with all posts shown
    "talks": lambda e, _: [topic for topic in e.topics if topic.posts[0].email and topic.shown == topic.posts],
    "replies": lambda _, c: c.topic.posts[1:],
    "boards": lambda *_: [board for board in forum().boards if board.name not in (ANNOUNCEMENTS, SWAP)],
    "other boards": lambda _, c: [board for board in forum().boards if board != c.topic.board],
    "subscribers": lambda _, c: c.topic.subscribers,
    "options": lambda _, c: c.topic.poll.options,
    "waiting topics": lambda e, _: [topic for topic in e.topics if not topic.posts[-1].approved],
    "topics of finishes": lambda e, _: [topic for topic in e.topics if topic.posts[-1].finish],
    "topics of products": lambda e, _: [topic for topic in e.topics if topic.product],
    "polls": lambda e, _: [topic for topic in e.topics if topic.poll],
    "questions on price": _questions("price"),
    "questions on weight": _questions("weight"),
    "questions on stock": _questions("stock"),
    "answerers": lambda e, c: [
        customer.email for customer in e.customers if customer.email not in {post.email for post in c.topic.posts}
    ],
    "open tickets": lambda e, _: [ticket for ticket in e.tickets if ticket.is_open],
    "planned tickets": lambda e, _: [ticket for ticket in e.tickets if ticket.milestone],
    "customers' tickets": lambda e, _: [ticket for ticket in e.tickets if "." in ticket.reporter],
    "price requests": lambda e, _: [ticket for ticket in e.tickets if ticket.summary.endswith(": new price")],
    "stocktakes": lambda e, _: [ticket for ticket in e.tickets if ticket.summary.endswith(": stocktake")],
    "tickets of open orders": lambda e, _: [
        ticket
        for ticket in e.tickets
        if ticket.is_open and ticket.order in {order.number for order in e.orders if order.status in _NEXT_STATUSES}
    ],
    "priorities": lambda *_: PRIORITIES,
    "other priorities": lambda _, c: [priority for priority in PRIORITIES if priority != c.ticket.priority],
    "resolutions": lambda *_: RESOLUTIONS,
    "components": lambda *_: [*tracker().owners],
    "other milestones": lambda _, c: [
        each for each in tracker().milestones if not each.is_completed and each.name != c.ticket.milestone
    ],
    "team": lambda *_: tracker().team,
    "other people": lambda _, c: [person for person in tracker().team if person.login != c.ticket.owner],
    "aisles": lambda *_: _AISLES,
    "meetings": _mails(lambda c: c.kind == "meeting"),
    "answered meetings": _mails(lambda c: c.kind == "meeting" and len(c.letters) > 1),
    "vouchers": _mails(lambda c: c.kind == "voucher"),
    "messages": _mails(lambda c: len(c.letters) == 1),
    "read messages": _mails(lambda c: len(c.letters) == 1 and c.letters[0].is_read),
    "conversations": _mails(lambda c: len(c.letters) > 1),
    "trash": _mails(lambda _: True, "trash"),
    "requests to cancel": _mails(lambda _: True, kinds=("cancel",)),
    "requests for total": _mails(lambda _: True, kinds=("total",)),
    "reports of faults": _mails(lambda _: True, kinds=("fault",)),
}
"""Of which one is chosen."""


def _extreme(pick: Callable[..., Product], e: Entities, c: Chosen) -> Product | None:
    on_shelf = [p for p in catalogue().products if p.category == c.shelf]  # its page shows those of all splits
    best = pick(on_shelf, key=lambda p: p.price)
    return None if best.upc in e.spared or sum(p.price == best.price for p in on_shelf) > 1 else best


def _one(rng: random.Random, reviews: Sequence[Review]) -> Review | None:
    return rng.choice(reviews) if reviews else None


def _single_reviews(product: Product) -> list[Review]:
    """Return those whose title no other review of the product has."""
    titles = Counter(review.title for review in product.reviews)
    return [review for review in product.reviews if titles[review.title] == 1]


def _customer(e: Entities, rng: random.Random, is_wanted: Callable[[str], bool] = lambda _: True) -> str | None:
    email = rng.choice(e.customers).email
    return email if is_wanted(email) else None


_VALUES: dict[str, Callable[[Entities, random.Random, Chosen], Any]] = {
    "customer": lambda e, rng, _: _customer(e, rng),
    "two people": lambda e, rng, _: [customer.email for customer in rng.sample(e.customers, 2)],
    "three people": lambda e, rng, _: [customer.email for customer in rng.sample(e.customers, 3)],
    "two products": lambda e, rng, _: rng.sample([p for p in e.products if p.stock], 2),
    "reviewed product": lambda e, rng, _: product if (product := rng.choice(e.products)).reviews else None,
    "cheapest": lambda e, _, c: _extreme(min, e, c),
    "dearest": lambda e, _, c: _extreme(max, e, c),
    "single review": lambda _, rng, c: _one(rng, _single_reviews(c.product)),
    "review by others": lambda _, rng, c: _one(rng, [r for r in _single_reviews(c.product) if r.email != c.login]),
    "review by customers": lambda e, rng, c: _one(
        rng, [review for review in c.product.reviews if any(review.email == person.email for person in e.customers)]
    ),
    "new reviewer": lambda e, rng, c: _customer(e, rng, lambda m: all(r.email != m for r in c.product.reviews)),
    "scores": lambda _, rng, __: rng.randint(1, 5),
    "first word": lambda e, rng, _: rng.choice(e.names).split()[0],
    "house numbers": lambda _, rng, __: rng.randint(1, 200),
    "new price": lambda _, rng, c: c.product.price + rng.randint(2, 40) + Decimal("0.25"),
    "new stock": lambda _, rng, c: c.product.stock + rng.randint(5, 90),
    "thresholds": lambda _, rng, __: rng.randint(2, 60),
    "weight": lambda _, __, c: dict(c.topic.product.attributes)["Weight"],
    "its attributes": lambda _, __, c: dict(c.product.attributes),
    "its reviews": lambda _, __, c: c.product.reviews,
    "its letters": lambda _, __, c: c.mail.letters,
    "last post": lambda _, __, c: c.topic.posts[-1],
    "all replies": lambda _, __, c: c.topic.posts[1:],
    "posts of the author": lambda _, __, c: [
        post for topic in forum().topics for post in topic.shown if post.email == c.topic.posts[0].email
    ],
    "new subscriber": lambda e, rng, c: _customer(e, rng, lambda m: m not in c.topic.subscribers),
    "new voter": lambda e, rng, c: _customer(e, rng, lambda m: m not in dict(c.topic.poll.votes)),
    "planned": lambda _, __, c: [t for t in tracker().tickets if (t.component, t.milestone) == c.plan],
    "name of the owner": lambda _, __, c: tracker().names[c.ticket.owner],
    "name of the reporter": lambda _, __, c: tracker().names[c.ticket.reporter],
    "product in question": lambda _, __, c: c.ticket.summary.partition(": ")[0],
    "order in question": lambda e, _, c: next(order for order in e.orders if order.number == c.ticket.order),
    "sender": lambda _, __, c: next(
        customer.name for customer in catalogue().customers if customer.email == c.mail.letters[0].sender
    ),
}
"""Each by itself."""
