"""Tasks of the tracker: the staff and customers look up tickets and notes, write, and follow up in the shop.

First what several tasks share and what draws their entities and success, then the table: each template's name, its
draw, and how it is done.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from functools import partial

from webrl.suites.miniwob.experts.page import Page
from webrl_arena.dashboard import (
    FIND_ORDER,
    IN_STOCK,
    NEXT_STATUSES,
    PRICE,
    in_status,
    in_stock_record,
    made,
    set_status,
    set_stock_record,
)
from webrl_arena.script import (
    Slots,
    Step,
    after,
    beside,
    click,
    click_where,
    fill,
    fill_in,
    fill_nth,
    first,
    matched,
    noting,
    say,
    select,
    select_in,
)
from webrl_arena.storefront import open_product
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


def find_ticket(summary: str) -> list[Step]:
    """Search for a ticket, and open its page."""
    return [
        fill_nth("textbox", 0, summary),
        click("Search", "button"),
        click_where(lambda name, slots: name.startswith("#") and f": {summary.format(**slots)} (" in name),
    ]


def new_ticket(summary: str, component: str, *more: Step) -> list[Step]:
    """Open a ticket, from any page of the tracker."""
    return [
        click("NEW TICKET"),
        fill("Summary:", summary),
        select("Component:", component),
        *more,
        click("Create ticket"),
    ]


def _change(*steps: Step) -> list[Step]:
    return [*_TICKET, click("Modify Ticket", "link"), *steps, click("Submit changes")]


def _action(name: str, option: str) -> list[Step]:
    """Choose an action of the workflow, and an option of it."""
    return [
        click(name, "radio"),
        lambda page, slots: select_in(first(after(page, name, "radio"), "combobox"), option.format(**slots)),
    ]


def _filter(field: str, value: str) -> list[Step]:
    """Add a filter to a query; it has two lists without a name: how to compare, and with what."""

    def choose(page: Page, slots: Slots) -> str | None:
        lists = [e for e in after(page, field, "rowheader") if e.role == "combobox"]
        return select_in(lists[1], value.format(**slots)) if len(lists) > 1 else None

    return [select("And", field), choose]


def _write_aisle(page: Page, slots: Slots) -> str | None:
    field = next((e for e in page.all("textbox") if "||= Aisle =||" in e.value), None)
    new = re.sub(r"(\|\|= Aisle =\|\| ).*?( \|\|)", rf"\g<1>{slots['value']}\2", field.value) if field else ""
    return fill_in(field, new)


def _do_as_asked(field: int, ending: str) -> list[Step]:
    """Read in the ticket what to set, close it (as fixed, which is chosen already), and set it in the dashboard."""
    return [
        *find_ticket("{product}" + ending),
        noting(matched(r"(\d+(?:\.\d+)?)", heading="Description"), click("Modify Ticket", "link")),
        click("resolve", "radio"),
        click("Submit changes"),
        click("DASHBOARD"),
        *set_stock_record("{product}", field, "{note}"),
    ]


_TICKET = find_ticket("{ticket}")
_CLOSE = _change(*_action("resolve", "{resolution}"))
_COMMENT = [*_TICKET, fill("You may use WikiFormatting here.", "{comment}"), click("Submit changes")]
"""The field is named by the text below it."""
_QUERY = [
    click("VIEW TICKETS"),
    click("{{3}} All tickets by component"),
    click("Filters"),
    *_filter("Component", "{component}"),
    *_filter("Milestone", "{milestone}"),
    click("Update"),
]


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
    _task("owner", _of_ticket(lambda t: is_answered(tracker().names[t.owner])), [*_TICKET, say(beside("Owned by:"))]),
    _held(
        "milestone",
        _of_ticket(lambda t: is_answered(t.milestone), lambda t: bool(t.milestone)),
        [*_TICKET, say(beside("Milestone:"))],
    ),
    _task(
        "reporter",
        _of_ticket(lambda t: is_answered(tracker().names[t.reporter]), lambda t: "." in t.reporter),
        [*_TICKET, say(beside("Reported by:"))],
    ),
    _held(
        "count",
        about(
            lambda e: e.plans,
            lambda plan: {"component": plan[0], "milestone": plan[1]},
            lambda plan: is_answered(str(_num_planned(plan))),
            lambda _: STAFF,
        ),
        [*_QUERY, say(matched(r"\((\d+) match", "heading"))],
    ),
    _task(
        "aisle", _of_shelf(lambda page: is_answered(page.aisle)), [click("{category}", "link"), say(beside("Aisle"))]
    ),
    _held(
        "supplier",
        _of_shelf(lambda page: is_answered(page.supplier)),
        [click("{category}", "link"), say(beside("Supplier"))],
    ),
    _task("open", _of_ticket(lambda t: is_titled(f"#{t.number} (")), _TICKET),
    _task("query", _query, _QUERY),
    _task(
        "priority",
        _changed("priority", "priority", lambda t: [(p, p) for p in PRIORITIES if p != t.priority]),
        _change(select("Priority:", "{priority}")),
    ),
    _held(
        "plan",
        _changed(
            "milestone",
            "milestone",
            lambda t: [(m.name, m.name) for m in tracker().milestones if not m.is_completed and m.name != t.milestone],
            lambda t: t.is_open,
        ),
        _change(select("Milestone:", "{milestone}")),
    ),
    _task(
        "assign",
        _changed(
            "owner",
            "person",
            lambda t: [(p.name, p.login) for p in tracker().team if p.login != t.owner],
            lambda t: t.is_open,
        ),
        _change(*_action("reassign", "{person}")),
    ),
    _task("close", _close, _CLOSE),
    _held(
        "cc",
        _changed("cc", "email", lambda _: [(p.email, p.email) for p in tracker().team]),
        _change(fill("Cc:", "{email}")),
    ),
    _task("comment", partial(_comment, False), _COMMENT),
    _held("my-comment", partial(_comment, True), _COMMENT),
    _task("new-ticket", _new_ticket, new_ticket("{name}", "{component}", select("Priority:", "{priority}"))),
    _task("report", _report, new_ticket("{name}", "{component}")),
    _task(
        "new-aisle",
        _new_aisle,
        [click("{category}", "link"), click("Edit this page"), _write_aisle, click("Submit changes")],
    ),
    _task(
        "component",
        _component,
        [click("ADMIN"), click("Components"), fill("Name:", "{name}"), select("Owner:", "{login}"), click("Add")],
    ),
    _held(
        "new-milestone",
        made("milestone", "tracker"),
        [click("ROADMAP"), click("Add new milestone"), fill("Name:", "{name}"), click("Add milestone")],
    ),
    Template(
        "tracker+shop_admin", "price-request", _stock_record(": new price", "price"), _do_as_asked(PRICE, ": new price")
    ),
    Template(
        "tracker+shop_admin",
        "stocktake",
        _stock_record(": stocktake", "num_in_stock"),
        _do_as_asked(IN_STOCK, ": stocktake"),
        held_out=True,
    ),
    Template(
        "shop_admin+tracker",
        "order-ticket",
        _order_ticket,
        [*FIND_ORDER, *set_status("{status}"), click("Return to site"), click("Tracker"), *_CLOSE],
    ),
    Template(
        "shop+tracker",
        "wish-ticket",
        _wish_ticket,
        [*open_product("{product}"), click("Add to wish list"), click("Tracker"), *new_ticket("{name}", "warehouse")],
        held_out=True,
    ),
)
