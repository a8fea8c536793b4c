"""What differs between pages: how an episode starts, what its goal is, and when the page says it is over."""

from __future__ import annotations

import difflib
import importlib.util
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from webrl.config import plugins
from webrl.errors import BrowserMissing, DataError
from webrl.rollouts.observe import HIDDEN_IDS
from webrl.types import Task

if TYPE_CHECKING:
    from webrl.rollouts.devtools import Tab

MINIWOB_MAX_TIME_MS = 1_000_000
"""BrowserGym's limit: long enough that the page's clock never ends an episode."""


def miniwob_root() -> Path:
    """Folder `html/` of the installed MiniWoB++ pages, or that of a file `MINIWOB_URL`. Raises BrowserMissing."""
    url = os.environ.get("MINIWOB_URL", "")
    if url.startswith("file://"):
        return Path(unquote(urlsplit(url).path)).parent
    spec = importlib.util.find_spec("miniwob")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        return Path(folder) / "html"
    raise BrowserMissing("the MiniWoB++ pages are not installed; run `pip install miniwob`")


@cache
def page_names() -> frozenset[str]:
    """Every installed page. Raises DataError if there is none."""
    folder = miniwob_root() / "miniwob"
    names = frozenset(path.stem for path in folder.glob("*.html"))
    if not names:
        raise DataError(f"no MiniWoB pages in {folder}; run `pip install miniwob`")
    return names


_source = cache(Path.read_text)


@cache
def page_seed(seed: int) -> int:
    """The seed a page is started with, as BrowserGym derives it from a task's seed."""
    from numpy.random import RandomState

    return int(RandomState(seed % 2**32).randint(0, 1_000_000))


@dataclass(frozen=True)
class Verdict:
    """What the page says about the episode."""

    reward: float
    """BrowserGym's reward, 0 or 1."""
    done: bool
    """Whether the page has ended the episode."""


def site_name(task_name: str, benchmark: str) -> str:
    """Our name of a task, from a BrowserGym id with or without its `browsergym/` and suite."""
    name = task_name.removeprefix("browsergym/")
    known = (benchmark, *plugins.names(plugins.SUITES))
    return name if name.startswith(tuple(f"{suite}." for suite in known)) else f"{benchmark}.{name}"


class Site:
    """One kind of page's way of starting and ending an episode; itself any page, which rewards and ends none."""

    viewport: tuple[int, int] = (1280, 720)
    """Width and height in CSS pixels."""
    scale: float = 1.0
    """Screenshot pixels per CSS pixel (coordinates in actions count the former)."""
    hidden_ids: Sequence[str] = ()
    """DOM ids whose subtrees are kept from observations."""
    reusable: bool = False
    """Whether `start` can begin an episode on a page of any other site that is reusable, without a navigation."""

    def __init__(self, url: str, hosts: Sequence[str] = ()) -> None:
        self.url = url
        """Address of the first page."""
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        self.hosts = [host for host in (netloc, *hosts) if host]
        """Hosts the task's pages may reach."""

    async def start(self, tab: Tab, seed: int) -> str | None:  # noqa: ARG002
        """Start the episode on the loaded page; gives the page's own goal ("" if it has none), or None if a page
        that was used before has to be loaded again.
        """
        return ""

    async def judge(self, tab: Tab, is_first_page: bool, url: str, state: Any) -> Verdict:  # noqa: ARG002
        """Reward and done flag after an action.

        Args:
            is_first_page: the active tab is the one the episode started in.
            url: address of the active tab.
            state: what the page there says of its task, `null` where it says nothing.
        """
        return Verdict(0.0, False)


class MiniwobSite(Site):
    """A MiniWoB++ page, shown, started and rewarded as by `browsergym.miniwob`."""

    viewport = (332, 214)
    scale = 1.5
    reusable = True
    hidden_ids = HIDDEN_IDS

    def __init__(self, site: str) -> None:
        """Take `miniwob.` and a page's file name without `.html`. Raises DataError (nearest named) if there is none."""
        folder, (suite, _, self.name) = miniwob_root() / "miniwob", site.partition(".")
        if suite != "miniwob" or self.name not in page_names():
            near = difflib.get_close_matches(site.rpartition(".")[2], sorted(page_names()), n=1)
            hint = f"did you mean {'miniwob.' + near[0]!r}?" if near else f"the known ones are in {folder}"
            raise DataError(f"unknown MiniWoB page {site!r}; {hint}")
        self._path = folder / f"{self.name}.html"
        super().__init__(self._path.as_uri())

    async def start(self, tab: Tab, seed: int) -> str | None:
        """Start the episode at a seed, exactly as BrowserGym derives it."""
        arguments = [self.name, page_seed(seed), MINIWOB_MAX_TIME_MS, _source(self._path, encoding="utf-8")]
        goal: str | None = await tab.evaluate_in_page(f"__webrl.miniwob.start(...{json.dumps(arguments)})")
        return goal

    async def judge(self, tab: Tab, is_first_page: bool, url: str, state: Any) -> Verdict:  # noqa: ARG002
        """As `AbstractMiniwobTask.validate`: leaving the page ends the episode without reward."""
        if not is_first_page or url != self.url:
            return Verdict(0.0, True)
        return Verdict(float(state["raw_reward"] > 0), bool(state["done"]))


def open_site(task: Task) -> Site:
    """The site of a task. Raises DataError: unknown MiniWoB page, or neither that nor an address to start at."""
    if task.site.partition(".")[0] == "miniwob":
        return MiniwobSite(task.site)
    if task.start_url:
        in_miniwob = task.start_url.startswith(f"{miniwob_root().as_uri()}/")
        if urlsplit(task.start_url).scheme not in ("http", "https", "data", "about") and not in_miniwob:
            raise DataError(
                f"task {task.task_id!r}: start_url {task.start_url!r:.200} is not an address such as http://host/path "
                "(where its suite has them in its config, the task's site must begin with the suite's name)"
            )
        return Site(task.start_url, task.extra.get("allowed_hosts", ()))
    raise DataError(f"task {task.task_id!r}: site {task.site!r} is not a MiniWoB page and has no start_url")
