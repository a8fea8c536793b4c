"""The content of the arena's forum: boards, topics, polls and who wrote what, made from a seed as the shop is.

Pure Python: the site loads it into its database (`shop/load.py`), tasks and experts draw their entities from it.
Those who write are the shop's customers. What the evaluation may ask about is kept apart from the start: a topic is
of one side, and so are its writers and the product or the kind of product that it is about.
"""

from __future__ import annotations

import datetime
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from webrl_arena.world.content import Catalogue, Customer, Product, catalogue, for_evaluation, load_words, shelves

ANNOUNCEMENTS, QUESTIONS, ORDERS = "Announcements", "Product questions", "Orders and delivery"
SWAP, POLLS = "Swap and give away", "Polls"
"""Names of the boards that have their own part; all of them are in `data/forum.yaml`."""
STAFF_NAME = "Shop Staff"
_NUM_CHOICES, _NUM_QUESTIONS, _NUM_CHATS = 48, 72, 12
_FIRST_DAY = datetime.datetime(2023, 1, 2, tzinfo=datetime.UTC)
_NUM_DAYS = 700


@dataclass(frozen=True)
class Board:
    """A forum in machina's words; its page is `path`."""

    pk: int
    name: str
    category: str
    """The heading above it."""
    description: str

    @property
    def path(self) -> str:
        """Below the server's root."""
        return f"/forum/forum/{_slug(self.name)}-{self.pk}/"


@dataclass(frozen=True)
class Post:
    """A post of a topic."""

    pk: int
    email: str
    """Of the customer who wrote it; "" for the staff."""
    author: str
    """As the page shows it."""
    text: str
    date: datetime.datetime
    finish: str = ""
    """What it recommends."""
    approved: bool = True
    """Otherwise it waits for approval and only the staff sees it."""


@dataclass(frozen=True)
class Poll:
    """A poll in a topic's first post."""

    question: str
    options: tuple[str, ...]
    votes: tuple[tuple[str, str], ...]
    """(e-mail address, option); everybody has one vote."""


@dataclass(frozen=True)
class Topic:
    """A topic with its posts, in the order of their dates."""

    pk: int
    subject: str
    """Unique."""
    board: Board
    evaluation: bool
    """Whether the evaluation asks about it; training then does not."""
    posts: tuple[Post, ...]
    views: int
    product: Product | None = None
    """Which its first post asks about."""
    asks: str = ""
    """What about it: a key of `asks` in `data/forum.yaml`."""
    poll: Poll | None = None
    subscribers: tuple[str, ...] = ()
    """E-mail addresses."""

    @property
    def path(self) -> str:
        """Below the server's root."""
        return f"{self.board.path}topic/{_slug(self.subject)}-{self.pk}/"

    @cached_property  # tasks are drawn by looking at thousands of topics
    def shown(self) -> tuple[Post, ...]:
        """The posts that everybody sees."""
        return tuple(post for post in self.posts if post.approved)


@dataclass(frozen=True)
class Forum:
    """All of the forum's content."""

    boards: tuple[Board, ...]
    topics: tuple[Topic, ...]

    @cached_property
    def num_posts(self) -> int:
        """Of all topics, also those that wait; they are numbered from 1."""
        return sum(len(topic.posts) for topic in self.topics)


@cache
def forum(seed: int = 0) -> Forum:
    """Make the forum's content for a seed."""
    rng = random.Random(f"forum {seed}")
    boards: list[Board] = []
    pk = 0
    for category, below in load_words("forum").boards.items():
        pk += 1  # the category has a number too
        for name, description in below.items():
            pk += 1
            boards.append(Board(pk, name, category, description))
    writer = _Writer(rng, {board.name: board for board in boards}, catalogue(seed))
    return Forum(tuple(boards), tuple(writer.topics()))


def _slug(text: str) -> str:
    """Return what Django makes of plain text in an address."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text.lower())).strip("-_")


class _Writer:
    """Draws topics and posts, and numbers them."""

    def __init__(self, rng: random.Random, boards: dict[str, Board], content: Catalogue) -> None:
        self._rng, self._boards, self._content = rng, boards, content
        self._topic_pks, self._post_pks = itertools.count(1), itertools.count(1)
        self._kinds = list(dict.fromkeys(product.kind for product in content.products))
        self._shelf = {kind.noun: shelf for shelf in shelves() for kind in shelf.kinds}

    def topics(self) -> Iterator[Topic]:
        """Draw all topics: which finish to choose, questions about products, chats, polls, news."""
        words = load_words("forum")
        for number, (kind, evaluation) in enumerate(self._of_sides(self._kinds, _NUM_CHOICES)):
            shelf = self._shelf[kind]
            wording = words.choice_subjects[number % len(words.choice_subjects)]
            people = self._people(evaluation, self._rng.randint(4, 8))
            finishes = [self._rng.choice(shelf.finishes) for _ in people[1:]]
            posts = [(people[0], self._rng.choice(words.choice_openings), "")]
            posts += [
                (person, self._rng.choice(words.choice_replies).format(finish=finish), finish)
                for person, finish in zip(people[1:], finishes, strict=True)
            ]
            yield self._topic(wording.format(kind=kind), shelf.path[0], evaluation, posts)

        sides = {kind: for_evaluation(i) for i, kind in enumerate(self._kinds)}
        products: dict[str, Product] = {}
        for i, product in enumerate(self._content.products):
            if for_evaluation(i) == sides[product.kind] and product.stock:
                products.setdefault(product.kind, product)
        kinds = [kind if kind in products else None for kind in self._kinds]
        all_asks = list(words.asks)
        for number, (kind, evaluation) in enumerate(self._of_sides(kinds, _NUM_QUESTIONS)):
            # Number by number, a fourth is of the evaluation: they get all that can be asked.
            asks = all_asks[(number // 4 if evaluation else number) % len(all_asks)]
            wording, text = words.asks[asks]
            people = self._people(evaluation, self._rng.randint(2, 5))
            first = f"{text.format(product=products[kind].title)} {self._rng.choice(words.ask_endings)}"
            replies = self._rng.sample(words.ask_replies, len(people) - 1)
            posts = [(person, said, "") for person, said in zip(people, [first, *replies], strict=True)]
            subject = wording.format(kind=kind)
            yield self._topic(subject, QUESTIONS, evaluation, posts, product=products[kind], asks=asks)

        of_chats = [kind for kind, _ in self._of_sides(self._kinds, _NUM_CHATS)]
        cities = [city for city, *_ in load_words("shop").places]
        for board, (wording, openings, answers) in words.chats.items():
            for number in range(_NUM_CHATS):
                evaluation = for_evaluation(number)
                subject = wording.format(city=cities[number], idea=words.ideas[number], kind=of_chats[number])
                people = self._people(evaluation, self._rng.randint(3, 5))
                said = [self._rng.choice(openings), *self._rng.sample(answers, len(people) - 1)]
                posts = [(person, text, "") for person, text in zip(people, said, strict=True)]
                pending = self._rng.choice(words.pending) if board == SWAP else ""
                yield self._topic(subject, board, evaluation, posts, pending=pending)

        for number, (question, options) in enumerate(words.poll_questions.items()):
            evaluation = for_evaluation(number)
            people = self._people(evaluation, self._rng.randint(2, 4))
            voters = self._people(evaluation, self._rng.randint(8, 20))
            poll = Poll(question, options, tuple((voter.email, self._rng.choice(options)) for voter in voters))
            posts = [(person, "I was wondering." if i == 0 else "Done.", "") for i, person in enumerate(people)]
            yield self._topic(f"Poll: {question}", POLLS, evaluation, posts, poll=poll)

        for subject, text in words.news.items():
            yield self._topic(subject, ANNOUNCEMENTS, False, [(None, text, "")])

    def _of_sides(self, kinds: Sequence[str | None], count: int) -> Iterator[tuple[str, bool]]:
        """Draw this many kinds, every fourth one of the evaluation; a kind's place says which side it is on."""
        sides = {}
        for side in (True, False):
            there = [kind for i, kind in enumerate(kinds) if kind is not None and for_evaluation(i) == side]
            sides[side] = iter(self._rng.sample(there, len(there)))
        for number in range(count):
            yield next(sides[for_evaluation(number)]), for_evaluation(number)

    def _people(self, evaluation: bool, count: int) -> list[Customer]:
        customers = self._content.customers
        return self._rng.sample([c for i, c in enumerate(customers) if for_evaluation(i) == evaluation], count)

    def _topic(
        self,
        subject: str,
        board: str,
        evaluation: bool,
        said: Sequence[tuple[Customer | None, str, str]],
        *,
        pending: str = "",
        product: Product | None = None,
        asks: str = "",
        poll: Poll | None = None,
    ) -> Topic:
        date = _FIRST_DAY + datetime.timedelta(minutes=self._rng.randrange(_NUM_DAYS * 24 * 60))
        posts: list[Post] = []
        if pending:
            taken = {person.email for person, *_ in said if person}
            waiting = next(p for p in self._people(evaluation, len(said) + 1) if p.email not in taken)
            said = [*said, (waiting, pending, "")]
        for i, (person, text, finish) in enumerate(said):
            name, email = (person.name, person.email) if person else (STAFF_NAME, "")
            waits = bool(pending) and i == len(said) - 1
            posts.append(Post(next(self._post_pks), email, name, text, date, finish, not waits))
            date += datetime.timedelta(minutes=self._rng.randint(5, 3 * 24 * 60))
        people = [person.email for person, *_ in said if person]
        return Topic(
            pk=next(self._topic_pks),
            subject=subject,
            board=self._boards[board],
            evaluation=evaluation,
            posts=tuple(posts),
            views=self._rng.randint(len(posts), 40 * len(posts)),
            product=product,
            asks=asks,
            poll=poll,
            subscribers=tuple(sorted(self._rng.sample(people, min(2, len(people))))),
        )
