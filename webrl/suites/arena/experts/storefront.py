"""How the tasks of the shop's front are done."""

from __future__ import annotations

from collections.abc import Callable

from webrl.suites.arena.experts.script import (
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
from webrl.suites.miniwob.experts.page import Page


def open_product(product: str) -> list[Step]:
    """Search for a product, and open its page."""
    return [fill("Search", product), click("Search", "button"), click(product, "link")]


def _on_product(*steps: Step) -> Script:
    return lambda slots: [*open_product(slots["product"]), *steps]


def _of_product(read: Callable[[Page], str | None]) -> Script:
    return _on_product(say(read))


def open_own_order(number: str) -> list[Step]:
    """In the customer's account."""
    return [
        click("Account"),
        click("Order History"),
        fill("Order number", number),
        click("Filter results"),  # a whole number leads to the order itself
    ]


def _my_order(*steps: Step) -> Script:
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


def _reviewer(slots: dict[str, str]) -> list[Step]:
    def read(page: Page) -> str | None:
        rest = after(page, slots["title"], "link")
        start = next((i for i, e in enumerate(rest) if e.role == "strong"), len(rest))
        author = first(rest[start:], "StaticText")
        return author.name if author else None

    return [*_reviews(slots), say(read)]


def _basket(slots: dict[str, str]) -> list[Step]:
    return [
        *open_product(slots["product"]),
        click("Add to basket"),
        click("View basket"),
        fill_nth("spinbutton", 0, slots["quantity"]),
        click("Update"),
    ]


def _review(slots: dict[str, str]) -> list[Step]:
    return [
        *open_product(slots["product"]),
        click("Write a review"),
        fill("Title *", slots["title"]),
        select("Score *", slots["score"]),
        fill("Body *", slots["body"]),
        click("Save review"),
    ]


def _address(slots: dict[str, str]) -> list[Step]:
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


SCRIPTS: dict[str, Script] = {
    "price": _of_product(beside("Price (incl. tax)")),
    "weight": _of_product(beside("Weight")),
    "origin": _of_product(beside("Made in")),
    "guarantee": _of_product(beside("Guarantee")),
    "stock": _of_product(number_in(beside("Availability"))),
    "num-reviews": _of_product(beside("Number of reviews")),
    "reviewer": _reviewer,
    "cheapest": _by_price("Price low to high"),
    "dearest": _by_price("Price high to low"),
    "order-total": _my_order(say(beside("Order total"))),
    "order-status": _my_order(say(text_below("Status"))),
    "open-product": _on_product(),
    "open-category": lambda slots: [click(slots["category"], "link")],
    "open-order": _my_order(),
    "search": lambda slots: [fill("Search", slots["words"]), click("Search", "button")],
    "basket": _basket,
    "basket-of-two": lambda slots: [
        *open_product(slots["product"]),
        click("Add to basket"),
        *open_product(slots["other"]),
        click("Add to basket"),
    ],
    "wish": _on_product(click("Add to wish list")),
    "alert": _on_product(click("Notify me")),
    "helpful": lambda slots: [*_reviews(slots), click_after(slots["title"], "Yes", "button")],
    "review": _review,
    "address": _address,
    "surname": lambda slots: [
        click("Account"),
        click("Edit profile"),
        fill("Last name", slots["last"]),
        click("Save"),
    ],
}
"""By template."""
