"""Tasks of the shop's front: a customer looks things up, goes to pages, fills a basket, and changes an account.

First what each task is about and how its success is measured, then how it is done, then the table of both.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

from webrl.arena.content import Customer, Order, Product, catalogue
from webrl.suites.arena.evals import Eval, answers, finds, is_answered, leads_to, quoted, rows, shows
from webrl.suites.arena.script import (
    Script,
    Step,
    after,
    beside,
    click,
    click_after,
    click_on,
    fill,
    fill_nth,
    first,
    number_in,
    say,
    select,
    text_below,
)
from webrl.suites.arena.templates import Draw, Entities, Instance, template
from webrl.suites.miniwob.experts.page import Page

_QUANTITIES = range(2, 7)


def _of_product(succeeds: Callable[[Product], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        product = rng.choice(e.products)
        return _about(e, rng, product, succeeds(product))

    return draw


def _attribute(name: str) -> Draw:
    return _of_product(lambda product: is_answered(dict(product.attributes)[name]))


def _stock(e: Entities, rng: random.Random) -> Instance:
    product = _sold(e, rng)
    return _about(e, rng, product, is_answered(str(product.stock)))


def _num_reviews(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    return _about(e, rng, product, is_answered(str(len(product.reviews)))) if product.reviews else None


def _reviewer(e: Entities, rng: random.Random) -> Instance | None:
    product = rng.choice(e.products)
    titles = Counter(review.title for review in product.reviews)
    single = [review for review in product.reviews if titles[review.title] == 1]
    if not single:
        return None
    review = rng.choice(single)
    return _about(e, rng, product, answers(review.author), title=review.title)


def _extreme_price(cheapest: bool, e: Entities, rng: random.Random) -> Instance | None:
    shelf = rng.choice(e.shelves)
    pick = min if cheapest else max
    on_shelf = [p for p in catalogue().products if p.category == shelf]  # its page shows those of all splits
    best = pick(on_shelf, key=lambda p: p.price)
    if best.upc in e.spared or sum(p.price == best.price for p in on_shelf) > 1:
        return None
    return Instance({"category": shelf[-1], "parent": shelf[0]}, is_answered(best.title), rng.choice(e.customers).email)


def _my_order(succeeds: Callable[[Order], Eval]) -> Draw:
    def draw(e: Entities, rng: random.Random) -> Instance:
        order = rng.choice(e.orders)
        return Instance({"number": order.number}, succeeds(order), order.email)

    return draw


def _open_category(e: Entities, rng: random.Random) -> Instance:
    shelf = rng.choice(e.shelves)
    path = f"/catalogue/category/{_slugs(shelf)}_{catalogue().categories.index(shelf) + 1}/"
    return Instance({"category": shelf[-1], "parent": shelf[0]}, leads_to(path), _who(e, rng))


def _slugs(path: tuple[str, ...]) -> str:
    words = ["-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()) for name in path]
    return "/".join(words)


def _search(e: Entities, rng: random.Random) -> Instance:
    kind = rng.choice(e.kinds)
    return Instance({"words": kind}, leads_to(f"/search/?q={kind.replace(' ', '+')}"), _who(e, rng))


def _basket(e: Entities, rng: random.Random) -> Instance:
    product, quantity = _sold(e, rng), rng.choice(_QUANTITIES)
    login = _who(e, rng)
    evaluation = in_basket(login, f"{quantity} {product.upc}")
    return Instance({"product": product.title, "quantity": str(quantity)}, evaluation, login)


def _basket_of_two(e: Entities, rng: random.Random) -> Instance:
    first, second = rng.sample([p for p in e.products if p.stock], 2)
    login = _who(e, rng)
    evaluation = in_basket(login, f"1 {first.upc}", f"1 {second.upc}")
    return Instance({"product": first.title, "other": second.title}, evaluation, login)


def in_basket(login: str, *lines: str) -> Eval:
    """Success by what lies in a customer's basket: exactly these (`QUANTITY UPC`) and nothing else."""
    tables = f"""basket_line l JOIN basket_basket b ON b.id = l.basket_id
        JOIN catalogue_product p ON p.id = l.product_id JOIN auth_user u ON u.id = b.owner_id
        WHERE b.status = 'Open' AND u.email = {quoted(login)}"""
    return rows("l.quantity || ' ' || p.upc", tables, lines)


def _wish(e: Entities, rng: random.Random) -> Instance:
    product, login = rng.choice(e.products), _who(e, rng)
    tables = f"""wishlists_line l JOIN wishlists_wishlist w ON w.id = l.wishlist_id
        JOIN auth_user u ON u.id = w.owner_id JOIN catalogue_product p ON p.id = l.product_id
        WHERE u.email = {quoted(login)}"""
    return Instance({"product": product.title}, rows("p.upc", tables, [product.upc]), login)


def _alert(e: Entities, rng: random.Random) -> Instance:
    product, login = rng.choice([p for p in e.products if not p.stock]), _who(e, rng)
    tables = f"""customer_productalert a JOIN auth_user u ON u.id = a.user_id
        JOIN catalogue_product p ON p.id = a.product_id WHERE u.email = {quoted(login)}"""
    return Instance({"product": product.title}, rows("p.upc", tables, [product.upc]), login)


def _helpful(e: Entities, rng: random.Random) -> Instance | None:
    product, login = rng.choice(e.products), _who(e, rng)
    titles = Counter(review.title for review in product.reviews)
    single = [review for review in product.reviews if titles[review.title] == 1 and review.email != login]
    if not single:
        return None
    review = rng.choice(single)
    tables = f"""reviews_vote v JOIN reviews_productreview r ON r.id = v.review_id
        JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON u.id = v.user_id
        WHERE u.email = {quoted(login)}"""
    slots = {"product": product.title, "title": review.title}
    evaluation = rows("v.delta || ' ' || p.upc || ' ' || r.title", tables, [f"1 {product.upc} {review.title}"])
    return Instance(slots, evaluation, login)


def _review(e: Entities, rng: random.Random) -> Instance | None:
    product, login = rng.choice(e.products), _who(e, rng)
    if any(review.email == login for review in product.reviews):
        return None
    score, title = rng.randint(1, 5), rng.choice(e.names)
    body = f"I bought it for the {rng.choice(_PLACES)} and use it {rng.choice(_TIMES)}."
    query = f"""SELECT p.upc || ' ' || r.score || ' ' || r.title || ' ' || r.body FROM reviews_productreview r
        JOIN catalogue_product p ON p.id = r.product_id JOIN auth_user u ON u.id = r.user_id
        WHERE u.email = {quoted(login)} ORDER BY r.id DESC"""
    slots = {"product": product.title, "title": title, "score": str(score), "body": body}
    return Instance(slots, finds(query, f"{product.upc} {score} {title} {body}"), login)


_PLACES = ("kitchen", "garden", "office", "hall", "cellar", "shed", "terrace")
_TIMES = ("every day", "every week", "at weekends", "twice a month", "all summer")


def _address(e: Entities, rng: random.Random) -> Instance:
    login, lives = _customer(e, rng).email, _customer(e, rng)
    first, last = rng.choice(e.names).split()[0], rng.choice(e.surnames)
    line = f"{rng.randint(1, 200)} {rng.choice(e.names).split()[0]} Street"
    slots = {"first": first, "last": last, "line": line, "city": lives.city, "postcode": lives.postcode}
    mine = f"address_useraddress a JOIN auth_user u ON u.id = a.user_id WHERE u.email = {quoted(login)}"
    wanted = {"first_name": first, "last_name": last, "line1": line, "line4": lives.city, "postcode": lives.postcode}
    same = " AND ".join(f"a.{column} = {quoted(value)}" for column, value in wanted.items())
    query = f"SELECT (SELECT count(*) FROM {mine}) || ' ' || (SELECT count(*) FROM {mine} AND {same})"
    return Instance(slots, finds(query, "2 1"), login)  # the one that every customer has is still there


def _surname(e: Entities, rng: random.Random) -> Instance:
    customer, last = _customer(e, rng), rng.choice(e.surnames)
    return Instance({"last": last}, shows("/accounts/profile/", f"{customer.first_name} {last}"), customer.email)


def _sold(e: Entities, rng: random.Random) -> Product:
    """One with enough pieces for any quantity that is asked for."""
    return rng.choice([product for product in e.products if product.stock >= max(_QUANTITIES)])


def _about(e: Entities, rng: random.Random, product: Product, evaluation: Eval, **slots: str) -> Instance:
    return Instance({"product": product.title, **slots}, evaluation, _who(e, rng))


def _customer(e: Entities, rng: random.Random) -> Customer:
    return rng.choice(e.customers)


def _who(e: Entities, rng: random.Random) -> str:
    return _customer(e, rng).email


def open_product(product: str) -> list[Step]:
    """Search for a product, and open its page."""
    return [fill("Search", product), click("Search", "button"), click(product, "link")]


def _on_product(*steps: Step) -> Script:
    return lambda slots: [*open_product(slots["product"]), *steps]


def _of_product_steps(read: Callable[[Page], str | None]) -> Script:
    return _on_product(say(read))


def open_own_order(number: str) -> list[Step]:
    """In the customer's account."""
    return [
        click("Account"),
        click("Order History"),
        fill("Order number", number),
        click("Filter results"),  # a whole number leads to the order itself
    ]


def _my_order_steps(*steps: Step) -> Script:
    return lambda slots: [*open_own_order(slots["number"]), *steps]


def _by_price(order: str) -> Script:
    return lambda slots: [click(slots["category"], "link"), select("Sort by", order), say(_first_product)]


def _first_product(page: Page) -> str | None:
    link = first(after(page, "", "article"), "link")
    return link.name if link else None


def _reviews(slots: dict[str, str]) -> list[Step]:
    """The product's own page shows the first three alone."""

    def open_all(page: Page) -> str | None:
        endings = ("customer review", "customer reviews")
        return click_on(next((e for e in page.all("link") if e.name.endswith(endings)), None))

    return [*open_product(slots["product"]), open_all]


def _reviewer_steps(slots: dict[str, str]) -> list[Step]:
    def read(page: Page) -> str | None:
        rest = after(page, slots["title"], "link")
        start = next((i for i, e in enumerate(rest) if e.role == "strong"), len(rest))
        author = first(rest[start:], "StaticText")
        return author.name if author else None

    return [*_reviews(slots), say(read)]


def _basket_steps(slots: dict[str, str]) -> list[Step]:
    return [
        *open_product(slots["product"]),
        click("Add to basket"),
        click("View basket"),
        fill_nth("spinbutton", 0, slots["quantity"]),
        click("Update"),
    ]


def _review_steps(slots: dict[str, str]) -> list[Step]:
    return [
        *open_product(slots["product"]),
        click("Write a review"),
        fill("Title *", slots["title"]),
        select("Score *", slots["score"]),
        fill("Body *", slots["body"]),
        click("Save review"),
    ]


def _address_steps(slots: dict[str, str]) -> list[Step]:
    fields = {"First name *": "first", "Last name *": "last", "First line of address *": "line", "City *": "city"}
    return [
        click("Account"),
        click("Address Book"),
        click("Add a new address"),
        *(fill(label, slots[slot]) for label, slot in fields.items()),
        fill("Post/Zip-code *", slots["postcode"]),
        select("Country *", "United States of America"),
        click("Save"),
    ]


_template = partial(template, "shop")

STOREFRONT = (
    _template(
        "price",
        'What is the price of "{product}"?',
        'How much does "{product}" cost?',
        'Tell me what the shop asks for "{product}".',
        draw=_of_product(lambda product: answers(f"${product.price}")),
        script=_of_product_steps(beside("Price (incl. tax)")),
    ),
    _template(
        "weight",
        'How heavy is "{product}"? Answer with the weight alone, as its page writes it.',
        'What is the weight of "{product}"? Copy it from the page, nothing else.',
        draw=_attribute("Weight"),
        script=_of_product_steps(beside("Weight")),
    ),
    _template(
        "origin",
        'In which country is "{product}" made? Answer with its name alone.',
        'Where does "{product}" come from? Name the country, nothing else.',
        draw=_attribute("Made in"),
        script=_of_product_steps(beside("Made in")),
    ),
    _template(
        "guarantee",
        'For how long is "{product}" guaranteed? Answer as its page writes it.',
        'How long is the guarantee of "{product}"? Copy it from the page, nothing else.',
        draw=_attribute("Guarantee"),
        script=_of_product_steps(beside("Guarantee")),
        held_out=True,
    ),
    _template(
        "stock",
        'How many pieces of "{product}" are available? Answer with the number alone.',
        'How many of "{product}" does the shop have in stock? Say the number, nothing else.',
        draw=_stock,
        script=_of_product_steps(number_in(beside("Availability"))),
    ),
    _template(
        "num-reviews",
        'How many customers have reviewed "{product}"? Answer with the number alone.',
        'Count the reviews of "{product}". Say the number, nothing else.',
        draw=_num_reviews,
        script=_of_product_steps(beside("Number of reviews")),
    ),
    _template(
        "reviewer",
        'Who wrote the review "{title}" of "{product}"?',
        'Find the name of the customer whose review of "{product}" is called "{title}".',
        draw=_reviewer,
        script=_reviewer_steps,
        held_out=True,
    ),
    _template(
        "cheapest",
        'Which product in "{category}" (below "{parent}") is the cheapest? Answer with its title alone.',
        'Name the product with the lowest price in the category "{category}" of "{parent}", nothing else.',
        draw=partial(_extreme_price, True),
        script=_by_price("Price low to high"),
    ),
    _template(
        "dearest",
        'Which product in "{category}" (below "{parent}") is the most expensive? Answer with its title alone.',
        'Name the product with the highest price in the category "{category}" of "{parent}", nothing else.',
        draw=partial(_extreme_price, False),
        script=_by_price("Price high to low"),
        held_out=True,
    ),
    _template(
        "order-total",
        "What did I pay in total for my order {number}?",
        "Tell me the order total of my order {number}, shipping included.",
        draw=_my_order(lambda order: answers(f"${order.total}")),
        script=_my_order_steps(say(beside("Order total"))),
    ),
    _template(
        "order-status",
        "What is the status of my order {number}? Answer with the status alone.",
        "How far is my order {number}? Say its status, nothing else.",
        draw=_my_order(lambda order: is_answered(order.status)),
        script=_my_order_steps(say(text_below("Status"))),
        held_out=True,
    ),
    _template(
        "open-product",
        'Open the page of "{product}".',
        'Show me "{product}" in the shop.',
        draw=_of_product(lambda product: leads_to(f"/catalogue/{product.slug}_{product.pk}/")),
        script=_on_product(),
    ),
    _template(
        "open-category",
        'Show all products of the category "{category}" below "{parent}".',
        'Go to "{category}" in "{parent}".',
        draw=_open_category,
        script=lambda slots: [click(slots["category"], "link")],
    ),
    _template(
        "open-order",
        "Open my order {number}.",
        "Show the details of my order {number}.",
        draw=_my_order(lambda order: leads_to(f"/accounts/orders/{order.number}/")),
        script=_my_order_steps(),
        held_out=True,
    ),
    _template(
        "search",
        'Search the shop for "{words}".',
        'Use the shop\'s search to find "{words}".',
        draw=_search,
        script=lambda slots: [fill("Search", slots["words"]), click("Search", "button")],
    ),
    _template(
        "basket",
        'Put {quantity} of "{product}" into my basket.',
        'Add "{product}" to the basket, {quantity} pieces.',
        draw=_basket,
        script=_basket_steps,
    ),
    _template(
        "basket-of-two",
        'Add one "{product}" and one "{other}" to my basket.',
        'I need "{product}" and "{other}"; put one of each into the basket.',
        draw=_basket_of_two,
        script=lambda slots: [
            *open_product(slots["product"]),
            click("Add to basket"),
            *open_product(slots["other"]),
            click("Add to basket"),
        ],
        held_out=True,
    ),
    _template(
        "wish",
        'Put "{product}" on my wish list.',
        'Remember "{product}" for me on a wish list.',
        draw=_wish,
        script=_on_product(click("Add to wish list")),
    ),
    _template(
        "alert",
        'Have the shop notify me when "{product}" is available again.',
        'Set a stock alert for "{product}".',
        draw=_alert,
        script=_on_product(click("Notify me")),
        held_out=True,
    ),
    _template(
        "helpful",
        'Mark the review "{title}" of "{product}" as helpful.',
        'Vote that the review of "{product}" titled "{title}" was helpful.',
        draw=_helpful,
        script=lambda slots: [*_reviews(slots), click_after(slots["title"], "Yes", "button")],
    ),
    _template(
        "review",
        'Review "{product}": title "{title}", {score} of 5 stars, text "{body}"',
        'Write a review of "{product}" with {score} stars, titled "{title}", that says "{body}"',
        draw=_review,
        script=_review_steps,
    ),
    _template(
        "address",
        "Add an address in the United States to my address book: {first} {last}, {line}, {city}, {postcode}.",
        "I also live at {line}, {city}, {postcode}, United States, as {first} {last}: save that address.",
        draw=_address,
        script=_address_steps,
    ),
    _template(
        "surname",
        'Change my last name to "{last}" in my profile.',
        'I have married: my last name is "{last}" now. Correct my profile.',
        draw=_surname,
        script=lambda slots: [
            click("Account"),
            click("Edit profile"),
            fill("Last name", slots["last"]),
            click("Save"),
        ],
        held_out=True,
    ),
)
