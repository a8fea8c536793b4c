"""Tasks of the tracker: the staff and customers look up tickets and notes, write, and follow up in the shop.

First what each task is about and how its success is measured, then how it is done, then the table of both.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial

from webrl.arena.tracker.content import PRIORITIES, RESOLUTIONS, ShelfPage, Ticket, login_of, tracker
from webrl.suites.arena.dashboard import (
    IN_STOCK,
    NEXT_STATUSES,
    PRICE,
    find_order,
    in_status,
    in_stock_record,
    set_status,
    set_stock_record,
)
from webrl.suites.arena.evals import Eval, finds, finds_all, is_answered, is_titled, leads_to, quoted, shows_last
from webrl.suites.arena.script import (
    Script,
    Step,
    after,
    beside,
    click,
    click_on,
    fill,
    fill_in,
    fill_nth,
    first,
    noting,
    number_in,
    say,
    select,
)
from webrl.suites.arena.storefront import open_product
from webrl.suites.arena.templates import Draw, Entities, Instance, template
from webrl.suites.miniwob.experts.page import Page

_COMMENTS = (
    "Called back, they will send photos",
    "The spare part is ordered",
    "Please do not close this yet",
    "Same thing in the other warehouse",
    "Tested with three browsers",
    "It is on the list for Friday",
    "A customer has thanked us for the quick answer",
    "Two more reports by telephone",
)
_AISLES = tuple(f"{number}{letter}" for number in range(25, 60) for letter in "GHJK")
"""No shelf stands in one of these."""


def _one(tickets: tuple[Ticket, ...], rng: random.Random, holds: Callable[[Ticket], bool] = lambda _: True) -> Ticket:
    return rng.choice([ticket for ticket in tickets if holds(ticket)])


def _ticket(ticket: Ticket, column: str, value: str, **slots: str) -> Instance:
    query = f"SELECT {column} FROM ticket WHERE id = {ticket.number}"
    return Instance({"ticket": ticket.summary, **slots}, finds(query, value, "tracker"))


def _is_closed(ticket: Ticket, resolution: str) -> Eval:
    query = f"SELECT status || ' ' || resolution FROM ticket WHERE id = {ticket.number}"
    return finds(query, f"closed {resolution}", "tracker")


def _of_ticket(succeeds: Callable[[Ticket], Eval], holds: Callable[[Ticket], bool] = lambda _: True) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        ticket = _one(e.tickets, rng, holds)
        return Instance({"ticket": ticket.summary}, succeeds(ticket))

    return draw


def _count(e: Entities, rng: random.Random) -> Instance:
    plan = rng.choice(e.plans)
    return Instance({"component": plan[0], "milestone": plan[1]}, is_answered(str(_num_planned(plan))))


def _query(e: Entities, rng: random.Random) -> Instance:
    plan = rng.choice(e.plans)
    listed = leads_to(f"/query?component={plan[0]}&milestone={plan[1]}".replace(" ", "+"), "tracker")
    # Neither fewer, by another filter beside these, nor more.
    counted = shows_last("document.querySelector('#content h1').innerText", f"({_num_planned(plan)} match")
    both = {"eval_types": [*listed["eval_types"], *counted["eval_types"]], "program_html": counted["program_html"]}
    return Instance({"component": plan[0], "milestone": plan[1]}, listed | both)


def _num_planned(plan: tuple[str, str]) -> int:
    return sum((ticket.component, ticket.milestone) == plan for ticket in tracker().tickets)


def _of_shelf(succeeds: Callable[[ShelfPage], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        page = rng.choice(e.shelf_pages)
        return Instance({"category": page.category[-1]}, succeeds(page))

    return draw


def _priority(e: Entities, rng: random.Random) -> Instance:
    ticket = _one(e.tickets, rng)
    priority = rng.choice([name for name in PRIORITIES if name != ticket.priority])
    return _ticket(ticket, "priority", priority, priority=priority)


def _plan(e: Entities, rng: random.Random) -> Instance:
    ticket = _one(e.tickets, rng, lambda t: t.is_open)
    milestones = [m.name for m in tracker().milestones if not m.is_completed and m.name != ticket.milestone]
    milestone = rng.choice(milestones)
    return _ticket(ticket, "milestone", milestone, milestone=milestone)


def _assign(e: Entities, rng: random.Random) -> Instance:
    ticket = _one(e.tickets, rng, lambda t: t.is_open)
    person = rng.choice([person for person in tracker().team if person.login != ticket.owner])
    return _ticket(ticket, "owner", person.login, person=person.name)


def _close(e: Entities, rng: random.Random) -> Instance:
    ticket, resolution = _one(e.tickets, rng, lambda t: t.is_open), rng.choice(RESOLUTIONS)
    return Instance({"ticket": ticket.summary, "resolution": resolution}, _is_closed(ticket, resolution))


def _cc(e: Entities, rng: random.Random) -> Instance:
    ticket, person = _one(e.tickets, rng), rng.choice(tracker().team)
    return _ticket(ticket, "cc", person.email, email=person.email)


def _commented(ticket: Ticket, comment: str, author: str) -> Eval:
    query = f"""SELECT newvalue FROM ticket_change WHERE ticket = {ticket.number} AND field = 'comment'
        AND author = {quoted(author)} ORDER BY time DESC"""
    return finds(query, comment, "tracker")


def _comment(e: Entities, rng: random.Random) -> Instance:
    ticket, comment = _one(e.tickets, rng), rng.choice(_COMMENTS)
    return Instance({"ticket": ticket.summary, "comment": comment}, _commented(ticket, comment, "staff"))


def _my_comment(e: Entities, rng: random.Random) -> Instance:
    ticket, comment = _one(e.tickets, rng, lambda t: "." in t.reporter), rng.choice(_COMMENTS)
    evaluation = _commented(ticket, comment, ticket.reporter)
    return Instance({"ticket": ticket.summary, "comment": comment}, evaluation, f"{ticket.reporter}@example.com")


def reported(summary: str, component: str, reporter: str, priority: str = "major") -> Eval:
    """The one ticket of this summary."""
    query = f"""SELECT group_concat(component || ', ' || priority || ', ' || reporter) FROM ticket
        WHERE summary = {quoted(summary)}"""
    return finds(query, f"{component}, {priority}, {reporter}", "tracker")


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


def _new_milestone(e: Entities, rng: random.Random) -> Instance:
    name = rng.choice(e.names)
    return Instance({"name": name}, finds(f"SELECT count(*) FROM milestone WHERE name = {quoted(name)}", 1, "tracker"))


def _stock_record(ending: str, column: str) -> Draw:
    """What a ticket asks for in the dashboard is done, and the ticket is closed."""

    def is_done(ticket: Ticket) -> Eval:
        return finds_all(in_stock_record(ticket.upc, column, float(ticket.value)), _is_closed(ticket, "fixed"))

    return _of_ticket(is_done, lambda ticket: ticket.summary.endswith(ending))


def _order_ticket(e: Entities, rng: random.Random) -> Instance:
    orders = {order.number: order for order in e.orders if order.status in NEXT_STATUSES}
    ticket = _one(e.tickets, rng, lambda t: t.is_open and t.order in orders)
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


_COMMENT = "You may use WikiFormatting here."
"""Name of the field, by what stands below it."""
_OPTIONS = 2
"""Lists without a name that a filter has: how to compare, and with what."""


def find_ticket(summary: str) -> list[Step]:
    """Search for a ticket, and open its page."""

    def open_found(page: Page) -> str | None:
        links = (e for e in page.all("link") if e.name.startswith("#") and f": {summary} (" in e.name)
        return click_on(next(links, None))

    return [fill_nth("textbox", 0, summary), click("Search", "button"), open_found]


def _on_ticket(*steps: Step) -> Script:
    return lambda slots: [*find_ticket(slots["ticket"]), *steps]


def _change(*steps: Step) -> Script:
    return _on_ticket(click("Modify Ticket", "link"), *steps, click("Submit changes"))


def _action(name: str, option: str) -> list[Step]:
    """An action of the workflow, and what is chosen beside it."""

    def choose(page: Page) -> str | None:
        options = first(after(page, name, "radio"), "combobox")
        return f"select_option({options.bid!r}, {option!r})" if options else None

    return [click(name, "radio"), choose]


def _close_steps(slots: dict[str, str]) -> list[Step]:
    return _change(*_action("resolve", slots["resolution"]))(slots)


def _comment_steps(slots: dict[str, str]) -> list[Step]:
    return _on_ticket(fill(_COMMENT, slots["comment"]), click("Submit changes"))(slots)


def _query_steps(slots: dict[str, str]) -> list[Step]:
    def narrow(field: str, value: str) -> list[Step]:
        def choose(page: Page) -> str | None:
            lists = [e for e in after(page, field, "rowheader") if e.role == "combobox"]
            return f"select_option({lists[_OPTIONS - 1].bid!r}, {value!r})" if len(lists) >= _OPTIONS else None

        return [select("And", field), choose]

    return [
        click("VIEW TICKETS"),
        click("{3} All tickets by component"),
        click("Filters"),
        *narrow("Component", slots["component"]),
        *narrow("Milestone", slots["milestone"]),
        click("Update"),
    ]


def _matches(page: Page) -> str | None:
    return next((e.name for e in page.all("heading") if re.search(r"\(\d+ match", e.name)), None)


def _shelf(*steps: Step) -> Script:
    return lambda slots: [click(slots["category"], "link"), *steps]


def _new_aisle_steps(slots: dict[str, str]) -> list[Step]:
    def write(page: Page) -> str | None:
        field = next((e for e in page.all("textbox") if "||= Aisle =||" in e.value), None)
        if field is None:
            return None
        return fill_in(field, re.sub(r"(\|\|= Aisle =\|\| ).*?( \|\|)", rf"\g<1>{slots['value']}\2", field.value))

    return _shelf(click("Edit this page"), write, click("Submit changes"))(slots)


def new_ticket(slots: dict[str, str]) -> list[Step]:
    """Open a ticket, from any page of the tracker."""
    return [
        click("NEW TICKET"),
        fill("Summary:", slots["name"]),
        select("Component:", slots.get("component", "warehouse")),
        *([select("Priority:", slots["priority"])] if "priority" in slots else []),
        click("Create ticket"),
    ]


def _component_steps(slots: dict[str, str]) -> list[Step]:
    return [
        click("ADMIN"),
        click("Components"),
        fill("Name:", slots["name"]),
        select("Owner:", slots["login"]),
        click("Add"),
    ]


def _new_milestone_steps(slots: dict[str, str]) -> list[Step]:
    return [
        click("ROADMAP"),
        click("Add new milestone"),
        fill("Name:", slots["name"]),
        click("Add milestone"),
    ]


def _stock_record_steps(field: int, ending: str) -> Script:
    """Read in the ticket what to set, close it (as fixed, which is chosen already), and set it in the dashboard."""
    return lambda slots: [
        *find_ticket(slots["ticket"]),
        noting(_number_asked_for, click("Modify Ticket", "link")),
        click("resolve", "radio"),
        click("Submit changes"),
        click("DASHBOARD"),
        *set_stock_record(slots["ticket"].removesuffix(ending), field, slots.get("note", "")),
    ]


def _number_asked_for(page: Page) -> str | None:
    texts = (e.name for e in after(page, "Description", "heading") if e.role == "StaticText")
    numbers = (re.search(r"\d+(\.\d+)?", text) for text in texts)
    return next((number[0] for number in numbers if number), None)


def _order_ticket_steps(slots: dict[str, str]) -> list[Step]:
    to_tracker = [click("Return to site"), click("Tracker")]
    return [*find_order(slots), *set_status(slots["status"]), *to_tracker, *_close_steps(slots)]


def _wish_ticket_steps(slots: dict[str, str]) -> list[Step]:
    wish = [*open_product(slots["product"]), click("Add to wish list")]
    return [*wish, click("Tracker"), *new_ticket(slots)]


_template = partial(template, "tracker")

TRACKER = (
    _template(
        "owner",
        'Who owns the ticket "{ticket}"? Answer with the name alone.',
        'Find out to whom the ticket "{ticket}" is assigned. Say the name, nothing else.',
        draw=_of_ticket(lambda ticket: is_answered(tracker().names[ticket.owner])),
        script=_on_ticket(say(beside("Owned by:"))),
    ),
    _template(
        "milestone",
        'For which milestone is the ticket "{ticket}" planned? Answer with its name alone.',
        'Look up the milestone of the ticket "{ticket}". Say its name, nothing else.',
        draw=_of_ticket(lambda ticket: is_answered(ticket.milestone), lambda ticket: bool(ticket.milestone)),
        script=_on_ticket(say(beside("Milestone:"))),
        held_out=True,
    ),
    _template(
        "reporter",
        'Who reported the ticket "{ticket}"? Answer with the name alone.',
        'Find out who opened the ticket "{ticket}". Say the name, nothing else.',
        draw=_of_ticket(lambda t: is_answered(tracker().names[t.reporter]), lambda t: "." in t.reporter),
        script=_on_ticket(say(beside("Reported by:"))),
    ),
    _template(
        "count",
        'How many tickets, open or closed, of the component "{component}" are planned for the milestone "{milestone}"? '
        "Answer with the number alone.",
        'Count the tickets of the component "{component}" in the milestone "{milestone}", whatever their status. '
        "Say the number, nothing else.",
        draw=_count,
        script=lambda slots: [*_query_steps(slots), say(number_in(_matches))],
        held_out=True,
    ),
    _template(
        "aisle",
        'In which aisle does the shelf of "{category}" stand? Answer with the aisle alone, as the wiki writes it.',
        'Look up in the wiki in which aisle "{category}" is. Say the aisle, nothing else.',
        draw=_of_shelf(lambda page: is_answered(page.aisle)),
        script=_shelf(say(beside("Aisle"))),
    ),
    _template(
        "supplier",
        'Who supplies the shelf of "{category}"? Answer with the name alone, as the wiki writes it.',
        'Look up the supplier of "{category}" in the wiki. Say the name, nothing else.',
        draw=_of_shelf(lambda page: is_answered(page.supplier)),
        script=_shelf(say(beside("Supplier"))),
        held_out=True,
    ),
    _template(
        "open",
        'Open the ticket "{ticket}".',
        'Show me the page of the ticket "{ticket}".',
        draw=_of_ticket(lambda ticket: is_titled(f"#{ticket.number} (")),
        script=_on_ticket(),
    ),
    _template(
        "query",
        'List all tickets, open or closed, of the component "{component}" in the milestone "{milestone}" by a query.',
        'Make a query that shows the tickets of the component "{component}" in the milestone "{milestone}", whatever '
        "their status.",
        draw=_query,
        script=_query_steps,
    ),
    _template(
        "priority",
        'Change the priority of the ticket "{ticket}" to {priority}.',
        'The ticket "{ticket}" is of the priority {priority}: record that.',
        draw=_priority,
        script=lambda slots: _change(select("Priority:", slots["priority"]))(slots),
    ),
    _template(
        "plan",
        'Plan the ticket "{ticket}" for the milestone "{milestone}".',
        'Move the ticket "{ticket}" to the milestone "{milestone}".',
        draw=_plan,
        script=lambda slots: _change(select("Milestone:", slots["milestone"]))(slots),
        held_out=True,
    ),
    _template(
        "assign",
        'Reassign the ticket "{ticket}" to {person}.',
        '{person} shall take over the ticket "{ticket}": reassign it.',
        draw=_assign,
        script=lambda slots: _change(*_action("reassign", slots["person"]))(slots),
    ),
    _template(
        "close",
        'Close the ticket "{ticket}" as {resolution}.',
        'Resolve the ticket "{ticket}" as {resolution}.',
        draw=_close,
        script=_close_steps,
    ),
    _template(
        "cc",
        'Put {email} into the Cc of the ticket "{ticket}".',
        'Add {email} to those who get copies (Cc) of the ticket "{ticket}".',
        draw=_cc,
        script=lambda slots: _change(fill("Cc:", slots["email"]))(slots),
        held_out=True,
    ),
    _template(
        "comment",
        'Comment on the ticket "{ticket}": "{comment}"',
        'Write below the ticket "{ticket}": "{comment}"',
        draw=_comment,
        script=_comment_steps,
    ),
    _template(
        "my-comment",
        'Add to my ticket "{ticket}" the comment "{comment}"',
        'Write below the ticket "{ticket}", which is mine: "{comment}"',
        draw=_my_comment,
        script=_comment_steps,
        held_out=True,
    ),
    _template(
        "new-ticket",
        'Open a ticket "{name}" of the component "{component}" and the priority "{priority}".',
        'Create a ticket with the summary "{name}", component "{component}", priority "{priority}".',
        draw=_new_ticket,
        script=new_ticket,
    ),
    _template(
        "report",
        'Report "{name}" to the shop, in a ticket of the component "{component}".',
        'Open a ticket called "{name}" for the component "{component}".',
        draw=_report,
        script=new_ticket,
    ),
    _template(
        "new-aisle",
        'The shelf of "{category}" now stands in aisle {value}: correct its page in the wiki.',
        'Change the aisle on the wiki\'s page about "{category}" to {value}.',
        draw=_new_aisle,
        script=_new_aisle_steps,
    ),
    _template(
        "component",
        'Create the component "{name}" in the tracker, owned by "{login}".',
        'Add a component "{name}" to the tracker, whose owner is "{login}".',
        draw=_component,
        script=_component_steps,
    ),
    _template(
        "new-milestone",
        'Add the milestone "{name}" to the roadmap.',
        'Create a milestone called "{name}".',
        draw=_new_milestone,
        script=_new_milestone_steps,
        held_out=True,
    ),
    template(
        "tracker+shop_admin",
        "price-request",
        'Do in the dashboard what the ticket "{ticket}" asks for, and close it as fixed.',
        'Change the price as the ticket "{ticket}" says, and resolve the ticket as fixed.',
        draw=_stock_record(": new price", "price"),
        script=_stock_record_steps(PRICE, ": new price"),
    ),
    template(
        "tracker+shop_admin",
        "stocktake",
        'Correct the stock in the dashboard as the ticket "{ticket}" asks for, and close it as fixed.',
        'Do what the ticket "{ticket}" says about the number in stock, and resolve the ticket as fixed.',
        draw=_stock_record(": stocktake", "num_in_stock"),
        script=_stock_record_steps(IN_STOCK, ": stocktake"),
        held_out=True,
    ),
    template(
        "shop_admin+tracker",
        "order-ticket",
        'Change the status of order {number} to "{status}", and close the ticket "{ticket}" as {resolution}.',
        'Order {number} is now "{status}": record that, then resolve its ticket "{ticket}" as {resolution}.',
        draw=_order_ticket,
        script=_order_ticket_steps,
    ),
    template(
        "shop+tracker",
        "wish-ticket",
        'Put "{product}" on my wish list, and open a ticket "{name}" of the component "warehouse".',
        'I want "{product}" on my wish list, and the shop told, in a ticket of the component "warehouse": "{name}"',
        draw=_wish_ticket,
        script=_wish_ticket_steps,
        held_out=True,
    ),
)
