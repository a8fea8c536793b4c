"""How the tasks of the shop's dashboard are done."""

from __future__ import annotations

from webrl.suites.arena.experts.script import (
    Script,
    Step,
    below,
    click,
    click_in_row,
    click_on,
    fill,
    fill_nth,
    number_in,
    row_with,
    say,
    text_below,
)
from webrl.suites.miniwob.experts.page import Page

IN_STOCK, _THRESHOLD, PRICE = range(3)
"""Fields of a stock record, by their place."""


_CITY = 2
"""Line of an address, after the name and the street."""


def _menu(menu: str, entry: str) -> list[Step]:
    return [click(menu, "button"), click(entry, "link")]


def _order(*steps: Step) -> Script:
    return lambda slots: [*find_order(slots), *steps]


def find_order(slots: dict[str, str]) -> list[Step]:
    """The search for a whole number leads to the order itself."""
    return [*_menu("Fulfilment", "Orders"), fill("Order number:", slots["number"]), click("Search")]


def _find_customer(slots: dict[str, str]) -> list[Step]:
    return [*_menu("Customers", "Customers"), fill("Name:", slots["customer"]), click("Search")]


def _open_customer(slots: dict[str, str]) -> list[Step]:
    return [*_find_customer(slots), click_in_row("link", slots["customer"])]


def _email(slots: dict[str, str]) -> list[Step]:
    def read(page: Page) -> str | None:
        return next((e.name for e in row_with(page, slots["customer"]) if "@" in e.name), None)

    return [*_find_customer(slots), say(read)]


def _city(slots: dict[str, str]) -> list[Step]:
    return [*_open_customer(slots), click("Addresses"), say(text_below("Addresses", _CITY))]


def _deactivate(slots: dict[str, str]) -> list[Step]:
    return [
        *_find_customer(slots),
        click_in_row("checkbox", slots["customer"]),
        click("Make inactive", "radio"),
        click("Go!"),
    ]


def _find_review(slots: dict[str, str]) -> list[Step]:
    return [*_menu("Content", "Reviews"), fill("Customer name:", slots["customer"]), click("Search")]


def _score(slots: dict[str, str]) -> list[Step]:
    def read(page: Page) -> str | None:
        row = row_with(page, slots["product"], slots["customer"])
        return next((e.name for e in row if " / 5" in e.name), None)

    return [*_find_review(slots), say(number_in(read))]


def _reject(slots: dict[str, str]) -> list[Step]:
    return [
        *_find_review(slots),
        click_in_row("link", slots["product"], slots["customer"]),
        click("Approved", "combobox"),
        click("Rejected", "option"),
        click("Save"),
    ]


def open_product(title: str) -> list[Step]:
    """Search for a product, and open its page."""
    return [*_menu("Catalogue", "Products"), fill("Product title:", title), click("Search"), click(title, "link")]


def _product(slots: dict[str, str]) -> list[Step]:
    return open_product(slots["product"])


def set_stock_record(title: str, field: int, value: str) -> list[Step]:
    """Of a product."""
    return [
        *open_product(title),
        click("Stock and pricing"),
        fill_nth("spinbutton", field, value),
        click("Save"),
    ]


def _stock(field: int) -> Script:
    return lambda slots: set_stock_record(slots["product"], field, slots["value"])


def set_status(status: str) -> list[Step]:
    """On an order's page."""

    def open_list(page: Page) -> str | None:
        shown = [e for e in page.all("combobox") if e.name in ("Being processed", "Complete")]
        return click_on(shown[-1] if shown else None)

    return [open_list, click(status, "option"), click("Change status")]


def _make(menu: str, entry: str, new: str) -> Script:
    return lambda slots: [*_menu(menu, entry), click(new), fill("Name *", slots["name"]), click("Save")]


SCRIPTS: dict[str, Script] = {
    "order-customer": _order(say(below("Name"))),
    "order-total": _order(say(below("Order Total"))),
    "customer-email": _email,
    "customer-city": _city,
    "review-score": _score,
    "sku": lambda slots: [*_product(slots), click("Stock and pricing"), say(below("SKU"))],
    "open-order": _order(),
    "open-customer": _open_customer,
    "order-status": lambda slots: [*find_order(slots), *set_status(slots["status"])],
    "order-note": lambda slots: [
        *find_order(slots),
        click("Notes"),
        fill("Message *", slots["note"]),
        click("Save note"),
    ],
    "new-price": _stock(PRICE),
    "new-stock": _stock(IN_STOCK),
    "threshold": _stock(_THRESHOLD),
    "rename": lambda slots: [*_product(slots), fill("Title", slots["name"]), click("Save")],
    "hide": lambda slots: [*_product(slots), click("Is public", "checkbox"), click("Save")],
    "reject": _reject,
    "deactivate": _deactivate,
    "category": lambda slots: [
        *_menu("Catalogue", "Categories"),
        click("Create new category"),
        fill("Name *", slots["name"]),
        click("-- root --", "combobox"),
        click(slots["parent"], "option"),
        click("Save"),
    ],
    "range": _make("Catalogue", "Ranges", "Create new range"),
    "partner": _make("Fulfilment", "Partners", "Create new partner"),
    "option": _make("Catalogue", "Options", "Create new Option"),
}
"""By template."""
