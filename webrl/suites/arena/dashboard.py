"""Tasks of the shop's dashboard: the staff look up orders and customers, and change what the shop sells.

First what each task is about and how its success is measured, then how it is done, then the table of both.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial

from webrl.arena.content import Customer, Order, Product, Review
from webrl.suites.arena.evals import Eval, answers, finds, is_answered, is_titled, leads_to, quoted
from webrl.suites.arena.script import (
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
from webrl.suites.arena.templates import Draw, Entities, Instance, template
from webrl.suites.miniwob.experts.page import Page

NEXT_STATUSES = {"Pending": ("Being processed", "Cancelled"), "Being processed": ("Complete", "Cancelled")}
"""What the dashboard can make of an order."""
_NOTES = (
    "Customer asked for a call before delivery",
    "Leave it with the neighbour",
    "Pack it as a present",
    "Hold it back until Monday",
    "Address confirmed by phone",
    "Send the invoice by post",
)
_HIDDEN = "SELECT group_concat(upc) FROM catalogue_product WHERE NOT is_public"
_INACTIVE = "SELECT group_concat(email) FROM auth_user WHERE NOT is_active"


def _of_order(succeeds: Callable[[Order], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        order = rng.choice(e.orders)
        return Instance({"number": order.number}, succeeds(order))

    return draw


def _of_customer(succeeds: Callable[[Customer], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        customer = rng.choice(e.customers)
        return Instance({"customer": customer.name}, succeeds(customer))

    return draw


def _of_product(succeeds: Callable[[Product], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        product = rng.choice(e.products)
        return Instance({"product": product.title}, succeeds(product))

    return draw


def _reviewed(e: Entities, rng: random.Random) -> tuple[Product, Review] | None:
    product, mine = rng.choice(e.products), {customer.email for customer in e.customers}
    reviews = [review for review in product.reviews if review.email in mine]
    return (product, rng.choice(reviews)) if reviews else None


def _review_score(e: Entities, rng: random.Random) -> Instance | None:
    found = _reviewed(e, rng)
    if found is None:
        return None
    product, review = found
    return Instance({"customer": review.author, "product": product.title}, is_answered(str(review.score)))


def _order_status(e: Entities, rng: random.Random) -> Instance:
    order = rng.choice([order for order in e.orders if order.status in NEXT_STATUSES])
    status = rng.choice(NEXT_STATUSES[order.status])
    return Instance({"number": order.number, "status": status}, in_status(order.number, status))


def in_status(number: str, status: str) -> Eval:
    """Success by an order's status."""
    return finds(f"SELECT status FROM order_order WHERE number = {quoted(number)}", status)


def _order_note(e: Entities, rng: random.Random) -> Instance:
    order, note = rng.choice(e.orders), rng.choice(_NOTES)
    query = f"""SELECT n.message FROM order_ordernote n JOIN order_order o ON o.id = n.order_id
        WHERE o.number = {quoted(order.number)} ORDER BY n.id DESC"""
    return Instance({"number": order.number, "note": note}, finds(query, note))


def _new_price(e: Entities, rng: random.Random) -> Instance:
    product = rng.choice(e.products)
    price = product.price + rng.randint(2, 40) + Decimal("0.25")
    return _stock_record(product, "price", str(price), float(price))


def _new_stock(e: Entities, rng: random.Random) -> Instance:
    product = rng.choice(e.products)
    number = product.stock + rng.randint(5, 90)
    return _stock_record(product, "num_in_stock", str(number), number)


def _threshold(e: Entities, rng: random.Random) -> Instance:
    product, number = rng.choice(e.products), rng.randint(2, 60)
    return _stock_record(product, "low_stock_threshold", str(number), number)


def _stock_record(product: Product, column: str, shown: str, value: float) -> Instance:
    return Instance({"product": product.title, "value": shown}, in_stock_record(product.upc, column, value))


def in_stock_record(upc: str, column: str, value: float) -> Eval:
    """Success by a column of a product's stock record."""
    query = f"""SELECT s.{column} FROM partner_stockrecord s JOIN catalogue_product p ON p.id = s.product_id
        WHERE p.upc = {quoted(upc)}"""
    return finds(query, value)


def _rename(e: Entities, rng: random.Random) -> Instance:
    product, name = rng.choice(e.products), rng.choice(e.names)
    query = f"SELECT title FROM catalogue_product WHERE upc = {quoted(product.upc)}"
    return Instance({"product": product.title, "name": name}, finds(query, name))


def _reject(e: Entities, rng: random.Random) -> Instance | None:
    found = _reviewed(e, rng)
    if found is None:
        return None
    product, review = found
    query = """SELECT group_concat(u.email || ' ' || p.upc) FROM reviews_productreview r
        JOIN auth_user u ON u.id = r.user_id JOIN catalogue_product p ON p.id = r.product_id WHERE r.status = 2"""
    return Instance(
        {"customer": review.author, "product": product.title}, finds(query, f"{review.email} {product.upc}")
    )


def _category(e: Entities, rng: random.Random) -> Instance:
    name, parent = rng.choice(e.names), rng.choice(e.shelves)[0]
    query = f"""SELECT parent.name FROM catalogue_category c JOIN catalogue_category parent
        ON parent.depth = c.depth - 1 AND parent.path = substr(c.path, 1, length(parent.path))
        WHERE c.name = {quoted(name)}"""
    return Instance({"name": name, "parent": parent}, finds(query, parent))


def _made(table: str, e: Entities, rng: random.Random) -> Instance:
    name = rng.choice(e.names)
    return Instance({"name": name}, finds(f"SELECT count(*) FROM {table} WHERE name = {quoted(name)}", 1))


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


def _reject_steps(slots: dict[str, str]) -> list[Step]:
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


_template = partial(template, "shop_admin")

DASHBOARD = (
    _template(
        "order-customer",
        "Who placed order {number}?",
        "Find out which customer order {number} is from.",
        draw=_of_order(lambda order: answers(order.customer)),
        script=_order(say(below("Name"))),
    ),
    _template(
        "order-total",
        "What is the total of order {number}?",
        "How much did the customer pay for order {number}?",
        draw=_of_order(lambda order: answers(f"${order.total}")),
        script=_order(say(below("Order Total"))),
        held_out=True,
    ),
    _template(
        "customer-email",
        "What is the e-mail address of our customer {customer}?",
        "Look up the e-mail address of {customer}.",
        draw=_of_customer(lambda customer: answers(customer.email)),
        script=_email,
    ),
    _template(
        "customer-city",
        "In which city does our customer {customer} live?",
        "Look up the city in the address of {customer}.",
        draw=_of_customer(lambda customer: answers(customer.city)),
        script=_city,
        held_out=True,
    ),
    _template(
        "review-score",
        'How many stars did {customer} give "{product}"? Answer with the number alone.',
        'Look up the score of the review of "{product}" by {customer}. Say the number, nothing else.',
        draw=_review_score,
        script=_score,
    ),
    _template(
        "sku",
        'Under which SKU do we keep "{product}" in stock?',
        'Look up the SKU of "{product}".',
        draw=_of_product(lambda product: answers(product.sku)),
        script=lambda slots: [*_product(slots), click("Stock and pricing"), say(below("SKU"))],
    ),
    _template(
        "open-order",
        "Open order {number} in the dashboard.",
        "Show me the details of order {number}.",
        draw=_of_order(lambda order: leads_to(f"/dashboard/orders/{order.number}/")),
        script=_order(),
    ),
    _template(
        "open-customer",
        "Open the page of our customer {customer} in the dashboard.",
        "Show me all that we know about the customer {customer}.",
        draw=_of_customer(lambda customer: is_titled(customer.email)),
        script=_open_customer,
        held_out=True,
    ),
    _template(
        "order-status",
        'Change the status of order {number} to "{status}".',
        'Order {number} is now "{status}": record that.',
        draw=_order_status,
        script=lambda slots: [*find_order(slots), *set_status(slots["status"])],
    ),
    _template(
        "order-note",
        'Add the note "{note}" to order {number}.',
        'Write down for order {number}: "{note}"',
        draw=_order_note,
        script=lambda slots: [
            *find_order(slots),
            click("Notes"),
            fill("Message *", slots["note"]),
            click("Save note"),
        ],
    ),
    _template(
        "new-price",
        'Change the price of "{product}" to {value}.',
        '"{product}" shall cost {value} from now on.',
        draw=_new_price,
        script=_stock(PRICE),
    ),
    _template(
        "new-stock",
        'We have counted {value} pieces of "{product}": correct the number in stock.',
        'Set the number in stock of "{product}" to {value}.',
        draw=_new_stock,
        script=_stock(IN_STOCK),
        held_out=True,
    ),
    _template(
        "threshold",
        'Set the low stock threshold of "{product}" to {value}.',
        'Warn us when fewer than {value} of "{product}" are left (low stock threshold).',
        draw=_threshold,
        script=_stock(_THRESHOLD),
    ),
    _template(
        "rename",
        'Change the title of "{product}" to "{name}".',
        'Rename the product "{product}" to "{name}".',
        draw=_rename,
        script=lambda slots: [*_product(slots), fill("Title", slots["name"]), click("Save")],
        held_out=True,
    ),
    _template(
        "hide",
        'Make "{product}" non-public, so that the shop does not show it.',
        'Take "{product}" out of the catalogue listings without deleting it.',
        draw=_of_product(lambda product: finds(_HIDDEN, product.upc)),
        script=lambda slots: [*_product(slots), click("Is public", "checkbox"), click("Save")],
    ),
    _template(
        "reject",
        'Reject the review of "{product}" by {customer}.',
        'Set the status of {customer}\'s review of "{product}" to rejected.',
        draw=_reject,
        script=_reject_steps,
    ),
    _template(
        "deactivate",
        "Make the account of {customer} inactive.",
        "Block the customer account of {customer} (make it inactive).",
        draw=_of_customer(lambda customer: finds(_INACTIVE, customer.email)),
        script=_deactivate,
        held_out=True,
    ),
    _template(
        "category",
        'Create the category "{name}" below "{parent}".',
        'Add a category called "{name}" to "{parent}".',
        draw=_category,
        script=lambda slots: [
            *_menu("Catalogue", "Categories"),
            click("Create new category"),
            fill("Name *", slots["name"]),
            click("-- root --", "combobox"),
            click(slots["parent"], "option"),
            click("Save"),
        ],
    ),
    _template(
        "range",
        'Create a product range called "{name}".',
        'We need a range "{name}"; create it.',
        draw=partial(_made, "offer_range"),
        script=_make("Catalogue", "Ranges", "Create new range"),
        held_out=True,
    ),
    _template(
        "partner",
        'Add "{name}" as a fulfilment partner.',
        'Create the partner "{name}".',
        draw=partial(_made, "partner_partner"),
        script=_make("Fulfilment", "Partners", "Create new partner"),
    ),
    _template(
        "option",
        'Create a product option called "{name}".',
        'Add the option "{name}" for products.',
        draw=partial(_made, "catalogue_option"),
        script=_make("Catalogue", "Options", "Create new Option"),
    ),
)
