"""What a template of the arena's tasks is: words with slots, what fills them, how success is
measured (`evals.py`), and how it is done (`script.py`).

API: `template` makes a `Template`; `Instance`, `Entities`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from webrl.arena.content import Customer, Order, Product
from webrl.arena.forum.content import Topic
from webrl.arena.mail.content import Conversation
from webrl.arena.tracker.content import ShelfPage, Ticket
from webrl.suites.arena.evals import Eval
from webrl.suites.arena.script import Script

STAFF = "staff"


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


@dataclass(frozen=True)
class Instance:
    """A template with its slots filled."""

    slots: dict[str, str]
    eval: Eval
    """As in a task file."""
    login: str = STAFF
    """E-mail address of the customer who is logged in, or `STAFF`."""


Draw = Callable[[Entities, random.Random], Instance | None]
"""Fills a template's slots with entities of a split; None where those that it drew do not go together."""


@dataclass(frozen=True)
class Template:
    """One kind of task."""

    name: str
    site: str
    """`shop` (the storefront, as a customer), `shop_admin` (the dashboard, as staff) …; across sites, such as
    `forum+shop`, it begins at the first."""
    wordings: tuple[str, ...]
    """Instructions with `{slot}`s; each says the same."""
    draw: Draw
    script: Script
    """How it is done."""
    held_out: bool = False
    """Never trained on."""

    @property
    def key(self) -> str:
        """The task type: `arena.shop.price`."""
        return f"arena.{self.site}.{self.name}"

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(map(_pattern, self.wordings))

    def read(self, instruction: str) -> dict[str, str] | None:
        """The slots of an instruction in one of the template's wordings."""
        for pattern in self._patterns:
            if match := pattern.fullmatch(instruction.strip()):
                return match.groupdict()
        return None


def template(site: str, name: str, *wordings: str, draw: Draw, script: Script, held_out: bool = False) -> Template:
    """A task with its solution, as the modules of the sites write it down."""
    return Template(name, site, wordings, draw, script, held_out)


def _pattern(wording: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", wording)
    return re.compile("".join(f"(?P<{p}>.+?)" if i % 2 else re.escape(p) for i, p in enumerate(parts)), re.DOTALL)
