"""Intents that lead over several pages: the contact book and the search engine."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from webrl.tasks.experts.goal import DONE, Goal
from webrl.tasks.experts.intent import Intent, Slots, ordinal
from webrl.tasks.experts.page import Element, Page, read_action
from webrl.tasks.experts.words import random_name

_RESULTS_PER_PAGE = 3
_MAX_RESULTS = 9
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


@dataclass(frozen=True)
class SearchIntent(Intent):
    """Search for a text and click on the n-th result (three a page), or only search."""

    def feasible(self, slots: Slots, page: Page) -> bool:
        """Any text can be searched for; there are nine results."""
        in_range = "nth" not in slots or 1 <= _number(slots) <= _MAX_RESULTS
        return in_range and '"' not in slots["text"] and bool(page.named("Search", "button") and page.all("textbox"))

    def next_action(self, slots: Slots, page: Page, history: Sequence[str]) -> str | None:  # noqa: ARG002
        """Type, search, leaf to the result's page, click it."""
        if not self.feasible(slots, page):
            return None
        box, button = page.all("textbox")[0], page.named("Search", "button")[0]
        if box.value != slots["text"]:
            return f"fill({box.bid!r}, {slots['text']!r})"
        results, leaf = _results(page), _leaf_number(page)
        if not results:
            return f"click({button.bid!r})"
        if "nth" not in slots:
            return DONE
        wanted, index = divmod(_number(slots) - 1, _RESULTS_PER_PAGE)
        if leaf == wanted + 1:
            return f"click({results[index].bid!r})" if index < len(results) else None
        links = page.named(str(wanted + 1), "link")
        return f"click({links[0].bid!r})" if links else None

    def accomplished(self, slots: Slots, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:
        """The text searched for last is the wanted one, and the first result clicked the wanted one (or none)."""
        searched, leaf = "", 1
        for page, text in zip(pages, actions, strict=True):
            action = read_action(text)
            element = page.by_bid.get(action.bid) if action and action.name in ("click", "dblclick") else None
            if element is None:
                continue
            if element.role == "button" and element.name == "Search":
                searched, leaf = page.all("textbox")[0].value, 1
            elif element.role == "link" and not _is_result(element):
                leaf = _turned(leaf, element.name)
            elif element.role == "link":
                position = (leaf - 1) * _RESULTS_PER_PAGE + [r.bid for r in _results(page)].index(element.bid) + 1
                return "nth" in slots and searched.lower() == slots["text"].lower() and position == _number(slots)
        return "nth" not in slots and searched.lower() == slots["text"].lower() and bool(_results(final))


def _number(slots: Slots) -> int:
    return int(re.sub(r"\D", "", slots["nth"]))


def _is_result(link: Element) -> bool:
    return not (link.name.isdigit() or link.name in ("<", ">"))


def _results(page: Page) -> list[Element]:
    return [link for link in page.all("link") if _is_result(link)]


def _turned(leaf: int, name: str) -> int:
    if name.isdigit():
        return int(name)
    return min(_MAX_RESULTS // _RESULTS_PER_PAGE, leaf + 1) if name == ">" else max(1, leaf - 1)


def _leaf_number(page: Page) -> int:
    """Which page of results is shown: the tree does not mark it.

    The pager rebuilds its links with new, larger bids at every click, so a past click cannot be looked up by
    bid; without `<` it is page 1, without `>` the last, else the middle one.
    """
    if page.named("<", "link"):
        return 2 if page.named(">", "link") else _MAX_RESULTS // _RESULTS_PER_PAGE
    return 1


def _nowhere(_slots: Slots, _page: Page) -> Goal | None:
    return None


def _shown_contact(page: Page, rng: random.Random) -> Slots | None:
    names = _names(page)
    return {"name": names[0], "attribute": rng.choice(list(_ATTRIBUTES))} if names else None


def _next_contact(_page: Page, rng: random.Random) -> Slots | None:
    return {"attribute": rng.choice(list(_ATTRIBUTES))}


def _some_search(_page: Page, rng: random.Random) -> Slots | None:
    return {"text": random_name(rng), "nth": ordinal(rng.randint(1, _MAX_RESULTS))}


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
SEARCH_RESULT = SearchIntent(
    (
        'Use the textbox to enter "{text}" and press "Search", then find and click the {nth} search result.',
        'Search for "{text}" and open the {nth} result.',
    ),
    _nowhere,
    _some_search,
)
SEARCH_ONLY = SearchIntent(
    ('Use the textbox to enter "{text}" and press "Search", but do not click a result.',), _nowhere, _some_search
)
