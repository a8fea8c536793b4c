"""How the tasks of the tracker are done, and those that continue in the shop."""

from __future__ import annotations

import re

from webrl.suites.arena.experts.dashboard import IN_STOCK, PRICE, find_order, set_status, set_stock_record
from webrl.suites.arena.experts.script import (
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
from webrl.suites.arena.experts.storefront import open_product
from webrl.suites.miniwob.experts.page import Page

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
    """An action of the workflow, and what is chosen with it."""

    def choose(page: Page) -> str | None:
        options = first(after(page, name, "radio"), "combobox")
        return f"select_option({options.bid!r}, {option!r})" if options else None

    return [click(name, "radio"), choose]


def _close(slots: dict[str, str]) -> list[Step]:
    return _change(*_action("resolve", slots["resolution"]))(slots)


def _comment(slots: dict[str, str]) -> list[Step]:
    return _on_ticket(fill(_COMMENT, slots["comment"]), click("Submit changes"))(slots)


def _query(slots: dict[str, str]) -> list[Step]:
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


def _new_aisle(slots: dict[str, str]) -> list[Step]:
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


def _component(slots: dict[str, str]) -> list[Step]:
    return [
        click("ADMIN"),
        click("Components"),
        fill("Name:", slots["name"]),
        select("Owner:", slots["login"]),
        click("Add"),
    ]


def _new_milestone(slots: dict[str, str]) -> list[Step]:
    return [
        click("ROADMAP"),
        click("Add new milestone"),
        fill("Name:", slots["name"]),
        click("Add milestone"),
    ]


def _stock_record(field: int, ending: str) -> Script:
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


def _order_ticket(slots: dict[str, str]) -> list[Step]:
    to_tracker = [click("Return to site"), click("Tracker")]
    return [*find_order(slots), *set_status(slots["status"]), *to_tracker, *_close(slots)]


def _wish_ticket(slots: dict[str, str]) -> list[Step]:
    wish = [*open_product(slots["product"]), click("Add to wish list")]
    return [*wish, click("Tracker"), *new_ticket(slots)]


SCRIPTS: dict[str, Script] = {
    "owner": _on_ticket(say(beside("Owned by:"))),
    "milestone": _on_ticket(say(beside("Milestone:"))),
    "reporter": _on_ticket(say(beside("Reported by:"))),
    "count": lambda slots: [*_query(slots), say(number_in(_matches))],
    "aisle": _shelf(say(beside("Aisle"))),
    "supplier": _shelf(say(beside("Supplier"))),
    "open": _on_ticket(),
    "query": _query,
    "priority": lambda slots: _change(select("Priority:", slots["priority"]))(slots),
    "plan": lambda slots: _change(select("Milestone:", slots["milestone"]))(slots),
    "assign": lambda slots: _change(*_action("reassign", slots["person"]))(slots),
    "close": _close,
    "cc": lambda slots: _change(fill("Cc:", slots["email"]))(slots),
    "comment": _comment,
    "my-comment": _comment,
    "new-ticket": new_ticket,
    "report": new_ticket,
    "new-aisle": _new_aisle,
    "component": _component,
    "new-milestone": _new_milestone,
    "price-request": _stock_record(PRICE, ": new price"),
    "stocktake": _stock_record(IN_STOCK, ": stocktake"),
    "order-ticket": _order_ticket,
    "wish-ticket": _wish_ticket,
}
"""By template."""
