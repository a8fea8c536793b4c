"""Tasks of the tracker: the staff and customers look up tickets and notes, write, and follow up in the shop.

First what several tasks share and what draws their entities and success, then the table: each template's name and its
draw. `experts.yaml` says how it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from webrl_arena.dashboard import NEXT_STATUSES, in_status, in_stock_record, made
from webrl_arena.templates import (
    STAFF,
    Draw,
    Entities,
    Eval,
    Instance,
    Template,
    about,
    finds,
    finds_all,
    is_answered,
    is_titled,
    leads_to,
    quoted,
    shows,
)
from webrl_arena.world.content import load_words
from webrl_arena.world.tracker import PRIORITIES, RESOLUTIONS, ShelfPage, Ticket, login_of, tracker

_AISLES = tuple(f"{number}{letter}" for number in range(25, 60) for letter in "GHJK")
"""No shelf is in one of these."""


def _is_closed(ticket: Ticket, resolution: str) -> Eval:
    query = f"SELECT status || ' ' || resolution FROM ticket WHERE id = {ticket.number}"
    return finds(query, f"closed {resolution}", "tracker")


def _of_ticket(succeeds: Callable[[Ticket], Eval], holds: Callable[[Ticket], bool] = lambda _: True) -> Draw:
    return about(
        lambda e: [t for t in e.tickets if holds(t)], lambda t: {"ticket": t.summary}, succeeds, lambda _: STAFF
    )


def _changed(
    column: str,
    slot: str,
    values: Callable[[Ticket], Sequence[tuple[str, str]]],
    holds: Callable[[Ticket], bool] = lambda _: True,
) -> Draw:
    """Draw a ticket, and what a column of it is to become: of each value, what the task says and what is stored."""

    def draw(e: Entities, rng: random.Random) -> Instance:
        ticket = rng.choice([ticket for ticket in e.tickets if holds(ticket)])
        said, stored = rng.choice(values(ticket))
        query = f"SELECT {column} FROM ticket WHERE id = {ticket.number}"
        return Instance({"ticket": ticket.summary, slot: said}, finds(query, stored, "tracker"))

    return draw


def _num_planned(plan: tuple[str, str]) -> int:
    return sum((ticket.component, ticket.milestone) == plan for ticket in tracker().tickets)


def _of_shelf(succeeds: Callable[[ShelfPage], Eval]) -> Draw:
    return about(lambda e: e.shelf_pages, lambda page: {"category": page.category[-1]}, succeeds, lambda _: STAFF)


def reported(summary: str, component: str, reporter: str, priority: str = "major") -> Eval:
    """Require one ticket of this summary."""
    query = f"""SELECT group_concat(component || ', ' || priority || ', ' || reporter) FROM ticket
        WHERE summary = {quoted(summary)}"""
    return finds(query, f"{component}, {priority}, {reporter}", "tracker")


def _stock_record(ending: str, column: str) -> Draw:
    """Draw a ticket that asks for a change in the dashboard, which is to be done, and the ticket closed."""
    return about(
        lambda e: [ticket for ticket in e.tickets if ticket.summary.endswith(ending)],
        lambda ticket: {"product": ticket.summary.removesuffix(ending)},
        lambda t: finds_all(in_stock_record(t.upc, column, float(t.value)), _is_closed(t, "fixed")),
        lambda _: STAFF,
    )


def _query(e: Entities, rng: random.Random) -> Instance:
    plan = rng.choice(e.plans)
    listed = leads_to(f"/query?component={plan[0]}&milestone={plan[1]}".replace(" ", "+"), "tracker")
    # Neither fewer, by another filter besides these, nor more.
    counted = shows("last", "document.querySelector('#content h1').innerText", f"({_num_planned(plan)} match")
    both = {"eval_types": [*listed["eval_types"], *counted["eval_types"]], "program_html": counted["program_html"]}
    return Instance({"component": plan[0], "milestone": plan[1]}, listed | both)


def _close(e: Entities, rng: random.Random) -> Instance:
    ticket, resolution = rng.choice([t for t in e.tickets if t.is_open]), rng.choice(RESOLUTIONS)
    return Instance({"ticket": ticket.summary, "resolution": resolution}, _is_closed(ticket, resolution))


def _comment(mine: bool, e: Entities, rng: random.Random) -> Instance:
    ticket = rng.choice([t for t in e.tickets if not mine or "." in t.reporter])
    comment, author = rng.choice(load_words("tasks").comments), ticket.reporter if mine else "staff"
    query = f"""SELECT newvalue FROM ticket_change WHERE ticket = {ticket.number} AND field = 'comment'
        AND author = {quoted(author)} ORDER BY time DESC"""
    slots = {"ticket": ticket.summary, "comment": comment}
    return Instance(slots, finds(query, comment, "tracker"), f"{author}@example.com" if mine else STAFF)


def _new_ticket(e: Entities, rng: random.Random) -> Instance:
    summary, component, priority = rng.choice(e.problems), rng.choice([*tracker().owners]), rng.choice(PRIORITIES)
    slots = {"name": summary, "component": component, "priority": priority}
    return Instance(slots, reported(summary, component, "staff", priority))


def _report(e: Entities, rng: random.Random) -> Instance:
    summary, component, customer = rng.choice(e.problems), rng.choice([*tracker().owners]), rng.choice(e.customers)
    slots = {"name": summary, "component": component}
    return Instance(slots, reported(summary, component, login_of(customer.email)), customer.email)


def _new_aisle(e: Entities, rng: random.Random) -> Instance:
    page, aisle = rng.choice(e.shelf_pages), rng.choice(_AISLES)
    parts = " AND ".join(
        f"instr(replace(text, ' ', ''), {quoted(part.replace(' ', ''))}) > 0"
        for part in (f"Aisle =|| {aisle} ||", f"Supplier =|| {page.supplier} ||")
    )
    query = f"""SELECT {parts} FROM wiki WHERE name = {quoted(page.name)} ORDER BY version DESC"""
    return Instance({"category": page.category[-1], "value": aisle}, finds(query, 1, "tracker"))


def _component(e: Entities, rng: random.Random) -> Instance:
    name, person = rng.choice(e.names), rng.choice(tracker().team)
    query = f"SELECT owner FROM component WHERE name = {quoted(name)}"
    return Instance({"name": name, "login": person.login}, finds(query, person.login, "tracker"))


def _order_ticket(e: Entities, rng: random.Random) -> Instance:
    orders = {order.number: order for order in e.orders if order.status in NEXT_STATUSES}
    ticket = rng.choice([t for t in e.tickets if t.is_open and t.order in orders])
    status, resolution = rng.choice(NEXT_STATUSES[orders[ticket.order].status]), rng.choice(RESOLUTIONS)
    slots = {"number": ticket.order, "status": status, "ticket": ticket.summary, "resolution": resolution}
    return Instance(slots, finds_all(in_status(ticket.order, status), _is_closed(ticket, resolution)))


def _wish_ticket(e: Entities, rng: random.Random) -> Instance:
    product, customer, summary = rng.choice(e.products), rng.choice(e.customers), rng.choice(e.problems)
    query = """SELECT group_concat(u.email || ' ' || p.upc) FROM wishlists_line l
        JOIN wishlists_wishlist w ON w.id = l.wishlist_id JOIN auth_user u ON u.id = w.owner_id
        JOIN catalogue_product p ON p.id = l.product_id"""
    wished = finds(query, f"{customer.email} {product.upc}")
    told = reported(summary, "warehouse", login_of(customer.email))
    return Instance({"product": product.title, "name": summary}, finds_all(wished, told), customer.email)


_task = partial(Template, "tracker")
_held = partial(_task, held_out=True)
TRACKER: tuple[Template, ...] = (
    _task("owner", _of_ticket(lambda t: is_answered(tracker().names[t.owner]))),
    _held("milestone", _of_ticket(lambda t: is_answered(t.milestone), lambda t: bool(t.milestone))),
    _task("reporter", _of_ticket(lambda t: is_answered(tracker().names[t.reporter]), lambda t: "." in t.reporter)),
    _held(
        "count",
        about(
            lambda e: e.plans,
            lambda plan: {"component": plan[0], "milestone": plan[1]},
            lambda plan: is_answered(str(_num_planned(plan))),
            lambda _: STAFF,
        ),
    ),
    _task("aisle", _of_shelf(lambda page: is_answered(page.aisle))),
    _held("supplier", _of_shelf(lambda page: is_answered(page.supplier))),
    _task("open", _of_ticket(lambda t: is_titled(f"#{t.number} ("))),
    _task("query", _query),
    _task("priority", _changed("priority", "priority", lambda t: [(p, p) for p in PRIORITIES if p != t.priority])),
    _held(
        "plan",
        _changed(
            "milestone",
            "milestone",
            lambda t: [(m.name, m.name) for m in tracker().milestones if not m.is_completed and m.name != t.milestone],
            lambda t: t.is_open,
        ),
    ),
    _task(
        "assign",
        _changed(
            "owner",
            "person",
            lambda t: [(p.name, p.login) for p in tracker().team if p.login != t.owner],
            lambda t: t.is_open,
        ),
    ),
    _task("close", _close),
    _held("cc", _changed("cc", "email", lambda _: [(p.email, p.email) for p in tracker().team])),
    _task("comment", partial(_comment, False)),
    _held("my-comment", partial(_comment, True)),
    _task("new-ticket", _new_ticket),
    _task("report", _report),
    _task("new-aisle", _new_aisle),
    _task("component", _component),
    _held("new-milestone", made("milestone", "tracker")),
    Template("tracker+shop_admin", "price-request", _stock_record(": new price", "price")),
    Template("tracker+shop_admin", "stocktake", _stock_record(": stocktake", "num_in_stock"), held_out=True),
    Template("shop_admin+tracker", "order-ticket", _order_ticket),
    Template("shop+tracker", "wish-ticket", _wish_ticket, held_out=True),
)
