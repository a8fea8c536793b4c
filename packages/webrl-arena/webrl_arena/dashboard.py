"""Tasks of the shop's dashboard: the staff look up orders and customers, and change what the shop sells.

First what several tasks share and what draws their entities and success, then the table: each template's name, its
draw, and how it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial

from webrl.suites.miniwob.experts.page import Page
from webrl_arena.script import (
    Read,
    Slots,
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
from webrl_arena.templates import (
    STAFF,
    Draw,
    Entities,
    Eval,
    Instance,
    Template,
    about,
    answers,
    finds,
    is_answered,
    is_titled,
    leads_to,
    quoted,
)
from webrl_arena.world.content import Customer, Order, Product, Review, load_words

NEXT_STATUSES = {"Pending": ("Being processed", "Cancelled"), "Being processed": ("Complete", "Cancelled")}
"""What the dashboard can make of an order."""
_HIDDEN = "SELECT group_concat(upc) FROM catalogue_product WHERE NOT is_public"
_INACTIVE = "SELECT group_concat(email) FROM auth_user WHERE NOT is_active"
_REJECTED = """SELECT group_concat(u.email || ' ' || p.upc) FROM reviews_productreview r
    JOIN auth_user u ON u.id = r.user_id JOIN catalogue_product p ON p.id = r.product_id WHERE r.status = 2"""
IN_STOCK, THRESHOLD, PRICE = range(3)
"""Fields of a stock record, by their place."""


def _of_order(succeeds: Callable[[Order], Eval]) -> Draw:
    return about(lambda e: e.orders, lambda o: {"number": o.number}, succeeds, lambda _: STAFF)


def _of_customer(succeeds: Callable[[Customer], Eval]) -> Draw:
    return about(lambda e: e.customers, lambda c: {"customer": c.name}, succeeds, lambda _: STAFF)


def _of_product(succeeds: Callable[[Product], Eval]) -> Draw:
    return about(lambda e: e.products, lambda p: {"product": p.title}, succeeds, lambda _: STAFF)


def _of_review(succeeds: Callable[[Product, Review], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance | None:
        product, mine = rng.choice(e.products), {customer.email for customer in e.customers}
        reviews = [review for review in product.reviews if review.email in mine]
        if not reviews:
            return None
        review = rng.choice(reviews)
        return Instance({"customer": review.author, "product": product.title}, succeeds(product, review))

    return draw


def in_status(number: str, status: str) -> Eval:
    """Require an order's status."""
    return finds(f"SELECT status FROM order_order WHERE number = {quoted(number)}", status)


def _stock_record(column: str, new_value: Callable[[Product, random.Random], Decimal | int]) -> Draw:
    """Draw a product, and what a column of its stock record is to become."""

    def draw(e: Entities, rng: random.Random) -> Instance:
        product = rng.choice(e.products)
        value = new_value(product, rng)
        number = float(value) if isinstance(value, Decimal) else value
        return Instance({"product": product.title, "value": str(value)}, in_stock_record(product.upc, column, number))

    return draw


def in_stock_record(upc: str, column: str, value: float) -> Eval:
    """Require a value in a column of a product's stock record."""
    query = f"""SELECT s.{column} FROM partner_stockrecord s JOIN catalogue_product p ON p.id = s.product_id
        WHERE p.upc = {quoted(upc)}"""
    return finds(query, value)


def made(table: str, site: str = "shop") -> Draw:
    """Draw a name that a new row of a table is to have."""
    query = f"SELECT count(*) FROM {table} WHERE name = "
    return about(lambda e: e.names, lambda n: {"name": n}, lambda n: finds(query + quoted(n), 1, site), lambda _: STAFF)


def _menu(menu: str, entry: str) -> list[Step]:
    return [click(menu, "button"), click(entry, "link")]


def set_status(status: str) -> list[Step]:
    """Change the status on an order's page."""
    return [_open_statuses, click(status, "option"), click("Change status")]


def _open_statuses(page: Page, _: Slots) -> str | None:
    shown = [e for e in page.all("combobox") if e.name in ("Being processed", "Complete")]
    return click_on(shown[-1] if shown else None)


def set_stock_record(title: str, field: int, value: str) -> list[Step]:
    """Change a field of a product's stock record."""
    return [*_open_product(title), click("Stock and pricing"), fill_nth("spinbutton", field, value), click("Save")]


def _open_product(title: str) -> list[Step]:
    return [*_menu("Catalogue", "Products"), fill("Product title:", title), click("Search"), click(title, "link")]


def _cell(part: str, *slots_of_row: str) -> Read:
    """Read the cell that holds a text, in the row that has these slots."""
    return lambda page, slots: next(
        (e.name for e in row_with(page, *(slots[name] for name in slots_of_row)) if part in e.name), None
    )


def _make(menu: str, entry: str, new: str) -> list[Step]:
    return [*_menu(menu, entry), click(new), fill("Name *", "{name}"), click("Save")]


FIND_ORDER = [*_menu("Fulfilment", "Orders"), fill("Order number:", "{number}"), click("Search")]
"""Searches for the whole number of an order, which leads to the order itself."""
_PRODUCT = _open_product("{product}")
_CUSTOMERS = [*_menu("Customers", "Customers"), fill("Name:", "{customer}"), click("Search")]
_CUSTOMER = [*_CUSTOMERS, click_in_row("link", "{customer}")]
_REVIEWS = [*_menu("Content", "Reviews"), fill("Customer name:", "{customer}"), click("Search")]


def _order_status(e: Entities, rng: random.Random) -> Instance:
    order = rng.choice([order for order in e.orders if order.status in NEXT_STATUSES])
    status = rng.choice(NEXT_STATUSES[order.status])
    return Instance({"number": order.number, "status": status}, in_status(order.number, status))


def _order_note(e: Entities, rng: random.Random) -> Instance:
    order, note = rng.choice(e.orders), rng.choice(load_words("tasks").notes)
    query = f"""SELECT n.message FROM order_ordernote n JOIN order_order o ON o.id = n.order_id
        WHERE o.number = {quoted(order.number)} ORDER BY n.id DESC"""
    return Instance({"number": order.number, "text": note}, finds(query, note))


def _rename(e: Entities, rng: random.Random) -> Instance:
    product, name = rng.choice(e.products), rng.choice(e.names)
    query = f"SELECT title FROM catalogue_product WHERE upc = {quoted(product.upc)}"
    return Instance({"product": product.title, "name": name}, finds(query, name))


def _category(e: Entities, rng: random.Random) -> Instance:
    name, parent = rng.choice(e.names), rng.choice(e.shelves)[0]
    query = f"""SELECT parent.name FROM catalogue_category c JOIN catalogue_category parent
        ON parent.depth = c.depth - 1 AND parent.path = substr(c.path, 1, length(parent.path))
        WHERE c.name = {quoted(name)}"""
    return Instance({"name": name, "parent": parent}, finds(query, parent))


_task = partial(Template, "shop_admin")
_held = partial(_task, held_out=True)
DASHBOARD: tuple[Template, ...] = (
    _task("order-customer", _of_order(lambda o: answers(o.customer)), [*FIND_ORDER, say(below("Name"))]),
    _held("order-total", _of_order(lambda o: answers(f"${o.total}")), [*FIND_ORDER, say(below("Order Total"))]),
    _task("customer-email", _of_customer(lambda c: answers(c.email)), [*_CUSTOMERS, say(_cell("@", "customer"))]),
    _held(
        "customer-city",
        _of_customer(lambda c: answers(c.city)),
        [*_CUSTOMER, click("Addresses"), say(text_below("Addresses", 2))],
    ),
    _task(
        "review-score",
        _of_review(lambda _, review: is_answered(str(review.score))),
        [*_REVIEWS, say(number_in(_cell(" / 5", "product", "customer")))],
    ),
    _task("sku", _of_product(lambda p: answers(p.sku)), [*_PRODUCT, click("Stock and pricing"), say(below("SKU"))]),
    _task("open-order", _of_order(lambda o: leads_to(f"/dashboard/orders/{o.number}/")), FIND_ORDER),
    _held("open-customer", _of_customer(lambda c: is_titled(c.email)), _CUSTOMER),
    _task("order-status", _order_status, [*FIND_ORDER, *set_status("{status}")]),
    _task("order-note", _order_note, [*FIND_ORDER, click("Notes"), fill("Message *", "{text}"), click("Save note")]),
    _task(
        "new-price",
        _stock_record("price", lambda product, rng: product.price + rng.randint(2, 40) + Decimal("0.25")),
        set_stock_record("{product}", PRICE, "{value}"),
    ),
    _held(
        "new-stock",
        _stock_record("num_in_stock", lambda product, rng: product.stock + rng.randint(5, 90)),
        set_stock_record("{product}", IN_STOCK, "{value}"),
    ),
    _task(
        "threshold",
        _stock_record("low_stock_threshold", lambda _, rng: rng.randint(2, 60)),
        set_stock_record("{product}", THRESHOLD, "{value}"),
    ),
    _held("rename", _rename, [*_PRODUCT, fill("Title", "{name}"), click("Save")]),
    _task(
        "hide", _of_product(lambda p: finds(_HIDDEN, p.upc)), [*_PRODUCT, click("Is public", "checkbox"), click("Save")]
    ),
    _task(
        "reject",
        _of_review(lambda product, review: finds(_REJECTED, f"{review.email} {product.upc}")),
        [
            *_REVIEWS,
            click_in_row("link", "{product}", "{customer}"),
            click("Approved", "combobox"),
            click("Rejected", "option"),
            click("Save"),
        ],
    ),
    _held(
        "deactivate",
        _of_customer(lambda c: finds(_INACTIVE, c.email)),
        [*_CUSTOMERS, click_in_row("checkbox", "{customer}"), click("Make inactive", "radio"), click("Go!")],
    ),
    _task(
        "category",
        _category,
        [
            *_menu("Catalogue", "Categories"),
            click("Create new category"),
            fill("Name *", "{name}"),
            click("-- root --", "combobox"),
            click("{parent}", "option"),
            click("Save"),
        ],
    ),
    _held("range", made("offer_range"), _make("Catalogue", "Ranges", "Create new range")),
    _task("partner", made("partner_partner"), _make("Fulfilment", "Partners", "Create new partner")),
    _task("option", made("catalogue_option"), _make("Catalogue", "Options", "Create new Option")),
)
