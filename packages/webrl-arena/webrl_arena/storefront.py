"""Tasks of the shop's front: a customer looks things up, goes to pages, fills a basket, and changes an account.

First what several tasks share and what draws their entities and success, then the table: each template's name and its
draw. `experts.yaml` says how it is done.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from webrl_arena.templates import (
    Draw,
    Entities,
    Eval,
    Instance,
    Template,
    about,
    answers,
    any_customer,
    finds,
    is_answered,
    leads_to,
    quoted,
    rows,
    shows,
)
from webrl_arena.world.content import Order, Product, Review, catalogue, load_words

_QUANTITIES = range(2, 7)
_WISHES = """wishlists_line l JOIN wishlists_wishlist w ON w.id = l.wishlist_id
    JOIN auth_user u ON u.id = w.owner_id JOIN catalogue_product p ON p.id = l.product_id"""
_ALERTS = """customer_productalert a JOIN auth_user u ON u.id = a.user_id
    JOIN catalogue_product p ON p.id = a.product_id"""


def _of_product(succeeds: Callable[[Product], Eval], holds: Callable[[Product], bool] = lambda _: True) -> Draw:
    return about(lambda e: [p for p in e.products if holds(p)], lambda p: {"product": p.title}, succeeds)


def _of_order(succeeds: Callable[[Order], Eval]) -> Draw:
    return about(lambda e: e.orders, lambda o: {"number": o.number}, succeeds, lambda o: o.email)


def _attribute(name: str) -> Draw:
    return _of_product(lambda product: is_answered(dict(product.attributes)[name]))


def _single_reviews(product: Product) -> list[Review]:
    """Return those whose title no other review of the product has."""
    titles = Counter(review.title for review in product.reviews)
    return [review for review in product.reviews if titles[review.title] == 1]


def _extreme_price(pick: Callable[..., Product], e: Entities, rng: random.Random) -> Instance | None:
    shelf = rng.choice(e.shelves)
    on_shelf = [p for p in catalogue().products if p.category == shelf]  # its page shows those of all splits
    best = pick(on_shelf, key=lambda p: p.price)
    if best.upc in e.spared or sum(p.price == best.price for p in on_shelf) > 1:
        return None
    return Instance({"category": shelf[-1], "parent": shelf[0]}, is_answered(best.title), any_customer(e, rng))


def _category_path(shelf: tuple[str, ...]) -> str:
    slugs = ["-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) for name in shelf]
    return f"/catalogue/category/{'/'.join(slugs)}_{catalogue().categories.index(shelf) + 1}/"


def search_for_kind(path: str) -> Draw:
    """Draw a kind of product that a site's search, at this path, is to look for."""
    return about(lambda e: e.kinds, lambda k: {"words": k}, lambda k: leads_to(f"{path}?q={k.replace(' ', '+')}"))


def in_basket(login: str, *lines: str) -> Eval:
    """Require exactly these lines (`QUANTITY UPC`) in a customer's basket."""
    tables = f"""basket_line l JOIN basket_basket b ON b.id = l.basket_id
        JOIN catalogue_product p ON p.id = l.product_id JOIN auth_user u ON u.id = b.owner_id
        WHERE b.status = 'Open' AND u.email = {quoted(login)}"""
    return rows("l.quantity || ' ' || p.upc", tables, lines)


def _num_reviews(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    if not product.reviews:
        return None
    return Instance({"product": product.title}, is_answered(str(len(product.reviews))), any_customer(e, rng))


def _reviewer(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    reviews = _single_reviews(product)
    if not reviews:
        return None
    review = rng.choice(reviews)
    return Instance({"product": product.title, "title": review.title}, answers(review.author), any_customer(e, rng))


def _basket(e: Entities, rng: random.Random) -> Instance:
    product, quantity = rng.choice([p for p in e.products if p.stock >= max(_QUANTITIES)]), rng.choice(_QUANTITIES)
    login = any_customer(e, rng)
    evaluation = in_basket(login, f"{quantity} {product.upc}")
    return Instance({"product": product.title, "quantity": str(quantity)}, evaluation, login)


def _basket_of_two(e: Entities, rng: random.Random) -> Instance:
    first, second = rng.sample([p for p in e.products if p.stock], 2)
    login = any_customer(e, rng)
    evaluation = in_basket(login, f"1 {first.upc}", f"1 {second.upc}")
    return Instance({"product": first.title, "other": second.title}, evaluation, login)


def _listed(tables: str, holds: Callable[[Product], bool], e: Entities, rng: random.Random) -> Instance:
    """Draw a product that is to be the only one (`p`) of a customer (`u`) in these tables."""
    product, login = rng.choice([p for p in e.products if holds(p)]), any_customer(e, rng)
    evaluation = rows("p.upc", f"{tables} WHERE u.email = {quoted(login)}", [product.upc])
    return Instance({"product": product.title}, evaluation, login)


def _helpful(e: Entities, rng: random.Random) -> Instance | None:
    product, login = rng.choice(e.products), any_customer(e, rng)
    reviews = [review for review in _single_reviews(product) if review.email != login]
    if not reviews:
        return None
    review = rng.choice(reviews)
    tables = f"""reviews_vote v JOIN reviews_productreview r ON r.id = v.review_id
        JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON u.id = v.user_id
        WHERE u.email = {quoted(login)}"""
    slots = {"product": product.title, "title": review.title}
    evaluation = rows("v.delta || ' ' || p.upc || ' ' || r.title", tables, [f"1 {product.upc} {review.title}"])
    return Instance(slots, evaluation, login)


def _review(e: Entities, rng: random.Random) -> Instance | None:
    product, login = rng.choice(e.products), any_customer(e, rng)
    if any(review.email == login for review in product.reviews):
        return None
    score, title, words = rng.randint(1, 5), rng.choice(e.names), load_words("tasks")
    body = f"I bought it for the {rng.choice(words.places)} and use it {rng.choice(words.times)}."
    query = f"""SELECT p.upc || ' ' || r.score || ' ' || r.title || ' ' || r.body FROM reviews_productreview r
        JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON u.id = r.user_id
        WHERE u.email = {quoted(login)} ORDER BY r.id DESC"""
    slots = {"product": product.title, "title": title, "score": str(score), "body": body}
    return Instance(slots, finds(query, f"{product.upc} {score} {title} {body}"), login)


def _address(e: Entities, rng: random.Random) -> Instance:
    login, lives = any_customer(e, rng), rng.choice(e.customers)
    first, last = rng.choice(e.names).split()[0], rng.choice(e.surnames)
    line = f"{rng.randint(1, 200)} {rng.choice(e.names).split()[0]} Street"
    slots = {"first": first, "last": last, "line": line, "city": lives.city, "postcode": lives.postcode}
    mine = f"address_useraddress a JOIN auth_user u ON u.id = a.user_id WHERE u.email = {quoted(login)}"
    wanted = {"first_name": first, "last_name": last, "line1": line, "line4": lives.city, "postcode": lives.postcode}
    same = " AND ".join(f"a.{column} = {quoted(value)}" for column, value in wanted.items())
    query = f"SELECT (SELECT count(*) FROM {mine}) || ' ' || (SELECT count(*) FROM {mine} AND {same})"
    return Instance(slots, finds(query, "2 1"), login)


def _surname(e: Entities, rng: random.Random) -> Instance:
    customer, last = rng.choice(e.customers), rng.choice(e.surnames)
    return Instance(
        {"last": last},
        shows("__SHOP__/accounts/profile/", "document.body.innerText", f"{customer.first_name} {last}"),
        customer.email,
    )


_task = partial(Template, "shop")
_held = partial(_task, held_out=True)
STOREFRONT: tuple[Template, ...] = (
    _task("price", _of_product(lambda p: answers(f"${p.price}"))),
    _task("weight", _attribute("Weight")),
    _task("origin", _attribute("Made in")),
    _held("guarantee", _attribute("Guarantee")),
    _task("stock", _of_product(lambda p: is_answered(str(p.stock)), lambda p: p.stock >= max(_QUANTITIES))),
    _task("num-reviews", _num_reviews),
    _held("reviewer", _reviewer),
    _task("cheapest", partial(_extreme_price, min)),
    _held("dearest", partial(_extreme_price, max)),
    _task("order-total", _of_order(lambda o: answers(f"${o.total}"))),
    _held("order-status", _of_order(lambda o: is_answered(o.status))),
    _task("open-product", _of_product(lambda p: leads_to(f"/catalogue/{p.slug}_{p.pk}/"))),
    _task(
        "open-category",
        about(
            lambda e: e.shelves, lambda s: {"category": s[-1], "parent": s[0]}, lambda s: leads_to(_category_path(s))
        ),
    ),
    _held("open-order", _of_order(lambda o: leads_to(f"/accounts/orders/{o.number}/"))),
    _task("search", search_for_kind("/search/")),
    _task("basket", _basket),
    _held("basket-of-two", _basket_of_two),
    _task("wish", partial(_listed, _WISHES, lambda _: True)),
    _held("alert", partial(_listed, _ALERTS, lambda p: not p.stock)),
    _task("helpful", _helpful),
    _task("review", _review),
    _task("address", _address),
    _held("surname", _surname),
)
