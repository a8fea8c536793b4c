"""The contents of the arena's mailboxes: what customers ask the staff, get from them, and write to each other.

Pure Python, made from the shop's catalogue, the same on every machine (`shop/load.py` writes it into the database;
tasks and experts draw their entities from it). A conversation is of one side, the evaluation's or training's, and so
are the customers who write in it and the order that it is about.
"""

from __future__ import annotations

import datetime
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from webrl_arena.world.content import STAFF_EMAIL, Catalogue, Order, catalogue, for_evaluation, load_words

NUM_REQUESTS, NUM_ANSWERED, NUM_VOUCHERS, NUM_MEETINGS = 48, 24, 60, 140
FIRST_PK = 1001
"""Numbers of four digits, so that no message's address is the beginning of another's."""
_FIRST_DAY = datetime.datetime(2023, 1, 2, 7, tzinfo=datetime.UTC)
_NUM_DAYS = 700
_OPEN = ("Pending", "Being processed")
"""Statuses of orders that can be cancelled."""
_TOO_MUCH = 1000
"""Dollars: totals from here on are printed with a comma."""


@dataclass(frozen=True)
class Letter:
    """A message."""

    pk: int
    sender: str
    """E-mail address, as the recipient's; `STAFF_EMAIL` of the staff."""
    recipient: str
    text: str
    date: datetime.datetime
    is_read: bool
    folder: str
    """Where it is in its recipient's mailbox: inbox, archives or trash."""


@dataclass(frozen=True)
class Conversation:
    """A message with the replies to it; theirs have "Re: " before the subject."""

    kind: str
    """A key of `requests` in `data/mail.yaml`, answered, voucher or meeting."""
    subject: str
    """Unique; of four words at most, since folders cut after five."""
    evaluation: bool
    """Whether the evaluation asks about it; training then does not."""
    letters: tuple[Letter, ...]
    """By date."""
    order: Order | None = None
    """That it is about."""
    value: str = ""
    """What its first message tells: a time or a code."""

    @property
    def path(self) -> str:
        """Below the server's root: of the message, or of all of them together."""
        return f"/mail/view/{'t/' * (len(self.letters) > 1)}{self.letters[0].pk}/"


@dataclass(frozen=True)
class Mail:
    """All mailboxes."""

    conversations: tuple[Conversation, ...]
    """By the numbers of their messages."""

    @property
    def letters(self) -> Iterator[Letter]:
        """All of them."""
        return itertools.chain.from_iterable(each.letters for each in self.conversations)

    @property
    def last_pk(self) -> int:
        """Of the newest message; those that a session adds have greater numbers."""
        return self.conversations[-1].letters[-1].pk


@cache
def mail(seed: int = 0) -> Mail:
    """Make the mailboxes' content for a seed."""
    return Mail(tuple(_Writer(random.Random(f"arena mail {seed}"), catalogue(seed)).conversations()))


class _Writer:
    """Draws messages, and numbers them; uses each order once."""

    def __init__(self, rng: random.Random, content: Catalogue) -> None:
        self._rng, self._pks = rng, itertools.count(FIRST_PK)
        sides = {customer.email: for_evaluation(i) for i, customer in enumerate(content.customers)}
        orders = [order for order in rng.sample(content.orders, len(content.orders)) if order.total < _TOO_MUCH]
        self._orders = {side: [order for order in orders if sides[order.email] == side] for side in (True, False)}
        self._people = {side: [email for email, of in sides.items() if of == side] for side in (True, False)}

    def conversations(self) -> Iterator[Conversation]:
        """Draw all conversations, kind after kind; of each, every fourth is of the evaluation."""
        words = load_words("mail")
        kinds = list(words.requests)
        for number in range(NUM_REQUESTS):
            side = for_evaluation(number)
            kind = kinds[(number // 4 if side else number - number // 4) % len(kinds)]
            order = self._order(side, open_only=kind == "cancel")
            subject, *texts = words.requests[kind]
            people = [order.email, STAFF_EMAIL]
            yield self._about(kind, order, side, subject, people, [self._rng.choice(texts)], "inbox")
        for number in range(NUM_ANSWERED):
            side = for_evaluation(number)
            order, (subject, *texts) = self._order(side), self._rng.choice(words.answered)
            yield self._about("answered", order, side, subject, [order.email, STAFF_EMAIL], texts, "archives")
        for number in range(NUM_VOUCHERS):
            side = for_evaluation(number)
            order, (subject, *texts) = self._order(side), words.voucher
            code = f"{self._rng.choice(words.codes)}-{self._rng.randint(1000, 9999)}"
            said = [self._rng.choice(texts).format(code=code)]
            yield self._about("voucher", order, side, subject, [STAFF_EMAIL, order.email], said, self._folder(), code)
        places = itertools.product(words.activities, (city for city, *_ in load_words("shop").places))
        pools = (words.invitations, words.replies, words.more, words.last)
        for number, (activity, city) in enumerate(self._rng.sample(list(places), NUM_MEETINGS)):
            side = for_evaluation(number)
            time = f"{self._rng.randint(10, 19)}:{self._rng.choice((15, 30, 45))}"
            slots = {"time": time, "day": self._rng.choice(words.days), "spot": self._rng.choice(words.spots)}
            texts = [self._rng.choice(pool).format(**slots) for pool in pools[: self._rng.choice((1, 1, 1, 2, 3, 4))]]
            date = _FIRST_DAY + datetime.timedelta(minutes=self._rng.randrange(_NUM_DAYS * 24 * 60))
            folder = self._folder() if len(texts) == 1 else "inbox"
            letters = self._letters(self._rng.sample(self._people[side], 2), texts, date, folder)
            yield Conversation("meeting", f"{activity}, {city}", side, letters, value=time)

    def _order(self, side: bool, *, open_only: bool = False) -> Order:
        orders = self._orders[side]
        return orders.pop(next(i for i, order in enumerate(orders) if not open_only or order.status in _OPEN))

    def _folder(self) -> str:
        return self._rng.choices(("inbox", "archives", "trash"), (4, 1, 1))[0]

    def _about(
        self,
        kind: str,
        order: Order,
        side: bool,
        subject: str,
        people: list[str],
        texts: list[str],
        folder: str,
        value: str = "",
    ) -> Conversation:
        after = order.date + datetime.timedelta(hours=self._rng.randint(5, 90))
        letters = self._letters(people, texts, after, folder)
        return Conversation(kind, subject.format(number=order.number), side, letters, order, value)

    def _letters(self, people: list[str], texts: list[str], date: datetime.datetime, folder: str) -> tuple[Letter, ...]:
        """Draw the letters of two people in turn; what has been answered or put away has been read."""
        made = []
        for i, text in enumerate(texts):
            sender, recipient = people if i % 2 == 0 else reversed(people)
            is_read = i < len(texts) - 1 or folder != "inbox" or self._rng.random() < 0.6
            place = folder if i == 0 else "inbox"
            made.append(Letter(next(self._pks), sender, recipient, text, date, is_read, place))
            date += datetime.timedelta(minutes=self._rng.randint(10, 2000))
        return tuple(made)
