"""What a template of the arena's tasks is: words with slots, what fills them, and how success is measured.

API: `template` makes a `Template`; `Instance`, `Entities`; `answers`, `leads_to`, `shows`, `finds`, `rows` write the
`eval` of a task.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from webrl.arena.content import Customer, Order, Product
from webrl.arena.forum.content import Topic
from webrl.arena.mail.content import Conversation
from webrl.arena.tracker.content import ShelfPage, Ticket

STAFF = "staff"
Eval = dict[str, Any]


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


def template(site: str, name: str, draw: Draw, *wordings: str, held_out: bool = False) -> Template:
    """A template as the modules of the sites write it down."""
    return Template(name, site, wordings, draw, held_out)


def _pattern(wording: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", wording)
    return re.compile("".join(f"(?P<{p}>.+?)" if i % 2 else re.escape(p) for i, p in enumerate(parts)), re.DOTALL)


def answers(*must_include: str) -> Eval:
    """Success by what the agent's answer holds."""
    return _eval("string_match", reference_answers={"must_include": list(must_include)})


def is_answered(text: str) -> Eval:
    """Success by the whole answer, for what could be a part of another one ("15" of "150")."""
    return _eval("string_match", reference_answers={"exact_match": text})


def leads_to(path: str, site: str = "shop") -> Eval:
    """Success by where the agent ends; `path` below the site's."""
    return _eval("url_match", reference_url=f"__{site.upper()}__{path}", url_note="GOLD in PRED")


def shows(path: str, *must_include: str) -> Eval:
    """Success by what a page of the shop then shows to the agent's user."""
    target = {
        "url": f"__SHOP__{path}",
        "locator": "document.body.innerText",
        "required_contents": {"must_include": list(must_include)},
    }
    return _eval("program_html", program_html=[target])


def is_titled(*must_include: str) -> Eval:
    """Success by the title of the page where the agent ends; for pages whose address is a part of another one's."""
    return shows_last("document.title", *must_include)


def shows_last(locator: str, *must_include: str) -> Eval:
    """Success by what JavaScript finds on the page where the agent ends."""
    target = {"url": "last", "locator": locator, "required_contents": {"must_include": list(must_include)}}
    return _eval("program_html", program_html=[target])


def finds(query: str, equals: Any, site: str = "shop") -> Eval:
    """Success by the first value that a query finds in the session's database of a site."""
    return _eval("database", database=[{"query": " ".join(query.split()), "equals": equals, "site": site}])


def rows(columns: str, tables: str, wanted: Collection[str]) -> Eval:
    """Success by exactly these rows, in any order, each as one text (`columns`)."""
    query = f"SELECT group_concat(row, ' | ') FROM (SELECT {columns} AS row FROM {tables} ORDER BY row)"
    return finds(query, " | ".join(sorted(wanted)) or None)


def finds_all(*evals: Eval) -> Eval:
    """Success by what several queries find."""
    return _eval("database", database=[check for each in evals for check in each["database"]])


def _eval(kind: str, **given: Any) -> Eval:
    empty: Eval = {"reference_answers": None, "reference_url": "", "program_html": []}
    return {"eval_types": [kind], **empty, **given}


def quoted(text: str) -> str:
    """A text in a query."""
    return "'" + text.replace("'", "''") + "'"
