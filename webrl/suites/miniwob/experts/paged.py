"""Intents that lead over several pages: the contact book."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from webrl.suites.miniwob.experts.goal import Goal
from webrl.suites.miniwob.experts.intent import Intent, Slots
from webrl.suites.miniwob.experts.page import Page, read_action

_ATTRIBUTES = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}


@dataclass(frozen=True)
class ContactIntent(Intent):
    """Find a contact by name, or go a number of contacts on, and click on a detail."""

    def feasible(self, slots: Slots, page: Page) -> bool:
        """Only the contact shown first is known to exist; the others are on later pages."""
        if slots["attribute"] not in _ATTRIBUTES:
            return False
        return "name" not in slots or any(h.name == slots["name"] for h in page.all("heading"))

    def next_action(self, slots: Slots, page: Page, history: Sequence[str]) -> str | None:  # noqa: ARG002
        """Leaf on to the contact, then click; None for an unknown detail or past the last contact."""
        here = slots["name"] in _names(page) if "name" in slots else bool(page.named("<", "link"))
        if here:
            bid = _detail(page, slots["attribute"])
        else:
            bid = next((link.bid for link in page.named(">", "link")), "")
        return f"click({bid!r})" if bid else None

    def accomplished(self, slots: Slots, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:  # noqa: ARG002
        """The first detail clicked is the wanted one of the wanted contact."""
        moved = 0
        for page, text in zip(pages, actions, strict=True):
            action = read_action(text)
            element = page.by_bid.get(action.bid) if action and action.name in ("click", "dblclick") else None
            if element is None or element.role != "link":
                continue
            if element.name in ("<", ">"):
                moved += 1 if element.name == ">" else -1
            elif not element.name.isdigit():
                here = slots["name"] in _names(page) if "name" in slots else moved == 1
                return here and element.bid == _detail(page, slots["attribute"])
        return False


def _names(page: Page) -> list[str]:
    return [h.name for h in page.all("heading")]


def _detail(page: Page, attribute: str) -> str:
    """Bid of the link under a detail's label, or ""."""
    label = _ATTRIBUTES.get(attribute, "-")
    return next((link.bid for link in page.all("link") if page.label_of(link.bid) == label), "")


def _nowhere(_slots: Slots, _page: Page) -> Goal | None:
    return None


def _shown_contact(page: Page, rng: random.Random) -> Slots | None:
    names = _names(page)
    return {"name": names[0], "attribute": rng.choice(list(_ATTRIBUTES))} if names else None


def _next_contact(_page: Page, rng: random.Random) -> Slots | None:
    return {"attribute": rng.choice(list(_ATTRIBUTES))}


CONTACT = ContactIntent(
    (
        "Find {name} in the contact book and click on their {attribute}.",
        "Look up {name} and click on the {attribute} of this contact.",
    ),
    _nowhere,
    _shown_contact,
)
NEXT_CONTACT = ContactIntent(
    ("Go to the next contact in the book and click on their {attribute}.",), _nowhere, _next_contact
)
