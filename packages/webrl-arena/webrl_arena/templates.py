"""What a template of the arena's tasks is: words with slots, what fills them, how success is measured, how it is done.

API: `Template`, `Instance`, `Entities`, `about`; `answers`, `is_answered`, `leads_to`, `shows`, `is_titled`, `finds`,
`rows` and `finds_all` make a task's `eval`, as in a task file; `quoted` is for texts in queries.
The words are in `world/data/instructions.yaml`, the experts' scripts in `experts.yaml`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from webrl.suites.miniwob.experts.goal import DONE
from webrl.suites.miniwob.experts.page import read_page
from webrl_arena.script import Script, notes_in, script_of
from webrl_arena.world.content import Customer, Order, Product, load_words
from webrl_arena.world.forum import Topic
from webrl_arena.world.mail import Conversation
from webrl_arena.world.tracker import ShelfPage, Ticket

STAFF = "staff"
WAIT = "noop(1000)"
"""What an expert does while a page has not come, and no step of its script."""
MAX_WAITS = 5
"""In a row."""
Eval = dict[str, Any]
"""The value of a task's `eval`."""
_T = TypeVar("_T")


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
    """One kind of task, and the expert that plays it."""

    site: str
    """`shop` (the storefront, as a customer), `shop_admin` (the dashboard, as staff) …; across sites, such as
    `forum+shop`, it begins at the first."""
    name: str
    draw: Draw
    held_out: bool = False
    """Never trained on."""

    @property
    def key(self) -> str:
        """The task type: `arena.shop.price`."""
        return f"arena.{self.site}.{self.name}"

    @property
    def script(self) -> Script:
        """How it is done."""
        return script_of(self.site, self.name)

    @cached_property
    def wordings(self) -> tuple[str, ...]:
        """Return instructions with `{slot}`s; each says the same."""
        found: tuple[str, ...] = vars(load_words("instructions"))[self.site][self.name]
        return found

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        split = [re.split(r"\{(\w+)\}", wording) for wording in self.wordings]
        named = ((f"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)) for parts in split)
        return tuple(re.compile("".join(parts), re.DOTALL) for parts in named)

    def read(self, instruction: str) -> dict[str, str] | None:
        """Read the slots of an instruction in one of the template's wordings; None if it is in none."""
        for pattern in self._patterns:
            if match := pattern.fullmatch(instruction.strip()):
                return match.groupdict()
        return None

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """Return the next action; `send_msg_to_user('done')` if nothing is left; None if it cannot be done here.

        The expert is as far in its script as actions have worked; one that failed is tried again. Where a page lacks
        what the next step needs, it may still be loading, on a busy machine: the expert waits, up to `MAX_WAITS` times.
        It does not wait for a note that none of the actions has written down.

        Args:
            history: the actions that have worked, waits included.
        """
        slots = self.read(instruction)
        if slots is None:
            return None
        if notes := [note for text in history for note in notes_in(text)]:
            slots["note"] = notes[-1]
        done = len(history) - list(history).count(WAIT)
        try:
            action = self.script[done](read_page(observation), slots) if done < len(self.script) else DONE
        except KeyError as missing:
            if missing.args != ("note",):
                raise
            return None
        waited_out = list(history[-MAX_WAITS:]) == [WAIT] * MAX_WAITS
        return WAIT if action is None and not waited_out else action


def about(
    pool: Callable[[Entities], Sequence[_T]],
    slots: Callable[[_T], dict[str, str]],
    succeeds: Callable[[_T], Eval],
    login: Callable[[_T], str] | None = None,
) -> Draw:
    """Draw one entity, which decides the slots and how success is measured.

    Args:
        pool: the entities to choose from.
        login: who is logged in; None: any customer.
    """

    def draw(e: Entities, rng: random.Random) -> Instance:
        found = rng.choice(pool(e))
        return Instance(slots(found), succeeds(found), login(found) if login else any_customer(e, rng))

    return draw


def any_customer(e: Entities, rng: random.Random) -> str:
    """Draw the e-mail address of a customer."""
    return rng.choice(e.customers).email


def answers(*must_include: str) -> Eval:
    """Require these texts in the agent's answer."""
    return _eval("string_match", reference_answers={"must_include": list(must_include)})


def is_answered(text: str) -> Eval:
    """Require this text as the whole answer, for what could be a part of another one ("15" of "150")."""
    return _eval("string_match", reference_answers={"exact_match": text})


def leads_to(path: str, site: str = "shop") -> Eval:
    """Require the agent to end at an address; `path` below the site's."""
    return _eval("url_match", reference_url=f"__{site.upper()}__{path}", url_note="GOLD in PRED")


def shows(url: str, locator: str, *must_include: str) -> Eval:
    """Require these texts in what JavaScript finds on a page, as the agent's user then sees it, or on the last one."""
    target = {"url": url, "locator": locator, "required_contents": {"must_include": list(must_include)}}
    return _eval("program_html", program_html=[target])


def is_titled(*must_include: str) -> Eval:
    """Require these texts in the title of the last page; for pages whose address is a part of another one's."""
    return shows("last", "document.title", *must_include)


def finds(query: str, equals: Any, site: str = "shop") -> Eval:
    """Require the first value that a query finds in the session's database of a site."""
    return _eval("database", database=[{"query": " ".join(query.split()), "equals": equals, "site": site}])


def rows(columns: str, tables: str, wanted: Collection[str]) -> Eval:
    """Require exactly these rows, in any order, each as one text (`columns`)."""
    query = f"SELECT group_concat(row, ' | ') FROM (SELECT {columns} AS row FROM {tables} ORDER BY row)"
    return finds(query, " | ".join(sorted(wanted)) or None)


def finds_all(*evals: Eval) -> Eval:
    """Require what several queries find."""
    return _eval("database", database=[check for each in evals for check in each["database"]])


def _eval(kind: str, **given: Any) -> Eval:
    empty: Eval = {"reference_answers": None, "reference_url": "", "program_html": []}
    return {"eval_types": [kind], **empty, **given}


def quoted(text: str) -> str:
    """Quote a text for a query."""
    return "'" + text.replace("'", "''") + "'"
