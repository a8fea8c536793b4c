"""Tasks of the shop's front: a customer looks things up, goes to pages, fills a basket, and changes an account.

First what several tasks share, then each template: its words, its script, and what draws its entities and success.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from webrl.suites.miniwob.experts.page import Page
from webrl_arena.script import (
    Slots,
    Step,
    after,
    beside,
    click,
    click_after,
    click_on,
    fill,
    fill_nth,
    first,
    name_of,
    number_in,
    say,
    select,
    text_below,
)
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
    template,
)
from webrl_arena.world.content import Order, Product, Review, catalogue, load_words

_QUANTITIES = range(2, 7)


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


def _is_plenty(product: Product) -> bool:
    """Whether there are enough pieces for any quantity that is asked for."""
    return product.stock >= max(_QUANTITIES)


def in_basket(login: str, *lines: str) -> Eval:
    """Require exactly these lines (`QUANTITY UPC`) in a customer's basket."""
    tables = f"""basket_line l JOIN basket_basket b ON b.id = l.basket_id
        JOIN catalogue_product p ON p.id = l.product_id JOIN auth_user u ON u.id = b.owner_id
        WHERE b.status = 'Open' AND u.email = {quoted(login)}"""
    return rows("l.quantity || ' ' || p.upc", tables, lines)


def open_product(product: str) -> list[Step]:
    """Search for a product, and open its page."""
    return [fill("Search", product), click("Search", "button"), click(product, "link")]


def _by_price(order: str) -> list[Step]:
    def first_product(page: Page, _: Slots) -> str | None:
        return name_of(first(after(page, "", "article"), "link"))

    return [click("{category}", "link"), select("Sort by", order), say(first_product)]


def _all_reviews(page: Page, _: Slots) -> str | None:
    """Open the page of all reviews: the product's own shows the first three alone."""
    endings = ("customer review", "customer reviews")
    return click_on(next((e for e in page.all("link") if e.name.endswith(endings)), None))


def _author(page: Page, slots: Slots) -> str | None:
    rest = after(page, slots["title"], "link")
    start = next((i for i, e in enumerate(rest) if e.role == "strong"), len(rest))
    return name_of(first(rest[start:], "StaticText"))


_PRODUCT = open_product("{product}")
OWN_ORDER = [
    click("Account"),
    click("Order History"),
    fill("Order number", "{number}"),
    click("Filter results"),  # a whole number leads to the order itself
]
"""Opens the order `{number}` in the customer's account."""
STOREFRONT: list[Template] = []
_task = partial(template, STOREFRONT, "shop")

_task(
    "price",
    'What is the price of "{product}"?',
    'How much does "{product}" cost?',
    'Tell me what the shop asks for "{product}".',
    script=[*_PRODUCT, say(beside("Price (incl. tax)"))],
)(_of_product(lambda product: answers(f"${product.price}")))

_task(
    "weight",
    'How heavy is "{product}"? Answer with the weight alone, as its page writes it.',
    'What is the weight of "{product}"? Copy it from the page, nothing else.',
    script=[*_PRODUCT, say(beside("Weight"))],
)(_attribute("Weight"))

_task(
    "origin",
    'In which country is "{product}" made? Answer with its name alone.',
    'Where does "{product}" come from? Name the country, nothing else.',
    script=[*_PRODUCT, say(beside("Made in"))],
)(_attribute("Made in"))

_task(
    "guarantee",
    'For how long is "{product}" guaranteed? Answer as its page writes it.',
    'How long is the guarantee of "{product}"? Copy it from the page, nothing else.',
    script=[*_PRODUCT, say(beside("Guarantee"))],
    held_out=True,
)(_attribute("Guarantee"))

_task(
    "stock",
    'How many pieces of "{product}" are available? Answer with the number alone.',
    'How many of "{product}" does the shop have in stock? Say the number, nothing else.',
    script=[*_PRODUCT, say(number_in(beside("Availability")))],
)(_of_product(lambda product: is_answered(str(product.stock)), _is_plenty))


@_task(
    "num-reviews",
    'How many customers have reviewed "{product}"? Answer with the number alone.',
    'Count the reviews of "{product}". Say the number, nothing else.',
    script=[*_PRODUCT, say(beside("Number of reviews"))],
)
def _num_reviews(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    if not product.reviews:
        return None
    return Instance({"product": product.title}, is_answered(str(len(product.reviews))), any_customer(e, rng))


@_task(
    "reviewer",
    'Who wrote the review "{title}" of "{product}"?',
    'Find the name of the customer whose review of "{product}" is called "{title}".',
    script=[*_PRODUCT, _all_reviews, say(_author)],
    held_out=True,
)
def _reviewer(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    reviews = _single_reviews(product)
    if not reviews:
        return None
    review = rng.choice(reviews)
    return Instance({"product": product.title, "title": review.title}, answers(review.author), any_customer(e, rng))


_task(
    "cheapest",
    'Which product in "{category}" (below "{parent}") is the cheapest? Answer with its title alone.',
    'Name the product with the lowest price in the category "{category}" of "{parent}", nothing else.',
    script=_by_price("Price low to high"),
)(partial(_extreme_price, min))

_task(
    "dearest",
    'Which product in "{category}" (below "{parent}") is the most expensive? Answer with its title alone.',
    'Name the product with the highest price in the category "{category}" of "{parent}", nothing else.',
    script=_by_price("Price high to low"),
    held_out=True,
)(partial(_extreme_price, max))

_task(
    "order-total",
    "What did I pay in total for my order {number}?",
    "Tell me the order total of my order {number}, shipping included.",
    script=[*OWN_ORDER, say(beside("Order total"))],
)(_of_order(lambda order: answers(f"${order.total}")))

_task(
    "order-status",
    "What is the status of my order {number}? Answer with the status alone.",
    "How far is my order {number}? Say its status, nothing else.",
    script=[*OWN_ORDER, say(text_below("Status"))],
    held_out=True,
)(_of_order(lambda order: is_answered(order.status)))

_task("open-product", 'Open the page of "{product}".', 'Show me "{product}" in the shop.', script=_PRODUCT)(
    _of_product(lambda product: leads_to(f"/catalogue/{product.slug}_{product.pk}/"))
)

_task(
    "open-category",
    'Show all products of the category "{category}" below "{parent}".',
    'Go to "{category}" in "{parent}".',
    script=[click("{category}", "link")],
)(
    about(
        lambda e: e.shelves,
        lambda shelf: {"category": shelf[-1], "parent": shelf[0]},
        lambda shelf: leads_to(_category_path(shelf)),
    )
)

_task(
    "open-order", "Open my order {number}.", "Show the details of my order {number}.", script=OWN_ORDER, held_out=True
)(_of_order(lambda order: leads_to(f"/accounts/orders/{order.number}/")))

_task(
    "search",
    'Search the shop for "{words}".',
    'Use the shop\'s search to find "{words}".',
    script=[fill("Search", "{words}"), click("Search", "button")],
)(search_for_kind("/search/"))


@_task(
    "basket",
    'Put {quantity} of "{product}" into my basket.',
    'Add "{product}" to the basket, {quantity} pieces.',
    script=[
        *_PRODUCT,
        click("Add to basket"),
        click("View basket"),
        fill_nth("spinbutton", 0, "{quantity}"),
        click("Update"),
    ],
)
def _basket(e: Entities, rng: random.Random) -> Instance:
    product, quantity = rng.choice([p for p in e.products if _is_plenty(p)]), rng.choice(_QUANTITIES)
    login = any_customer(e, rng)
    evaluation = in_basket(login, f"{quantity} {product.upc}")
    return Instance({"product": product.title, "quantity": str(quantity)}, evaluation, login)


@_task(
    "basket-of-two",
    'Add one "{product}" and one "{other}" to my basket.',
    'I need "{product}" and "{other}"; put one of each into the basket.',
    script=[*_PRODUCT, click("Add to basket"), *open_product("{other}"), click("Add to basket")],
    held_out=True,
)
def _basket_of_two(e: Entities, rng: random.Random) -> Instance:
    first, second = rng.sample([p for p in e.products if p.stock], 2)
    login = any_customer(e, rng)
    evaluation = in_basket(login, f"1 {first.upc}", f"1 {second.upc}")
    return Instance({"product": first.title, "other": second.title}, evaluation, login)


@_task(
    "wish",
    'Put "{product}" on my wish list.',
    'Remember "{product}" for me on a wish list.',
    script=[*_PRODUCT, click("Add to wish list")],
)
def _wish(e: Entities, rng: random.Random) -> Instance:
    product, login = rng.choice(e.products), any_customer(e, rng)
    tables = f"""wishlists_line l JOIN wishlists_wishlist w ON w.id = l.wishlist_id
        JOIN auth_user u ON u.id = w.owner_id JOIN catalogue_product p ON p.id = l.product_id
        WHERE u.email = {quoted(login)}"""
    return Instance({"product": product.title}, rows("p.upc", tables, [product.upc]), login)


@_task(
    "alert",
    'Have the shop notify me when "{product}" is available again.',
    'Set a stock alert for "{product}".',
    script=[*_PRODUCT, click("Notify me")],
    held_out=True,
)
def _alert(e: Entities, rng: random.Random) -> Instance:
    product, login = rng.choice([p for p in e.products if not p.stock]), any_customer(e, rng)
    tables = f"""customer_productalert a JOIN auth_user u ON u.id = a.user_id
        JOIN catalogue_product p ON p.id = a.product_id WHERE u.email = {quoted(login)}"""
    return Instance({"product": product.title}, rows("p.upc", tables, [product.upc]), login)


@_task(
    "helpful",
    'Mark the review "{title}" of "{product}" as helpful.',
    'Vote that the review of "{product}" titled "{title}" was helpful.',
    script=[*_PRODUCT, _all_reviews, click_after("{title}", "Yes", "button")],
)
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


@_task(
    "review",
    'Review "{product}": title "{title}", {score} of 5 stars, text "{body}"',
    'Write a review of "{product}" with {score} stars, titled "{title}", that says "{body}"',
    script=[
        *_PRODUCT,
        click("Write a review"),
        fill("Title *", "{title}"),
        select("Score *", "{score}"),
        fill("Body *", "{body}"),
        click("Save review"),
    ],
)
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


@_task(
    "address",
    "Add an address in the United States to my address book: {first} {last}, {line}, {city}, {postcode}.",
    "I also live at {line}, {city}, {postcode}, United States, as {first} {last}: save that address.",
    script=[
        click("Account"),
        click("Address Book"),
        click("Add a new address"),
        fill("First name *", "{first}"),
        fill("Last name *", "{last}"),
        fill("First line of address *", "{line}"),
        fill("City *", "{city}"),
        fill("Post/Zip-code *", "{postcode}"),
        select("Country *", "United States of America"),
        click("Save"),
    ],
)
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


@_task(
    "surname",
    'Change my last name to "{last}" in my profile.',
    'I have married: my last name is "{last}" now. Correct my profile.',
    script=[click("Account"), click("Edit profile"), fill("Last name", "{last}"), click("Save")],
    held_out=True,
)
def _surname(e: Entities, rng: random.Random) -> Instance:
    customer, last = rng.choice(e.customers), rng.choice(e.surnames)
    return Instance({"last": last}, shows("/accounts/profile/", f"{customer.first_name} {last}"), customer.email)
