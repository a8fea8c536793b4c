"""The vocabulary of the arena's content, from `data/*.yaml`: what is sold and written, and who buys, works and asks.

API: `load_words("shop")` (or `forum`, `mail`, `tracker`), `shelves()`. `content.py` of each site draws from it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any, NamedTuple

import yaml


class Kind(NamedTuple):
    """A kind of product, sold in several finishes and sizes."""

    noun: str
    low: int
    """Cheapest price, in whole units of the currency."""
    high: int
    sizes: tuple[str, ...]
    purpose: str


class Shelf(NamedTuple):
    """A leaf category."""

    path: tuple[str, str]
    prefix: str
    """Of its SKUs."""
    finishes: tuple[str, ...]
    aspects: tuple[str, ...]
    """What reviews talk about."""
    care: str
    kinds: tuple[Kind, ...]


@cache
def load_words(site: str) -> SimpleNamespace:
    """Read a site's lists, each a tuple under its name in the file."""
    text = files("webrl.arena").joinpath("data", f"{site}.yaml").read_text(encoding="utf-8")
    return SimpleNamespace(**{name: _frozen(value) for name, value in yaml.safe_load(text).items()})


@cache
def shelves() -> tuple[Shelf, ...]:
    """The shop's leaf categories with what they hold."""
    return tuple(Shelf(**{**shelf, "kinds": tuple(map(_kind, shelf["kinds"]))}) for shelf in load_words("shop").shelves)


def _kind(row: str) -> Kind:
    noun, prices, sizes, purpose = (part.strip() for part in row.split("|"))
    low, high = prices.split("-")
    return Kind(noun, int(low), int(high), tuple(sizes.split("; ")), purpose)


def _frozen(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_frozen, value))
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value
