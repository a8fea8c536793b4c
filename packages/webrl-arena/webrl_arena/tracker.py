"""Tasks of the tracker: the staff and customers look up tickets and notes, write, and follow up in the shop.

First what several tasks share, then each template: its words, its script, and what draws its entities and success.
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
    set_status,
    set_stock_record,
)
from webrl_arena.script import (
    Slots,
    Step,
    after,
    beside,
    click,
    click_on,
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
    shows_last,
    template,
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


def _commented(ticket: Ticket, comment: str, author: str) -> Eval:
    query = f"""SELECT newvalue FROM ticket_change WHERE ticket = {ticket.number} AND field = 'comment'
        AND author = {quoted(author)} ORDER BY time DESC"""
    return finds(query, comment, "tracker")


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

    def open_found(page: Page, slots: Slots) -> str | None:
        ending = f": {summary.format(**slots)} ("
        return click_on(next((e for e in page.all("link") if e.name.startswith("#") and ending in e.name), None))

    return [fill_nth("textbox", 0, summary), click("Search", "button"), open_found]


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

    def choose(page: Page, slots: Slots) -> str | None:
        return select_in(first(after(page, name, "radio"), "combobox"), option.format(**slots))

    return [click(name, "radio"), choose]


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
TRACKER: list[Template] = []
_task = partial(template, TRACKER, "tracker")

_task(
    "owner",
    'Who owns the ticket "{ticket}"? Answer with the name alone.',
    'Find out to whom the ticket "{ticket}" is assigned. Say the name, nothing else.',
    script=[*_TICKET, say(beside("Owned by:"))],
)(_of_ticket(lambda ticket: is_answered(tracker().names[ticket.owner])))

_task(
    "milestone",
    'For which milestone is the ticket "{ticket}" planned? Answer with its name alone.',
    'Look up the milestone of the ticket "{ticket}". Say its name, nothing else.',
    script=[*_TICKET, say(beside("Milestone:"))],
    held_out=True,
)(_of_ticket(lambda ticket: is_answered(ticket.milestone), lambda ticket: bool(ticket.milestone)))

_task(
    "reporter",
    'Who reported the ticket "{ticket}"? Answer with the name alone.',
    'Find out who opened the ticket "{ticket}". Say the name, nothing else.',
    script=[*_TICKET, say(beside("Reported by:"))],
)(_of_ticket(lambda t: is_answered(tracker().names[t.reporter]), lambda t: "." in t.reporter))


_task(
    "count",
    'How many tickets, open or closed, of the component "{component}" are planned for the milestone "{milestone}"? '
    "Answer with the number alone.",
    'Count the tickets of the component "{component}" in the milestone "{milestone}", whatever their status. '
    "Say the number, nothing else.",
    script=[*_QUERY, say(matched(r"\((\d+) match", "heading"))],
    held_out=True,
)(
    about(
        lambda e: e.plans,
        lambda plan: {"component": plan[0], "milestone": plan[1]},
        lambda plan: is_answered(str(_num_planned(plan))),
        lambda _: STAFF,
    )
)


_task(
    "aisle",
    'In which aisle does the shelf of "{category}" stand? Answer with the aisle alone, as the wiki writes it.',
    'Look up in the wiki in which aisle "{category}" is. Say the aisle, nothing else.',
    script=[click("{category}", "link"), say(beside("Aisle"))],
)(_of_shelf(lambda page: is_answered(page.aisle)))

_task(
    "supplier",
    'Who supplies the shelf of "{category}"? Answer with the name alone, as the wiki writes it.',
    'Look up the supplier of "{category}" in the wiki. Say the name, nothing else.',
    script=[click("{category}", "link"), say(beside("Supplier"))],
    held_out=True,
)(_of_shelf(lambda page: is_answered(page.supplier)))

_task("open", 'Open the ticket "{ticket}".', 'Show me the page of the ticket "{ticket}".', script=_TICKET)(
    _of_ticket(lambda ticket: is_titled(f"#{ticket.number} ("))
)


@_task(
    "query",
    'List all tickets, open or closed, of the component "{component}" in the milestone "{milestone}" by a query.',
    'Make a query that shows the tickets of the component "{component}" in the milestone "{milestone}", whatever '
    "their status.",
    script=_QUERY,
)
def _query(e: Entities, rng: random.Random) -> Instance:
    plan = rng.choice(e.plans)
    listed = leads_to(f"/query?component={plan[0]}&milestone={plan[1]}".replace(" ", "+"), "tracker")
    # Neither fewer, by another filter besides these, nor more.
    counted = shows_last("document.querySelector('#content h1').innerText", f"({_num_planned(plan)} match")
    both = {"eval_types": [*listed["eval_types"], *counted["eval_types"]], "program_html": counted["program_html"]}
    return Instance({"component": plan[0], "milestone": plan[1]}, listed | both)


_task(
    "priority",
    'Change the priority of the ticket "{ticket}" to {priority}.',
    'The ticket "{ticket}" is of the priority {priority}: record that.',
    script=_change(select("Priority:", "{priority}")),
)(_changed("priority", "priority", lambda t: [(p, p) for p in PRIORITIES if p != t.priority]))

_task(
    "plan",
    'Plan the ticket "{ticket}" for the milestone "{milestone}".',
    'Move the ticket "{ticket}" to the milestone "{milestone}".',
    script=_change(select("Milestone:", "{milestone}")),
    held_out=True,
)(
    _changed(
        "milestone",
        "milestone",
        lambda t: [(m.name, m.name) for m in tracker().milestones if not m.is_completed and m.name != t.milestone],
        lambda t: t.is_open,
    )
)

_task(
    "assign",
    'Reassign the ticket "{ticket}" to {person}.',
    '{person} shall take over the ticket "{ticket}": reassign it.',
    script=_change(*_action("reassign", "{person}")),
)(
    _changed(
        "owner",
        "person",
        lambda t: [(p.name, p.login) for p in tracker().team if p.login != t.owner],
        lambda t: t.is_open,
    )
)


@_task(
    "close",
    'Close the ticket "{ticket}" as {resolution}.',
    'Resolve the ticket "{ticket}" as {resolution}.',
    script=_CLOSE,
)
def _close(e: Entities, rng: random.Random) -> Instance:
    ticket, resolution = rng.choice([t for t in e.tickets if t.is_open]), rng.choice(RESOLUTIONS)
    return Instance({"ticket": ticket.summary, "resolution": resolution}, _is_closed(ticket, resolution))


_task(
    "cc",
    'Put {email} into the Cc of the ticket "{ticket}".',
    'Add {email} to those who get copies (Cc) of the ticket "{ticket}".',
    script=_change(fill("Cc:", "{email}")),
    held_out=True,
)(_changed("cc", "email", lambda _: [(p.email, p.email) for p in tracker().team]))


@_task(
    "comment",
    'Comment on the ticket "{ticket}": "{comment}"',
    'Write below the ticket "{ticket}": "{comment}"',
    script=_COMMENT,
)
def _comment(e: Entities, rng: random.Random) -> Instance:
    ticket, comment = rng.choice(e.tickets), rng.choice(load_words("tasks").comments)
    return Instance({"ticket": ticket.summary, "comment": comment}, _commented(ticket, comment, "staff"))


@_task(
    "my-comment",
    'Add to my ticket "{ticket}" the comment "{comment}"',
    'Write below the ticket "{ticket}", which is mine: "{comment}"',
    script=_COMMENT,
    held_out=True,
)
def _my_comment(e: Entities, rng: random.Random) -> Instance:
    ticket, comment = rng.choice([t for t in e.tickets if "." in t.reporter]), rng.choice(load_words("tasks").comments)
    evaluation = _commented(ticket, comment, ticket.reporter)
    return Instance({"ticket": ticket.summary, "comment": comment}, evaluation, f"{ticket.reporter}@example.com")


@_task(
    "new-ticket",
    'Open a ticket "{name}" of the component "{component}" and the priority "{priority}".',
    'Create a ticket with the summary "{name}", component "{component}", priority "{priority}".',
    script=new_ticket("{name}", "{component}", select("Priority:", "{priority}")),
)
def _new_ticket(e: Entities, rng: random.Random) -> Instance:
    summary, component, priority = rng.choice(e.problems), rng.choice([*tracker().owners]), rng.choice(PRIORITIES)
    slots = {"name": summary, "component": component, "priority": priority}
    return Instance(slots, reported(summary, component, "staff", priority))


@_task(
    "report",
    'Report "{name}" to the shop, in a ticket of the component "{component}".',
    'Open a ticket called "{name}" for the component "{component}".',
    script=new_ticket("{name}", "{component}"),
)
def _report(e: Entities, rng: random.Random) -> Instance:
    summary, component, customer = rng.choice(e.problems), rng.choice([*tracker().owners]), rng.choice(e.customers)
    slots = {"name": summary, "component": component}
    return Instance(slots, reported(summary, component, login_of(customer.email)), customer.email)


@_task(
    "new-aisle",
    'The shelf of "{category}" now stands in aisle {value}: correct its page in the wiki.',
    'Change the aisle on the wiki\'s page about "{category}" to {value}.',
    script=[click("{category}", "link"), click("Edit this page"), _write_aisle, click("Submit changes")],
)
def _new_aisle(e: Entities, rng: random.Random) -> Instance:
    page, aisle = rng.choice(e.shelf_pages), rng.choice(_AISLES)
    parts = " AND ".join(
        f"instr(replace(text, ' ', ''), {quoted(part.replace(' ', ''))}) > 0"
        for part in (f"Aisle =|| {aisle} ||", f"Supplier =|| {page.supplier} ||")
    )
    query = f"""SELECT {parts} FROM wiki WHERE name = {quoted(page.name)} ORDER BY version DESC"""
    return Instance({"category": page.category[-1], "value": aisle}, finds(query, 1, "tracker"))


@_task(
    "component",
    'Create the component "{name}" in the tracker, owned by "{login}".',
    'Add a component "{name}" to the tracker, whose owner is "{login}".',
    script=[click("ADMIN"), click("Components"), fill("Name:", "{name}"), select("Owner:", "{login}"), click("Add")],
)
def _component(e: Entities, rng: random.Random) -> Instance:
    name, person = rng.choice(e.names), rng.choice(tracker().team)
    query = f"SELECT owner FROM component WHERE name = {quoted(name)}"
    return Instance({"name": name, "login": person.login}, finds(query, person.login, "tracker"))


@_task(
    "new-milestone",
    'Add the milestone "{name}" to the roadmap.',
    'Create a milestone called "{name}".',
    script=[click("ROADMAP"), click("Add new milestone"), fill("Name:", "{name}"), click("Add milestone")],
    held_out=True,
)
def _new_milestone(e: Entities, rng: random.Random) -> Instance:
    name = rng.choice(e.names)
    return Instance({"name": name}, finds(f"SELECT count(*) FROM milestone WHERE name = {quoted(name)}", 1, "tracker"))


template(
    TRACKER,
    "tracker+shop_admin",
    "price-request",
    'Do in the dashboard what the ticket "{product}: new price" asks for, and close it as fixed.',
    'Change the price as the ticket "{product}: new price" says, and resolve the ticket as fixed.',
    script=_do_as_asked(PRICE, ": new price"),
)(_stock_record(": new price", "price"))

template(
    TRACKER,
    "tracker+shop_admin",
    "stocktake",
    'Correct the stock in the dashboard as the ticket "{product}: stocktake" asks for, and close it as fixed.',
    'Do what the ticket "{product}: stocktake" says about the number in stock, and resolve the ticket as fixed.',
    script=_do_as_asked(IN_STOCK, ": stocktake"),
    held_out=True,
)(_stock_record(": stocktake", "num_in_stock"))


@template(
    TRACKER,
    "shop_admin+tracker",
    "order-ticket",
    'Change the status of order {number} to "{status}", and close the ticket "{ticket}" as {resolution}.',
    'Order {number} is now "{status}": record that, then resolve its ticket "{ticket}" as {resolution}.',
    script=[*FIND_ORDER, *set_status("{status}"), click("Return to site"), click("Tracker"), *_CLOSE],
)
def _order_ticket(e: Entities, rng: random.Random) -> Instance:
    orders = {order.number: order for order in e.orders if order.status in NEXT_STATUSES}
    ticket = rng.choice([t for t in e.tickets if t.is_open and t.order in orders])
    status, resolution = rng.choice(NEXT_STATUSES[orders[ticket.order].status]), rng.choice(RESOLUTIONS)
    slots = {"number": ticket.order, "status": status, "ticket": ticket.summary, "resolution": resolution}
    return Instance(slots, finds_all(in_status(ticket.order, status), _is_closed(ticket, resolution)))


@template(
    TRACKER,
    "shop+tracker",
    "wish-ticket",
    'Put "{product}" on my wish list, and open a ticket "{name}" of the component "warehouse".',
    'I want "{product}" on my wish list, and the shop told, in a ticket of the component "warehouse": "{name}"',
    script=[
        *open_product("{product}"),
        click("Add to wish list"),
        click("Tracker"),
        *new_ticket("{name}", "warehouse"),
    ],
    held_out=True,
)
def _wish_ticket(e: Entities, rng: random.Random) -> Instance:
    product, customer, summary = rng.choice(e.products), rng.choice(e.customers), rng.choice(e.problems)
    query = """SELECT group_concat(u.email || ' ' || p.upc) FROM wishlists_line l
        JOIN wishlists_wishlist w ON w.id = l.wishlist_id JOIN auth_user u ON u.id = w.owner_id
        JOIN catalogue_product p ON p.id = l.product_id"""
    wished = finds(query, f"{customer.email} {product.upc}")
    told = reported(summary, "warehouse", login_of(customer.email))
    return Instance({"product": product.title, "name": summary}, finds_all(wished, told), customer.email)
