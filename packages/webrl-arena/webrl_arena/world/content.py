"""What the arena's shop sells, to whom, and what was said and ordered: made from a seed, the same on every machine.

API: `catalogue(seed)`; `load_words("shop")` (or another file of `data/`) and `shelves()`, its vocabulary. Pure Python:
the site loads the content into its database (`shop/load.py`), tasks and experts draw their entities from it. Forum,
mail and tracker make theirs from it. Every random draw affects all that follow: adding, removing or reordering one
changes the content of every seed, and with it every task.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml

STAFF_EMAIL = "staff@example.com"
"""Who may use the dashboard."""
NUM_CUSTOMERS = 160
NUM_ORDERS = 360
VARIANTS = 5
"""Products of each kind."""
STATUSES = ("Pending", "Being processed", "Complete", "Cancelled")
_CENTS = (Decimal("0.00"), Decimal("0.50"), Decimal("0.95"))
_FIRST_DAY = datetime.date(2023, 1, 2)
_NUM_DAYS = 720
_UTC = datetime.UTC


class Kind(NamedTuple):
    """A kind of product, sold in several finishes and sizes."""

    noun: str
    low: int
    """Cheapest price, in whole units of the currency."""
    high: int
    sizes: tuple[str, ...]
    purpose: str


class Shelf(NamedTuple):
    """A leaf category."""

    path: tuple[str, str]
    prefix: str
    """Of its SKUs."""
    finishes: tuple[str, ...]
    aspects: tuple[str, ...]
    """What reviews talk about."""
    care: str
    kinds: tuple[Kind, ...]


@cache
def load_yaml(path: str) -> Any:
    """Read a YAML file of `webrl_arena`, once."""
    return yaml.safe_load(files("webrl_arena").joinpath(path).read_text(encoding="utf-8"))


@cache
def load_words(site: str) -> SimpleNamespace:
    """Read a file of `data/`: its lists, each a tuple under its name."""
    return SimpleNamespace(**{name: _frozen(value) for name, value in load_yaml(f"world/data/{site}.yaml").items()})


@cache
def shelves() -> tuple[Shelf, ...]:
    """Return the shop's leaf categories with what they hold."""
    made = []
    for shelf in load_words("shop").shelves:
        kinds = []
        for row in shelf["kinds"]:
            noun, prices, sizes, purpose = (part.strip() for part in row.split("|"))
            low, high = prices.split("-")
            kinds.append(Kind(noun, int(low), int(high), tuple(sizes.split("; ")), purpose))
        made.append(Shelf(**{**shelf, "kinds": tuple(kinds)}))
    return tuple(made)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True)
class Review:
    """A review that the shop shows under a product."""

    email: str
    """Of the customer who wrote it."""
    author: str
    """That customer's name, as the page shows it."""
    score: int
    """1 to 5."""
    title: str
    body: str
    date: datetime.datetime


@dataclass(frozen=True)
class Product:
    """A product of the shop; its page is `/catalogue/SLUG_PK/`."""

    pk: int
    """Its number in the database, from 1 in the order of the catalogue."""
    slug: str
    title: str
    """Unique."""
    kind: str
    """What it is, without finish and size: five products share it."""
    upc: str
    """Thirteen digits, unique."""
    sku: str
    """The shop's own number, such as CT-0001; unique."""
    category: tuple[str, ...]
    """From the top category down."""
    price: Decimal
    """Without tax, which the shop does not charge."""
    stock: int
    """0: the page says that it is unavailable."""
    description: str
    attributes: tuple[tuple[str, str], ...]
    """(name, value) as the product's page lists them: Finish, Size, Weight, Made in, Guarantee."""
    reviews: tuple[Review, ...]


@dataclass(frozen=True)
class Customer:
    """A registered customer with one address."""

    pk: int
    """Their number in the database, from 1 in the order of the catalogue."""
    first_name: str
    last_name: str
    email: str
    """Unique; what they log in with."""
    line1: str
    city: str
    state: str
    """Two letters."""
    postcode: str
    phone: str
    """In international form, of the range kept for fiction."""

    @property
    def name(self) -> str:
        """First and last name; unique."""
        return f"{self.first_name} {self.last_name}"


@dataclass(frozen=True)
class OrderLine:
    """A product and how many of it were ordered."""

    upc: str
    title: str
    quantity: int
    price: Decimal
    """Of one."""


@dataclass(frozen=True)
class Order:
    """An order, shipped to the customer's address."""

    pk: int
    """Its number in the database, from 1 in the order of the catalogue."""
    number: str
    """Six digits, unique."""
    email: str
    """Of the customer."""
    customer: str
    """Their name."""
    status: str
    """One of STATUSES."""
    date: datetime.datetime
    lines: tuple[OrderLine, ...]
    shipping: Decimal

    @property
    def total(self) -> Decimal:
        """Of the lines and the shipping."""
        return sum((line.price * line.quantity for line in self.lines), self.shipping)


@dataclass(frozen=True)
class Catalogue:
    """All of the shop's content."""

    seed: int
    categories: tuple[tuple[str, ...], ...]
    """Paths, parents before children."""
    products: tuple[Product, ...]
    customers: tuple[Customer, ...]
    orders: tuple[Order, ...]
    """By date."""


def for_evaluation(number: int) -> bool:
    """Whether the product, customer or kind of product at this place of the catalogue belongs to the evaluation."""
    return number % 4 == 0


@cache
def catalogue(seed: int = 0) -> Catalogue:
    """Make the shop's content for a seed."""
    rng = random.Random(f"arena {seed}")
    customers = tuple(itertools.islice(_customers(rng), NUM_CUSTOMERS))
    products = tuple(_products(rng, customers))
    orders = tuple(_orders(rng, customers, products))
    tops = dict.fromkeys(shelf.path[0] for shelf in shelves())
    categories = [path for top in tops for path in [(top,), *(s.path for s in shelves() if s.path[0] == top)]]
    return Catalogue(seed=seed, categories=tuple(categories), products=products, customers=customers, orders=orders)


def _customers(rng: random.Random) -> Iterator[Customer]:
    words = load_words("shop")
    names = list(itertools.product(words.first_names, words.last_names))
    rng.shuffle(names)
    for pk, (first, last) in enumerate(names, start=1):
        city, state, zone = rng.choice(words.places)
        yield Customer(
            pk=pk,
            first_name=first,
            last_name=last,
            email=f"{first}.{last}@example.com".lower(),
            line1=f"{rng.randint(1, 240)} {rng.choice(words.streets)}",
            city=city,
            state=state,
            postcode=f"{zone}{rng.randint(1, 99):02d}",
            phone=f"+1202555{rng.randint(100, 199):04d}",
        )


def _products(rng: random.Random, customers: tuple[Customer, ...]) -> Iterator[Product]:
    words, number = load_words("shop"), 0
    for shelf in shelves():
        looks = (
            (kind, finish, size)
            for kind in shelf.kinds
            for finish, size in rng.sample(list(itertools.product(shelf.finishes, kind.sizes)), VARIANTS)
        )
        for on_shelf, (kind, finish, size) in enumerate(looks, start=1):
            number += 1
            weight = f"{rng.randint(1, 60) * 50} g"
            origin, years = rng.choice(words.origins), rng.choice((1, 2, 3, 5, 10))
            guarantee = f"{years} year{'s' * (years > 1)}"
            description = (
                f"{kind.purpose} Finish: {finish.lower()}; size: {size}. Made in {origin}, weighs {weight}, "
                f"and comes with {rng.choice(words.extras)}. {shelf.care} Guaranteed for {guarantee}."
            )
            title = f"{finish} {kind.noun}, {size}"
            yield Product(
                pk=number,
                slug=re.sub(r"[^a-z0-9]+", "-", title.lower().replace("'", "").replace(".", "")).strip("-"),
                title=title,
                kind=kind.noun,
                upc=_ean(2_000_000_00000 + number * 7919 % 10_000_000),
                sku=f"{shelf.prefix}-{on_shelf:04d}",
                category=shelf.path,
                price=Decimal(rng.randint(kind.low, kind.high)) + rng.choice(_CENTS),
                stock=rng.choice(
                    (0, *(rng.randint(1, 9) for _ in range(2)), *(rng.randint(10, 250) for _ in range(7)))
                ),
                description=description,
                attributes=(
                    ("Finish", finish),
                    ("Size", size),
                    ("Weight", weight),
                    ("Made in", origin),
                    ("Guarantee", guarantee),
                ),
                reviews=tuple(_reviews(rng, shelf, customers)),
            )


def _ean(first_twelve: int) -> str:
    """Make the EAN-13 of twelve digits: 2 in front is the range for a shop's own use."""
    digits = f"{first_twelve:012d}"
    check = -sum(int(d) * (3 if i % 2 else 1) for i, d in enumerate(digits)) % 10
    return f"{digits}{check}"


def _reviews(rng: random.Random, shelf: Shelf, customers: tuple[Customer, ...]) -> Iterator[Review]:
    words = load_words("shop")
    mood = rng.choice((1.8, 3.0, 3.8, 4.3, 4.6))  # products differ in how well they are liked
    for customer in rng.sample(customers, rng.choice((0, 2, 3, 3, 4, 5, 6))):
        score = min(5, max(1, round(rng.gauss(mood, 0.9))))
        pool = words.praise if score > 3 else words.shrugs if score == 3 else words.complaints
        first, second = rng.sample(shelf.aspects, 2)
        said, also = rng.sample(pool, 2)
        sentences = [
            rng.choice(words.reasons),
            f"The {first} {_agree(first, said)}, and the {second} {_agree(second, also)}.",
            rng.choice(words.endings[score]),
        ]
        yield Review(
            email=customer.email,
            author=customer.name,
            score=score,
            title=rng.choice(words.headlines[score]),
            body=" ".join(sentences),
            date=_moment(rng),
        )


def _agree(noun: str, said: str) -> str:
    """Make the predicate agree with a noun, which may be a plural such as `seams`."""
    if not noun.endswith("s") or noun.endswith("ss"):
        return said
    verb, _, rest = said.partition(" ")
    plural = {"is": "are", "was": "were", "has": "have", "does": "do", "feels": "feel"}
    return f"{plural.get(verb, verb)} {rest}"


def _moment(rng: random.Random) -> datetime.datetime:
    day = _FIRST_DAY + datetime.timedelta(days=rng.randrange(_NUM_DAYS))
    return datetime.datetime.combine(day, datetime.time(rng.randint(7, 22), rng.randint(0, 59)), _UTC)


def _orders(rng: random.Random, customers: tuple[Customer, ...], products: tuple[Product, ...]) -> Iterator[Order]:
    drafts = []
    for _ in range(NUM_ORDERS):
        # The square makes regulars of some: they have many orders, most customers one or two.
        customer = customers[int(rng.random() ** 2 * len(customers))]
        lines = tuple(
            OrderLine(upc=p.upc, title=p.title, quantity=rng.choice((1, 1, 1, 2, 3, 4)), price=p.price)
            for p in rng.sample(products, rng.choice((1, 1, 2, 2, 3, 4)))
        )
        goods = sum((line.price * line.quantity for line in lines), Decimal(0))
        draft = Order(
            pk=0,
            number="",
            email=customer.email,
            customer=customer.name,
            status=rng.choices(STATUSES, (3, 2, 6, 1))[0],
            date=_moment(rng),
            lines=lines,
            shipping=Decimal("0.00") if goods >= 50 else Decimal("4.90"),
        )
        drafts.append(draft)
    number = 100_000
    for pk, draft in enumerate(sorted(drafts, key=lambda order: (order.date, order.email)), start=1):
        number += rng.randint(3, 40)
        yield dataclasses.replace(draft, pk=pk, number=str(number))
