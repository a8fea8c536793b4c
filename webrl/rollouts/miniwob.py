"""The installed MiniWoB++ pages: where they lie, what they are called, and how BrowserGym seeds them."""

from __future__ import annotations

import difflib
import importlib.util
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from webrl.errors import BrowserMissing, DataError

if TYPE_CHECKING:
    from numpy.random import RandomState

_PAGE_SEEDS = 1_000_000


def miniwob_root() -> Path:
    """Folder `html/` of the installed MiniWoB++ pages, or of `MINIWOB_URL` if that is a file URL.

    Raises:
        BrowserMissing: the pages are not installed.
    """
    url = os.environ.get("MINIWOB_URL", "")
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path)).parent
    spec = importlib.util.find_spec("miniwob")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return Path(folder) / "html"
    raise BrowserMissing("the MiniWoB++ pages are not installed; run `pip install miniwob`")


def page_path(name: str) -> Path:
    """The file of a page, by its name without `.html`."""
    return miniwob_root() / "miniwob" / f"{name}.html"


@cache
def page_names() -> frozenset[str]:
    """Every installed page. Raises DataError: there is none."""
    folder = miniwob_root() / "miniwob"
    names = frozenset(path.stem for path in folder.glob("*.html"))
    if not names:
        raise DataError(f"no MiniWoB pages in {folder}; run `pip install miniwob`")
    return names


def nearest_page(name: str) -> str | None:
    """The page whose name is most like this one, if one is."""
    return next(iter(difflib.get_close_matches(name, sorted(page_names()), n=1, cutoff=0.3)), None)


@cache
def page_source(name: str) -> str:
    """A page's HTML."""
    return page_path(name).read_text(encoding="utf-8")


def page_seed(seed: int) -> int:
    """The seed a page is started with, as BrowserGym derives it from a task's seed."""
    generator = _generator()
    generator.seed(seed % 2**32)
    return int(generator.randint(0, _PAGE_SEEDS))


@cache
def _generator() -> RandomState:
    # Seeding one generator again costs a thirtieth of making a new one, and draws the same numbers.
    from numpy.random import RandomState

    return RandomState(0)
