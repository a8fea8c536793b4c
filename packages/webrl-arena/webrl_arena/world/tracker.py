"""What the tracker of the arena's shop holds: tickets about its orders, products and pages, and a wiki.

Pure Python, made from the shop's catalogue, the same on every machine (`shop/tracker/load.py` writes it into Trac's
database; tasks and experts draw their entities from it).
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, cached_property

from webrl_arena.world.content import Catalogue, catalogue, load_words

STAFF = "staff"
"""Log-in of the shop's staff."""
PRIORITIES = ("blocker", "critical", "major", "minor", "trivial")
RESOLUTIONS = ("fixed", "invalid", "wontfix", "duplicate", "worksforme")
NUM_ON_ORDERS, NUM_ON_PRODUCTS, NUM_ON_SITE = 110, 90, 90
NUM_PRICES, NUM_STOCKS = 50, 40
_UTC = datetime.UTC
_FIRST_DAY = datetime.datetime(2023, 1, 9, 8, tzinfo=_UTC)
_NUM_DAYS = 700


@dataclass(frozen=True)
class Person:
    """A user who can log in."""

    login: str
    name: str
    """As pages show it."""
    email: str


@dataclass(frozen=True)
class Milestone:
    """A date that tickets are planned for."""

    name: str
    due: datetime.datetime
    is_completed: bool
    description: str


@dataclass(frozen=True)
class Comment:
    """A comment on a ticket."""

    author: str
    """Log-in."""
    date: datetime.datetime
    body: str


@dataclass(frozen=True)
class Ticket:
    """A ticket; its page is `/tracker/ticket/NUMBER`."""

    number: int
    """From 1, by date."""
    summary: str
    """Unique."""
    description: str
    type: str
    component: str
    priority: str
    milestone: str
    """"" for none."""
    status: str
    """new, assigned, accepted or closed."""
    resolution: str
    """"" unless it is closed."""
    owner: str
    """Log-in."""
    reporter: str
    """Log-in."""
    keywords: str
    date: datetime.datetime
    comments: tuple[Comment, ...]
    """By date; of a closed one, the last says why."""
    upc: str = ""
    """Of the product that it is about."""
    order: str = ""
    """Number of the order that it is about."""
    value: str = ""
    """The price or the number in stock that its text asks for."""

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self.status != "closed"


@dataclass(frozen=True)
class ShelfPage:
    """The wiki's page about a leaf category of the shop."""

    name: str
    """Of the page: `Shelf/Strings`."""
    category: tuple[str, ...]
    buyer: str
    """Name of a person."""
    aisle: str
    supplier: str
    day: str
    """When it is counted."""

    @property
    def text(self) -> str:
        """In the wiki's markup."""
        return (
            f"= {self.category[-1]} =\nBelow ''{self.category[0]}'' in the shop.\n\n"
            f"||= Buyer =|| {self.buyer} ||\n||= Aisle =|| {self.aisle} ||\n||= Supplier =|| {self.supplier} ||\n"
            f"||= Counted on =|| {self.day} ||\n"
        )


@dataclass(frozen=True)
class Tracker:
    """All of the tracker's content."""

    team: tuple[Person, ...]
    """Who works on tickets, in addition to the staff's log-in."""
    customers: tuple[Person, ...]
    owners: dict[str, str]
    """Component: log-in of who gets its tickets."""
    milestones: tuple[Milestone, ...]
    """By date; the first are completed."""
    tickets: tuple[Ticket, ...]
    """By number."""
    shelves: tuple[ShelfPage, ...]

    @cached_property
    def names(self) -> dict[str, str]:
        """What pages show of a log-in."""
        return {STAFF: "Shop Staff"} | {person.login: person.name for person in (*self.team, *self.customers)}


def login_of(email: str) -> str:
    """Return what a customer or the staff are called in the tracker."""
    return email.partition("@")[0]


@cache
def tracker(seed: int = 0) -> Tracker:
    """Make the tracker's content for a seed."""
    rng, content, words = random.Random(f"arena tracker {seed}"), catalogue(seed), load_words("tracker")
    team = tuple(Person(n.split()[0].lower(), n, f"{n.split()[0].lower()}@example.com") for n in words.team)
    milestones = tuple(
        Milestone(name, datetime.datetime(year, month, day, 17, tzinfo=_UTC), i < words.num_completed, description)
        for i, (name, (year, month, day), description) in enumerate(words.milestones)
    )
    owners = {component: rng.choice(team).login for component in words.components}
    drafts = sorted(_drafts(rng, content), key=lambda ticket: (ticket.date, ticket.summary))
    tickets = tuple(_worked_on(rng, n, draft, team, owners) for n, draft in enumerate(drafts, start=1))
    shelves = tuple(
        ShelfPage(
            name=f"Shelf/{''.join(word for word in path[-1].title() if word.isalnum())}",
            category=path,
            buyer=rng.choice(team).name,
            aisle=f"{rng.randint(1, 24)}{rng.choice('ABCDEF')}",
            supplier=rng.choice(words.suppliers),
            day=rng.choice(words.days),
        )
        for path in content.categories
        if len(path) > 1
    )
    customers = tuple(Person(login_of(c.email), c.name, c.email) for c in content.customers)
    return Tracker(team, customers, owners, milestones, tickets, shelves)


def _drafts(rng: random.Random, content: Catalogue) -> Iterator[Ticket]:
    """Draw tickets about orders, products and the site, as they are reported."""
    words = load_words("tracker")
    for order in rng.sample(content.orders, NUM_ON_ORDERS):
        row = rng.choice(words.on_orders)
        slots = {"number": order.number, "product": rng.choice(order.lines).title}
        later = order.date + datetime.timedelta(days=rng.randint(2, 9), minutes=rng.randint(0, 600))
        yield _draft(rng, row, slots, login_of(order.email), later, order=order.number)
    for i, product in enumerate(rng.sample(content.products, NUM_ON_PRODUCTS + NUM_PRICES + NUM_STOCKS)):
        row, value = rng.choice(words.on_products), ""
        if i < NUM_PRICES:
            row, value = words.price, str(product.price + rng.randint(2, 30) + Decimal("0.25"))
        elif i < NUM_PRICES + NUM_STOCKS:
            row, value = words.stock, str(product.stock + rng.randint(5, 90))
        slots = {"product": product.title, "price": value, "count": value}
        yield _draft(rng, row, slots, STAFF, _moment(rng), upc=product.upc, value=value)
    for (what, component), place in rng.sample(list(itertools.product(words.on_site, words.places)), NUM_ON_SITE):
        reporter = login_of(rng.choice(content.customers).email)
        row = (f"{what} {place}", component, "defect", rng.choice(words.site_texts))
        yield _draft(rng, row, {}, reporter, _moment(rng))


def _moment(rng: random.Random) -> datetime.datetime:
    return _FIRST_DAY + datetime.timedelta(days=rng.randrange(_NUM_DAYS), minutes=rng.randint(0, 600))


def _draft(
    rng: random.Random,
    row: tuple[str, str, str, str],
    slots: dict[str, str],
    reporter: str,
    date: datetime.datetime,
    **about: str,
) -> Ticket:
    """Make a ticket without any work done on it from a row (summary, component, type, text) of `data/tracker.yaml`."""
    summary, component, kind, text = row
    return Ticket(
        number=0,
        summary=summary.format(**slots),
        description=text.format(**slots),
        type=kind,
        component=component,
        priority=rng.choices(PRIORITIES, (1, 2, 6, 4, 2))[0],
        milestone="",
        status="new",
        resolution="",
        owner="",
        reporter=reporter,
        keywords=" ".join(sorted(rng.sample(load_words("tracker").keywords, rng.randint(0, 2)))),
        date=date,
        comments=(),
        **about,
    )


def _worked_on(
    rng: random.Random, number: int, draft: Ticket, team: tuple[Person, ...], owners: dict[str, str]
) -> Ticket:
    """Draw who takes the ticket, what is said about it, and whether it is closed."""
    # What asks for something in the dashboard is still to be done.
    status = "new" if draft.value else rng.choices(("new", "assigned", "accepted", "closed"), (3, 2, 3, 5))[0]
    resolution = rng.choices(RESOLUTIONS, (6, 2, 1, 1, 2))[0] if status == "closed" else ""
    owner = owners[draft.component] if status == "new" else rng.choice(team).login
    said = rng.sample(load_words("tracker").comments, rng.choice((0, 0, 1, 2, 3)))
    authors = [rng.choice((owner, rng.choice(team).login)) for _ in said]
    if resolution:
        said, authors = [*said, load_words("tracker").closing[resolution]], [*authors, owner]
    date, comments = draft.date, []
    for author, body in zip(authors, said, strict=True):
        date += datetime.timedelta(hours=rng.randint(2, 70), minutes=rng.randint(0, 59))
        comments.append(Comment(author, date, body))
    return dataclasses.replace(
        draft,
        number=number,
        status=status,
        resolution=resolution,
        owner=owner,
        milestone=rng.choice(["", *(name for name, *_ in load_words("tracker").milestones)]),
        comments=tuple(comments),
    )
