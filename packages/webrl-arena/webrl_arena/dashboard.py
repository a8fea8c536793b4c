"""Tasks of the shop's dashboard: the staff look up orders and customers, and change what the shop sells.

First what several tasks share and what draws their entities and success, then the table: each template's name and its
draw. `experts.yaml` says how it is done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from functools import partial

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
    _task("order-customer", _of_order(lambda o: answers(o.customer))),
    _held("order-total", _of_order(lambda o: answers(f"${o.total}"))),
    _task("customer-email", _of_customer(lambda c: answers(c.email))),
    _held("customer-city", _of_customer(lambda c: answers(c.city))),
    _task("review-score", _of_review(lambda _, review: is_answered(str(review.score)))),
    _task("sku", _of_product(lambda p: answers(p.sku))),
    _task("open-order", _of_order(lambda o: leads_to(f"/dashboard/orders/{o.number}/"))),
    _held("open-customer", _of_customer(lambda c: is_titled(c.email))),
    _task("order-status", _order_status),
    _task("order-note", _order_note),
    _task(
        "new-price", _stock_record("price", lambda product, rng: product.price + rng.randint(2, 40) + Decimal("0.25"))
    ),
    _held("new-stock", _stock_record("num_in_stock", lambda product, rng: product.stock + rng.randint(5, 90))),
    _task("threshold", _stock_record("low_stock_threshold", lambda _, rng: rng.randint(2, 60))),
    _held("rename", _rename),
    _task("hide", _of_product(lambda p: finds(_HIDDEN, p.upc))),
    _task("reject", _of_review(lambda product, review: finds(_REJECTED, f"{review.email} {product.upc}"))),
    _held("deactivate", _of_customer(lambda c: finds(_INACTIVE, c.email))),
    _task("category", _category),
    _held("range", made("offer_range")),
    _task("partner", made("partner_partner")),
    _task("option", made("catalogue_option")),
)
