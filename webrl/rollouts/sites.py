"""What differs between pages: how an episode starts, what its goal is, and when the page says it is over.

API: `open_site(task) -> Site`; `MiniwobSite` (seeded MiniWoB++ pages, reset inside the page), `UrlSite` (any start
page, judged elsewhere).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from webrl.config import plugins
from webrl.errors import DataError
from webrl.rollouts.miniwob import nearest_page, page_names, page_path, page_seed, page_source
from webrl.rollouts.observe import HIDDEN_IDS
from webrl.types import Task

if TYPE_CHECKING:
    from webrl.rollouts.devtools import Tab

MINIWOB_MAX_TIME_MS = 1_000_000
"""BrowserGym's limit: long enough that the page's clock never ends an episode."""


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


class Site(Protocol):
    """One kind of page's way of starting and ending an episode."""

    url: str
    """Address of the first page."""
    viewport: tuple[int, int]
    """Width and height in CSS pixels."""
    scale: float
    """Screenshot pixels per CSS pixel (coordinates in actions count the former)."""
    hidden_ids: Sequence[str]
    """DOM ids whose subtrees are kept from observations."""
    hosts: Sequence[str]
    """Hosts the task's pages may reach."""
    reusable: bool
    """Whether `start` can begin an episode on a page of any other site that is reusable, without a navigation."""

    async def start(self, tab: Tab, seed: int) -> str | None:
        """Start the episode on the loaded page; gives the page's own goal ("" if it has none), or None if a page
        that was used before has to be loaded again.
        """
        ...

    async def judge(self, tab: Tab, is_first_page: bool, url: str, state: Any) -> Verdict:
        """Reward and done flag after an action.

        Args:
            is_first_page: the active tab is the one the episode started in.
            url: address of the active tab.
            state: what the page there says of its task, `null` where it says nothing.
        """
        ...


class MiniwobSite:
    """A MiniWoB++ page, shown, started and rewarded as by `browsergym.miniwob`."""

    viewport = (332, 214)
    scale = 1.5
    reusable = True
    hidden_ids: Sequence[str] = HIDDEN_IDS
    hosts: Sequence[str] = ()

    def __init__(self, name: str) -> None:
        """Take a page by file name without `.html`. Raises DataError (nearest name given) if there is none."""
        if name not in page_names():
            near = nearest_page(name)
            hint = f"; did you mean {'miniwob.' + near!r}?" if near else ""
            raise DataError(f"unknown MiniWoB page {'miniwob.' + name!r}{hint}")
        self.name = name
        self.url = page_path(name).as_uri()

    async def start(self, tab: Tab, seed: int) -> str | None:
        """Start the episode at a seed, exactly as BrowserGym derives it."""
        arguments = [self.name, page_seed(seed), MINIWOB_MAX_TIME_MS, page_source(self.name)]
        goal: str | None = await tab.evaluate_in_page(f"__webrl.miniwob.start(...{json.dumps(arguments)})")
        return goal

    async def judge(self, tab: Tab, is_first_page: bool, url: str, state: Any) -> Verdict:  # noqa: ARG002
        """As `AbstractMiniwobTask.validate`: leaving the page ends the episode without reward."""
        if not is_first_page or url != self.url:
            return Verdict(0.0, True)
        return Verdict(float(state["raw_reward"] > 0), bool(state["done"]))


class UrlSite:
    """Any web page; it never ends an episode by itself and gives no reward."""

    viewport = (1280, 720)
    scale = 1.0
    hidden_ids: Sequence[str] = ()
    reusable = False

    def __init__(self, url: str, hosts: Sequence[str] = ()) -> None:
        self.url = url
        netloc = urlsplit(url).netloc.rpartition("@")[2]
        self.hosts: Sequence[str] = [host for host in (netloc, *hosts) if host]

    async def start(self, tab: Tab, seed: int) -> str | None:  # noqa: ARG002
        """Nothing to do; the goal is the task's instruction."""
        return ""

    async def judge(self, tab: Tab, is_first_page: bool, url: str, state: Any) -> Verdict:  # noqa: ARG002
        """No verdict of its own."""
        return Verdict(0.0, False)


def open_site(task: Task) -> Site:
    """The site of a task.

    Raises:
        DataError: unknown MiniWoB page, or neither a MiniWoB site nor an address to start at.
    """
    suite, _, name = task.site.partition(".")
    if suite == "miniwob":
        return MiniwobSite(name)
    if task.start_url:
        if not urlsplit(task.start_url).scheme:
            raise DataError(
                f"task {task.task_id!r}: start_url {task.start_url!r:.200} is no address such as http://host/path "
                "(where its suite has them in its config, the task's site must begin with the suite's name)"
            )
        return UrlSite(task.start_url, task.extra.get("allowed_hosts", ()))
    raise DataError(f"task {task.task_id!r}: site {task.site!r} is not a MiniWoB page and has no start_url")
