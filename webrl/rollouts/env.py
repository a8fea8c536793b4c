"""One environment: a browser profile whose pages an agent acts on, one episode at a time.

Raises BrowserError when page or browser have failed or passed `step_timeout_s` (the environment heals itself at
the next reset), DataError for a task that names no page.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from webrl.config import RolloutConfig, plugins
from webrl.errors import BrowserError
from webrl.rollouts.actions import ID, Action, ActionError, labelled, read_answer
from webrl.rollouts.browser import Browser, first_line
from webrl.rollouts.devtools import REPLACED, ChannelClosed, ChannelError, ScriptError, Tab, load_script
from webrl.rollouts.execute import KEEPS_LOADING, MAX_TABS, PAGE_TIMEOUT_MS, ActionFailed, execute, open_page
from webrl.rollouts.guard import Limits, NavigationGuard
from webrl.rollouts.interface import Observation, Score, StepResult
from webrl.rollouts.observe import read_page
from webrl.rollouts.sites import Site, Verdict, open_site
from webrl.runs.text import valid_text
from webrl.types import Task

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page, Request

logger = logging.getLogger(__name__)

HORIZON_MS = 500
"""Wait for timers and animations due within this time after an action: stock BrowserGym's fixed delay."""
_COLLECT_EVERY = 24
"""Episodes after which a rewritten page frees its earlier documents (by itself it waits for 50 MB)."""
_MAX_TRIES = 7
_PATIENCE = 0.6
"""Share of the time left until the step's deadline after which a page that does not load is given up."""
# What a page says when it was replaced while being looked at; looking again helps.
_TRANSIENT = (*REPLACED, "of undefined")
# Where scripts are disabled (`Content-Security-Policy: sandbox`), other worlds hear events, but have no timers.
_TIMER = "setTimeout = ((end) => (run, ms = 0) => { end(ms).onabort = () => run(); })(AbortSignal.timeout);\n"
_ID_PARAMETERS = {"bid", "from_bid", "to_bid"}
_OF_A_PAGE = _ID_PARAMETERS | {"x", "from_x"}
OTHER_TAB = "Error: nothing was done: the tab that was shown has closed, or another has opened; this is the active one"
# Actions that leave a key or button down, or a page in a state that only loading it again clears.
_DIRTY = frozenset(("mouse_down", "keyboard_down", "upload_file", "mouse_upload_file", "go_back", "go_forward"))
MAX_LINES = 5
"""An observation lists at most these; further ones are counted."""


class Notices:
    """Events outside the page that would go unseen: dialog boxes, which are answered, downloads, which are refused, and
    pages that do not open.
    """

    def __init__(self, *, accept: bool = False) -> None:
        self._accept = accept
        self._lines: list[str] = []
        self._running: set[asyncio.Future[Any]] = set()
        self.downloads = 0
        """Downloads refused since the last reset of this counter."""

    def attach(self, context: BrowserContext) -> None:
        """Watch a new profile."""
        self._lines.clear()
        self.downloads = 0
        context.on("dialog", self._answer)
        context.on("requestfailed", self._note_failure)
        context.on("page", lambda page: page.on("download", self._note_download))

    def take(self) -> str:
        """Return the events since the last call, one per line."""
        lines, self._lines = self._lines, []
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
        return "".join(f"{line}\n" for line in lines)

    def tell(self, line: str) -> None:
        """Add an action's own line, once."""
        if line not in self._lines:
            self._lines.append(line)

    def _note_download(self, download: Download) -> None:
        self.downloads += 1
        self._lines.append(f"download {valid_text(download.suggested_filename)!r:.200}, refused")

    def _note_failure(self, request: Request) -> None:
        from playwright.async_api import Error

        why = request.failure or "ERR_ABORTED"  # a download, an empty answer, or left for another page
        if not request.is_navigation_request():
            return
        if "ERR_ABORTED" in why:
            self.finish(self._note_empty(request))
            return
        if "ERR_TUNNEL" in why:
            with contextlib.suppress(Error):  # Playwright does not know its frame yet: it is a new tab's own
                if request.frame.parent_frame is not None:
                    return  # most often a tracker's frame, which nobody sees
            why = "its host is outside those of this task, or does not answer"
        self._lines.append(f"{valid_text(request.url)!r:.200} did not open: {why}")

    async def _note_empty(self, request: Request) -> None:
        response = await request.response()
        if response is not None and response.status in (204, 205):
            self.downloads += 1  # its tab is closed as a download's is
            self._lines.append(f"{request.url!r:.200} was answered with nothing to show (status {response.status})")

    def _answer(self, dialog: Dialog) -> None:
        accepts = self._accept or dialog.type == "beforeunload"  # as Playwright answers when there is no listener
        text = f" with {valid_text(dialog.default_value)!r:.200}" if dialog.type == "prompt" else ""
        fixed = {"alert": "closed", "beforeunload": "answered Leave: what was not saved is lost"}
        words = fixed.get(dialog.type, f"answered OK{text}" if accepts else "answered Cancel")
        self._lines.append(f"{dialog.type} box {valid_text(dialog.message)!r:.200}, {words}")
        self.finish(dialog.accept(dialog.default_value) if accepts else dialog.dismiss())

    def finish(self, call: Coroutine[Any, Any, None]) -> None:
        """Run one of Playwright's calls without waiting for it."""
        running = asyncio.gather(call, return_exceptions=True)  # its page may have gone
        self._running.add(running)
        running.add_done_callback(self._running.discard)


_NO_DOCUMENT = ("", ":")
"""Addresses of a tab that a link or a script has opened, while it has no document; ":" seen with Chromium 150."""


class EpisodeObserver(Protocol):
    """Watches episodes as they are played, e.g. for a person who demonstrates (`webrl_site.by_hand`)."""

    script: str
    """Every document runs it before its own scripts."""

    async def attach(self, context: BrowserContext) -> None:
        """Called with a new profile, before its first page opens."""

    def acting(self, action: Action) -> AbstractAsyncContextManager[None]:
        """Entered around every action."""


class BrowserEnv:
    """An environment on a shared browser; see the module docstring. Suites configure its profile (`_profile_options`,
    `_limits`, `_routes`, `_notices`), or pass one that is already open.
    """

    imports = True
    """Whether pages may import scripts while they run: programs of one document do. It costs to watch for them."""
    every_element = False
    """`rollout.every_element` if the config leaves it open."""

    def __init__(self, browser: Browser, config: RolloutConfig, site_of: Callable[[Task], Site] = open_site) -> None:
        """`site_of`: how an episode of a task starts and ends in its page. Raises DataError, ExtraMissing."""
        self._browser = browser
        self._config = config
        self._details = plugins.load(plugins.HOOKS, "page-details") if config.page_details else None
        self._script = load_script("world", "mark", "act")
        """What runs in our own world of a document that is read or acted on."""
        self._site: Site = None  # type: ignore[assignment]
        self._first_page: Page | None = None
        self._tabs: dict[Page, Tab] = {}
        self._limits: Limits | None = None
        self._routes: dict[str, int] = {}
        self._profile_options: dict[str, Any] = {}
        self._first_id = 0
        self._guard = NavigationGuard(())
        self._notices = Notices()
        self.context: BrowserContext = None  # type: ignore[assignment]
        self.page: Page = None  # type: ignore[assignment]
        self.tab: Tab = None  # type: ignore[assignment]
        self.scale = 1.0
        self.shows_all = config.observation != "html"
        self.upload_dir = config.upload_dir
        self.observer: EpisodeObserver | None = None
        self._site_of = site_of
        self._task: Task | None = None
        self._goal = ""
        self._text = ""
        self._loaded_url = ""
        self._clean = False
        self._timeout = asyncio.timeout(None)
        self._has_crashed = False
        self._restarts = 0
        self._ids: dict[str, str] | None = None
        self._copied: dict[str, str] | None = None

    @property
    def patience_s(self) -> float:
        """See `Tabs`."""
        return _PATIENCE * max(0.0, (self._timeout.when() or 0.0) - time.monotonic())

    async def reset(self, task: Task) -> Observation:
        """Start an episode of `task`."""
        site = self._site_of(task)
        async with self._deadline(f"reset of {task.site!r}"):
            self._first_id = 0
            if self._config.random_ids and task.split == "train":  # the same in all attempts at a task
                self._first_id = random.Random(f"{task.task_id} {task.seed}").randrange(1000)
            self._copied = None
            self._notices.take()  # what has come since the last step belongs to no episode
            goal = await self._restart(site, task.seed)
            self._clean = False
            if goal is None:
                await self._open(site)
                goal = await site.start(await self._use_tab(), task.seed)
            self._task, self._site = task, site
            self.scale = site.scale if self._config.viewport is None else 1.0
            self._goal = task.instruction or goal or ""
            if not self._goal:
                raise BrowserError(f"task {task.task_id!r}: the page gives no goal and the task no instruction")
            observation, _ = await self._look(horizon_ms=250)
            self._clean = True
            return observation

    async def step(self, action_text: str) -> StepResult:
        """Carry out one action and look at the page."""
        if self._task is None:
            raise BrowserError("step() before reset()")
        blocked = self._guard.blocked
        action: Action | None = None
        error = ""
        clean, self._clean = self._clean, False  # a step that is cancelled half-way leaves a page in doubt
        if self.page.url not in _NO_DOCUMENT:
            self._notices.downloads = 0  # of earlier steps: no tab waits for one
        self.tab.opens_tab = False  # the earlier step's has come before it was asked for
        async with self._deadline(f"step {action_text!r:.60}", self._revive()):
            try:
                action = self._parse(action_text)
                for part in (action, *action.rest):
                    clean = clean and part.name not in _DIRTY
                    shown = self.tab
                    if await self._use_tab() is not shown and part is action and part.arguments.keys() & _OF_A_PAGE:
                        raise ActionFailed(OTHER_TAB)
                    async with self.observer.acting(part) if self.observer else contextlib.nullcontext():
                        await self._act(part)
            except (ActionError, ActionFailed) as problem:
                error = str(problem)
                self.tab.filled_in = ""
            except ChannelClosed:
                if shown.page is self.page and not shown.page.is_closed():
                    raise
            observation, verdict = await self._look(HORIZON_MS if action else 0)
            self._clean = clean
        says = action is not None and action.name in ("send_msg_to_user", "report_infeasible") and not error
        return StepResult(
            observation=observation,
            action=action.canonical if action else "",
            error=error,
            done=verdict.done,
            reward=verdict.reward,
            agent_done=says,
            message=next(iter(action.arguments.values())) if says and action else "",
            blocked=self._guard.blocked - blocked,
        )

    async def finish(self) -> Score:
        """Return the episode's score so far; none here, since the steps had their rewards."""
        return Score(None)

    async def close(self) -> None:
        """End the episode; close the profile and its pages."""
        self._task, self._clean = None, False
        context, self.context = self.context, None  # type: ignore[assignment]
        tabs, self._tabs = self._tabs, {}
        for tab in tabs.values():
            await tab.close()
        if context is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(context.close(), 5)
        await self._guard.close()

    def _parse(self, action_text: str) -> Action:
        """Read what the agent has written. Raises ActionError."""
        return read_answer(action_text, self._config.dialect)

    async def _act(self, action: Action) -> None:
        """Carry out one action on the active tab. Raises ActionFailed."""
        await execute(self._resolve(action), self)

    def _resolve(self, action: Action) -> Action:
        """The action with the ids of the observation replaced by bids, where the observation has ids of its own."""
        arguments = dict(action.arguments)
        for name in arguments.keys() & _ID_PARAMETERS:
            bid = arguments[name]
            if not ID.fullmatch(bid) and f"[{bid}] " not in self._text:  # a frame has letters alone
                number = next(iter(labelled(self._text, bid)), "18")
                example = dataclasses.replace(action, arguments=action.arguments | {name: number}, written="")
                raise ActionFailed(
                    f"ids are the numbers in square brackets, e.g. {example.canonical:.200}; {bid!r:.100} is none"
                )
            if self._ids is not None:
                if bid not in self._ids:
                    raise ActionFailed(f'ValueError: Could not find element with id "{bid}"')
                arguments[name] = self._ids[bid]
        return dataclasses.replace(action, arguments=arguments)

    @contextlib.asynccontextmanager
    async def _deadline(self, what: str, meanwhile: Coroutine[Any, Any, None] | None = None) -> AsyncIterator[None]:
        """Turn crashes and hangs into BrowserError and have the profile replaced; `meanwhile` runs until its end."""
        from playwright.async_api import Error

        self._has_crashed = False
        running = asyncio.ensure_future(meanwhile or asyncio.sleep(0))
        try:
            async with asyncio.timeout(self._config.step_timeout_s) as self._timeout:
                yield
        except TimeoutError:
            await self.close()
            crashed, late = ": the page has crashed", f" passed its deadline of {self._config.step_timeout_s:g} s"
            raise BrowserError(f"{what}{crashed if self._has_crashed else late}") from None
        except (Error, ChannelError, ChannelClosed, OSError) as error:
            await self.close()
            raise BrowserError(f"{what}: {first_line(error)}") from None
        except Exception:
            await self.close()
            raise
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _revive(self) -> None:
        """While a step lasts, end what keeps the active page, which answered before the action, from answering."""
        while True:
            await asyncio.sleep(self.patience_s / 2)
            tab, page = self.tab, self.page
            for method, share in (("evaluate", 1.5), ("terminateExecution", 4)):
                asked = asyncio.gather(tab.send(f"Runtime.{method}", {"expression": "0"}), return_exceptions=True)
                await asyncio.wait([asked], timeout=self.patience_s / share)
                if asked.done() or tab.leaving:
                    break
                asked.cancel()
            if method == "evaluate":
                continue
            if asked.done() and not asked.cancelled():
                self._notices.tell("a script of this page did not come to an end: it was stopped")
            elif tab.asking and page is tab.page:  # a script waits for the answer, which nothing ends
                self.page = await self.context.new_page()
                self._first_page = self.page if page is self._first_page else self._first_page
                await self._use_tab()
                await open_page(self, PAGE_TIMEOUT_MS, "goto", page.url)
                await page.close()
                self._notices.tell("this page waited for a server that does not answer: it was opened again")

    def _end_crashed(self, page: Page) -> None:
        """End the wait for a page that has crashed: it would never answer."""
        if page is self.page and page in self._tabs:  # else its profile is being closed
            self._has_crashed = True
            with contextlib.suppress(RuntimeError):  # nobody waits
                self._timeout.reschedule(0)

    async def _restart(self, site: Site, seed: int) -> str | None:
        """Start another episode on the page as it is; its goal, or None if the page has to be loaded."""
        page = self._first_page
        if not self._clean or not site.reusable or not self._site.reusable:
            return None
        has_left = page is None or page is not self.page or page.url.partition("#")[0] != self._loaded_url
        if has_left or len(self.context.pages) > 1:
            return None
        tab = await self._use_tab()
        tab.forget_asked()
        if tab.pointer:  # so that the next episode does not begin with a hovered element
            await tab.leave_page()
        goal = await site.start(tab, seed)
        self._restarts += 1
        if self._restarts % _COLLECT_EVERY == 0:
            await tab.send("HeapProfiler.collectGarbage")
        return goal

    async def _open(self, site: Site) -> None:
        """Load the site's page, in a fresh profile unless the old one's page can be loaded again."""
        from playwright.async_api import Error

        if not (self.context and site.reusable and self._site.reusable and len(self.context.pages) == 1):
            await self.close()
            await self._new_profile(site)
        self._site = site
        self._first_page = self.page = self.context.pages[0]
        (await self._use_tab()).forget_asked()
        try:
            await open_page(self, self._config.step_timeout_s * 1000, "goto", site.url)
        except Error as error:
            # The second is what later Playwrights say of a download.
            if "net::ERR_ABORTED" not in str(error) and "Download is starting" not in str(error):
                raise
            raise BrowserError(f"{site.url} is a download or empty, not a page ({first_line(error)})") from None
        self._loaded_url = self.page.url

    async def _look(self, horizon_ms: int) -> tuple[Observation, Verdict]:
        """Wait until the active page is quiet, then take it down; again if it is replaced meanwhile."""
        from playwright.async_api import Error

        end = time.monotonic() + self._config.settle_cap_s
        for tries_left in reversed(range(_MAX_TRIES)):
            page = self.page
            try:
                tab = await self._use_tab()
                page = tab.page
                if tries_left and await self._leave_download():
                    continue
                if page.url == "about:blank" and (opener := await page.opener()) in self._tabs:
                    with contextlib.suppress(ChannelError, ChannelClosed):  # it may close what it has opened again
                        settle = f"__webrl.settle({horizon_ms}, {self._config.settle_cap_s * 1000:.0f})"
                        await self._tabs[opener].evaluate_or_stop(settle, self.patience_s)
                await tab.arrive(end)
                # A page that has replaced itself five times is seen as soon as it is there: it may do so for ever.
                if not tries_left:
                    await tab.send("Page.stopLoading")
                seen = await self._see(tab, "", horizon_ms if tries_left > 1 else 0, end)
                while not tab.opens_tab and await tab.has_imported(end):
                    seen = await self._see(tab, "__webrl.hear(), ", HORIZON_MS, end)
                for _ in range(3 if tries_left > 1 else 0):  # frames on their way, then those in them
                    if tab.opens_tab or not await tab.has_frames(end):
                        break
                    seen = await self._see(tab, "", HORIZON_MS, end)
                if tab.opens_tab and page is self.page:
                    try:
                        await self.context.wait_for_event("page", timeout=max(1, (end - time.monotonic()) * 1000))
                    except Error:
                        if not self._notices.downloads:  # which no tab comes of
                            self._notices.tell("the new tab that this page asked for has not opened yet")
                    tab.opens_tab = False
                if tries_left and await self._leave_download():
                    continue
                if tries_left and (page is not self.page or (tab.leaving and time.monotonic() < end)):
                    continue
                if tries_left < 2:
                    self._notices.tell(KEEPS_LOADING)
                return await self._describe(tab, seen)
            except (Error, ChannelError, ChannelClosed) as error:
                if not tries_left or not await self._recover(page, error):
                    raise
        raise AssertionError("unreachable")

    async def _see(self, tab: Tab, before: str, horizon_ms: int, end: float) -> dict[str, Any]:
        """What `__webrl.look` tells of a page; what was copied on one page can be pasted on the next."""
        cap_ms = max(0.0, end - time.monotonic()) * 1000
        hidden = json.dumps(list(self._site.hidden_ids))
        form = self._config.observation
        how = f"{horizon_ms}, {cap_ms:.0f}, {hidden}, '{form}', {self._first_id}, {json.dumps(self._copied)}"
        seen: dict[str, Any] = await tab.evaluate_or_stop(f"{before}__webrl.look({how})", self.patience_s)
        self._copied = seen["copied"] or self._copied
        for line in seen["told"]:
            self._notices.tell(line)
        return seen

    async def _describe(self, tab: Tab, seen: dict[str, Any]) -> tuple[Observation, Verdict]:
        """Observation and verdict of a quiet page that has just been marked."""
        from playwright.async_api import Error

        frame, tab.filled_in = tab.filled_in, ""
        with contextlib.suppress(ChannelError):  # the frame has gone
            if frame and (why := await tab.evaluate_or_stop("__webrl.whyPutBack()", self.patience_s, frame)):
                self._notices.tell(why)
        text, self._ids = await read_page(tab, seen, self._config.observation, self._site.hidden_ids)
        if tab.stays and not tab.leaving:
            tab.stays = False
            with contextlib.suppress(Error):  # it leaves again
                for _ in range(2):  # Playwright hears why, and what the status was, before it answers
                    await tab.page.title()
        for line in await tab.take_asked():
            self._notices.tell(line)
        if arriving := await tab.arriving_frames():
            self._notices.tell(f"frames of this page that are still loading: {len(arriving)}")
        self._text = text = self._notices.take() + text
        url = self._address(tab.page, seen["url"])
        verdict = await self._site.judge(tab, tab.page is self._first_page, url, seen["state"])
        screenshot = await self._capture(tab) if self._config.screenshots else None
        details = None
        if self._details and not seen.get("tooLarge"):
            snapshot = await tab.send("DOMSnapshot.captureSnapshot", {"computedStyles": [], "includeDOMRects": True})
            viewport = self._config.viewport or self._site.viewport
            details = self._details(snapshot, self._site.hidden_ids, self.scale, viewport)
        return Observation(text, url, self._goal, screenshot, details), verdict

    def _address(self, page: Page, url: str) -> str:
        """A tab's address; a page that was written over another one has kept that one's."""
        return self._site.url if page is self._first_page and url == self._loaded_url else url

    async def _recover(self, page: Page, error: Exception) -> bool:
        """After an error that a navigation explains: wait for the new document; False if it is something else."""
        from playwright.async_api import Error

        text = str(error)
        if "the page has no __webrl" in text:
            # Documents that run no init script (PDF viewer, error pages) get it now.
            tab = self._tabs[page]
            await tab.evaluate_in_page(self._page_script)
            try:
                await tab.evaluate("__webrl.moving()")
            except ScriptError:  # it hears nothing
                world = {"frameId": tab.main_frame, "worldName": "webrl page"}
                context = (await tab.send("Page.createIsolatedWorld", world))["executionContextId"]
                await tab.evaluate_in_page(_TIMER + self._page_script, context)
                await tab.evaluate(_TIMER)
            return True
        if isinstance(error, ChannelClosed):
            # Playwright hears of a closed page by its own line, a little later.
            await asyncio.sleep(0.1)
        if page.is_closed():
            return bool(self.context.pages)
        if not any(part in text for part in _TRANSIENT):
            return False
        with contextlib.suppress(Error):
            await page.wait_for_load_state("domcontentloaded", timeout=self._config.settle_cap_s * 1000)
        return True

    def check_url(self, url: str) -> None:
        """Refuse addresses outside the allow-list before the browser tries them."""
        if not self._guard.allows(url):
            self._guard.blocked += 1
            raise ActionFailed(f"Blocked: {url!r:.200} is outside the hosts of this task.")

    def tell(self, line: str) -> None:
        """Show the agent a line above the next page."""
        self._notices.tell(line)

    async def _new_profile(self, site: Site) -> None:
        """A profile that reaches what the site names, with one empty page."""
        width, height = self._config.viewport or site.viewport
        self._guard = NavigationGuard(
            (*site.hosts, *self._config.allowed_hosts),
            self._config.public_hosts,
            devtools_port=self._browser.port,
            limits=self._limits,
            routes=self._routes,
        )
        options = {"viewport": {"width": width, "height": height}} | await self._guard.open() | self._profile_options
        self.context = await self._browser.new_context(**options)
        self.context.set_default_timeout(PAGE_TIMEOUT_MS)
        await self._guard.attach(self.context)
        if self.observer:
            await self.observer.attach(self.context)
        self._notices.attach(self.context)
        await self.context.add_init_script(self._page_script)
        await self.context.new_page()
        self.context.on("page", self._activate)

    @property
    def _page_script(self) -> str:
        """What every document runs before its own scripts."""
        # A person's clipboard is the machine's.
        more = self.observer.script if self.observer else load_script("clipboard")
        return f"{load_script('settle', 'miniwob')}\n{more}"

    def _activate(self, page: Page) -> None:
        """A new tab becomes the active one, as in BrowserGym."""
        if self.context is None:
            return  # the profile is being closed
        is_outward = page.url in ("", "about:blank") and any(tab.opens_outward for tab in self._tabs.values())
        for tab in self._tabs.values():
            tab.opens_tab = tab.opens_outward = False
        if is_outward:  # the agent was told that nothing was opened
            self._notices.finish(page.close())
            return
        if len(self.context.pages) > MAX_TABS:
            self._notices.tell(f"a new tab was closed: {MAX_TABS} are open")
            self._notices.finish(page.close())
            return
        self.page = page

    async def _use_tab(self) -> Tab:
        """The active tab, opened if need be; if its page has been closed, the newest other one."""
        if self.page.is_closed():
            if not self.context.pages:
                raise BrowserError("all tabs are closed")
            self.page = self.context.pages[-1]
        tab = self._tabs.get(self.page)
        if tab is None:
            every = self._config.every_element
            every = self.every_element if every is None else every
            facts = json.dumps({"every": every, "watched": self.observer is not None})
            script = f"{self._script}\nObject.assign(__webrl, {facts});"
            page = self.page  # another may become the active one meanwhile
            tab = self._tabs[page] = await Tab.open(page, self._browser.port, script)
            if self.imports and not self._site.reusable:
                await tab.watch_imports()
        tab.first_id, tab.on_crash = self._first_id, self._end_crashed
        self.tab = tab
        return tab

    async def _leave_download(self) -> bool:
        """Close the active tab if a download is all that came of it: a link opened it, and it has no document."""
        page = self.page
        is_only = page is self._first_page or len(self.context.pages) == 1
        if is_only or page.url not in _NO_DOCUMENT or not self._notices.downloads:
            return False
        self._notices.downloads = 0
        opener = await page.opener()
        await page.close()
        self.page = opener or self.context.pages[-1]
        await self.page.bring_to_front()
        return True

    async def _capture(self, tab: Tab) -> bytes:
        width, height = self._config.viewport or self._site.viewport
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": self.scale}
        return base64.b64decode((await tab.send("Page.captureScreenshot", {"format": "png", "clip": clip}))["data"])
