"""The score of an episode on your own site: its task's checks, all of which must hold.

API: `await judge(checks, end) -> Score`. A check that cannot be found out (the database is locked, the site does not
answer) leaves the episode without a reward and says why, unless another one fails for sure.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urljoin

from webrl.rollouts.browser import Browser, first_line
from webrl.rollouts.devtools import ChannelClosed, ChannelError, Tab
from webrl.rollouts.guard import UNREACHED
from webrl.rollouts.interface import Score
from webrl.rollouts.observe import require_gone
from webrl_site.hooks import filled, run_command
from webrl_site.settings import WebConfig
from webrl_site.sites import SiteError, page_of
from webrl_site.tasks import Check

if TYPE_CHECKING:
    from playwright.async_api import APIResponse, BrowserContext, Page

_NOT_FOUND, _TOO_MANY = 404, 429
_MAX_REDIRECTS = 20
_TEXT = Path(__file__).with_name("text.js")


class Undecided(Exception):
    """A check that could not be made; says why."""


@dataclass(frozen=True)
class End:
    """What the checks look at."""

    browser: Browser
    """The agent's."""
    config: WebConfig
    """The site."""
    allows: Callable[[str], bool]
    """Whether requests to an address are allowed."""
    page: Page
    """The active tab."""
    answer: str | None
    """The agent's message; None if it was stopped."""
    context: BrowserContext
    """The agent's profile."""
    proxy: str | None = None
    """What forwards requests to the server of this episode, if it has one."""
    origin: str = ""
    """Where the site's server really is, for programs other than the browser."""
    folder: str = ""
    """That server's own folder."""


async def judge(checks: Sequence[Check], end: End) -> Score:
    """`combine` of a task's checks."""
    named = (
        (f"check {json.dumps(check.to_json(), ensure_ascii=False):.200}", partial(_problem, check, end))
        for check in checks
    )
    return await combine(named, end.config.check_timeout_s)


async def combine(checks: Iterable[tuple[str, Callable[[], Awaitable[str]]]], timeout_s: float) -> Score:
    """1 if all checks hold, 0 if one does not (it is named in the note), None if that could not be found out.

    Args:
        checks: a name, and what gives why the check does not hold ("" if it does) or raises Undecided.
        timeout_s: for each.
    """
    undecided = ""
    for name, check in checks:
        try:
            async with asyncio.timeout(timeout_s):
                problem = await check()
        except TimeoutError:
            undecided = undecided or f"{name}: no result in {timeout_s:g} s"
        except Undecided as error:
            undecided = undecided or f"{name}: {error}"
        else:
            if problem:
                return Score(0.0, f"{name}: {problem}")
    return Score(None, undecided) if undecided else Score(1.0)


async def unanswered(end: End) -> str:
    """Why the site's start page gives no answer at all, "" if it gives one."""
    url = end.config.start_urls[0]
    try:
        _, body = await _ask(url, end, follow=False)
    except Undecided as error:
        return str(error)
    text = body[:300].decode("utf-8", "replace")
    return f"{url} does not answer: {text:.200}" if UNREACHED in text else ""


async def _ask(url: str, end: End, *, follow: bool = True) -> tuple[APIResponse, bytes]:
    """The answer to a GET with the agent's cookies, which the site's limits do not apply to, and its body.

    Raises:
        Undecided: no answer, a redirect to another host, or no end of redirects.
    """
    from playwright.async_api import Error

    context = None
    try:
        assert end.context.browser is not None
        proxy: Any = {"server": end.proxy} if end.proxy else None
        context = await end.context.browser.new_context(proxy=proxy, **cast(Any, end.config.http_credentials))
        await context.add_cookies(cast(Any, await end.context.cookies()))
        for _ in range(_MAX_REDIRECTS + 1):
            answer = await context.request.get(url, timeout=end.config.check_timeout_s * 1000, max_redirects=0)
            location = answer.headers.get("location")
            if not (follow and 300 <= answer.status < 400 and location):
                return answer, await answer.body()
            url = urljoin(url, location)
            if not end.allows(url):
                raise Undecided(f"it leads away: {url} is outside the site's hosts")
        raise Undecided(f"it leads to {url} after more than {_MAX_REDIRECTS} redirects")
    except (Error, ValueError) as error:  # ValueError: an address that is none
        raise Undecided(f"{url} does not answer ({first_line(error)})") from None
    finally:
        if context is not None:
            with contextlib.suppress(Error):
                await context.close()


async def evaluate_in_frames(tab: Tab, expression: str) -> list[Any]:
    """Value of an expression in our own world of the page and of all frames of it that are shown, outermost first.
    Raises ChannelError, ChannelClosed: the expression threw, or the page has gone.
    """
    found: list[Any] = []
    trees = [(await tab.send("Page.getFrameTree"))["frameTree"]]
    for tree in trees:
        frame = tree["frame"]["id"]
        try:
            if not found or await tab.can_be_seen(frame, tree["frame"]["parentId"]):
                found.append(await tab.evaluate(expression, frame))
                trees += tree.get("childFrames", ())
        except ChannelError as error:
            if not found:
                raise
            require_gone(error)
    return found


async def _problem(check: Check, end: End) -> str:
    """Return why a check does not hold, "" if it does. Raises Undecided."""
    from playwright.async_api import Error

    match check.kind:
        case "url":
            holds = bool(re.search(check.url or "", end.page.url)) != check.absent
            return "" if holds else f"the address is {end.page.url!r:.200}"
        case "answer":
            if end.answer is None:
                return "" if check.absent else "the agent gave no answer"
            holds = bool(re.search(check.answer or "", end.answer, re.IGNORECASE)) != check.absent
            return "" if holds else f"the answer is {end.answer!r:.200}"
        case "text":
            async with _opened(check, end) as page:
                try:
                    tab = await Tab.open(page, end.browser.port)
                    try:
                        texts = await evaluate_in_frames(tab, _TEXT.read_text(encoding="utf-8"))
                    finally:
                        await tab.close()
                except (Error, ChannelError, ChannelClosed) as error:
                    raise Undecided(first_line(error)) from None
            shown = " ".join(" ".join(map(str, texts)).split())
            if (" ".join((check.text or "").split()) in shown) != check.absent:
                return ""
            return "it is there" if check.absent else f"the page shows {shown!r:.200}"
        case "javascript":
            async with _opened(check, end) as page:
                try:
                    value = await page.evaluate(check.javascript or "")
                except Error as error:
                    if page.is_closed() or "context was destroyed" in str(error):
                        raise Undecided("the page is gone") from None
                    return first_line(error)  # the page is not the one that the expression is for
            return _compare(check, value)
        case "sql":
            assert end.config.database is not None
            path = Path(end.config.database.removeprefix("sqlite:///"))
            try:
                value = await asyncio.to_thread(first_value, path, check.sql or "", end.config.check_timeout_s)
            except sqlite3.Error as error:
                raise Undecided(f"{path}: {error}") from None
            return _compare(check, value)
        case "http":
            url = end.config.absolute(check.http or "")
            if not end.allows(url):
                raise Undecided(f"{url} is outside the site's hosts")
            answer, body = await _ask(url, end)
            if answer.status == _TOO_MANY or answer.status >= 500:
                raise Undecided(f"{url} answers {answer.status}")
            if not 200 <= answer.status < 300:
                return f"{url} answers {answer.status}"
            if check.path is None:
                return "" if page_of(answer.url) == page_of(url) else f"{url} leads to {answer.url}"
            from jsonpath import findall

            try:
                values = findall(check.path, json.loads(body))
            except (ValueError, RecursionError):
                raise Undecided(f"{url} returned no readable JSON: {body!r:.100}") from None
            if not check.has_value:
                return "" if values else f"nothing at {check.path}"
            if len(values) == 1 and values[0] == check.equals:
                return ""
            return _compare(check, values[0] if len(values) == 1 and not isinstance(check.equals, list) else values)
    fill = {"{check}": check.verify or "", "{url}": end.origin, "{page}": end.page.url, "{folder}": end.folder}
    fill["{python}"] = sys.executable
    command = [filled(part, fill) for part in end.config.verify]
    try:
        said = await run_command(command, end.config.check_timeout_s, "rollout.web.verify")
    except SiteError as error:
        raise Undecided(str(error)) from None
    verdict, _, why = next(iter(said.splitlines()), "").partition(":")
    if verdict not in ("pass", "fail"):
        raise Undecided(f"rollout.web.verify printed {said!r:.100}; its first line is `pass` or `fail: why`")
    return "" if verdict == "pass" else why.strip() or "no"


def first_value(path: Path, query: str, timeout_s: float) -> Any:
    """The first row's first value, None without a row; the database is only read. Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    end = time.monotonic() + timeout_s
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=timeout_s)) as database:
        database.set_progress_handler(lambda: time.monotonic() > end, 10_000)  # this thread ends with the check
        database.execute("PRAGMA query_only = ON")
        row = database.execute(query).fetchone()
    return row[0] if row else None


def _compare(check: Check, value: Any) -> str:
    wanted = check.equals
    holds = value == wanted if check.has_value else bool(value)
    return "" if holds else f"it is {value!r:.200}"


@contextlib.asynccontextmanager
async def _opened(check: Check, end: End) -> AsyncIterator[Page]:
    """The agent's page, or the one that the check names, in its own tab with the agent's cookies."""
    if check.at is None:
        yield end.page
        return
    async with open_tab(end.context, end.config.absolute(check.at), end.config.check_timeout_s) as page:
        yield page


@contextlib.asynccontextmanager
async def open_tab(context: BrowserContext, url: str, timeout_s: float) -> AsyncIterator[Page]:
    """A page in its own tab. Raises Undecided where it does not open."""
    from playwright.async_api import Error

    try:
        page = await context.new_page()
    except Error as error:
        raise Undecided(f"no tab for {url}: {first_line(error)}") from None
    try:
        try:
            answer = await page.goto(url, timeout=timeout_s * 1000)
        except Error as error:
            raise Undecided(f"{url} does not open: {first_line(error)}") from None
        # A missing page (404) may be the expected result; a refused one proves nothing.
        if answer is not None and answer.status >= 400 and answer.status != _NOT_FOUND:
            raise Undecided(f"{url} answers {answer.status}")
        yield page
    finally:
        with contextlib.suppress(Error):
            await page.close()
