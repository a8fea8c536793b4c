"""The profile that an environment plays in: the browser's context, its tabs, and which of them is the active one.

API: `BrowserProfile(browser, config.rollout)` is the part of `BrowserEnv` that knows of no episode. Suites hand it what
a profile is to have (`_profile_options`, `_limits`, `_routes`, `_notices`), or one that is open already.

`Notices` tells what happens beside the page and would go unseen: dialog boxes, which are answered, and downloads, which
are refused.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.actions import Action
from webrl.rollouts.browser import Browser
from webrl.rollouts.devtools import Tab
from webrl.rollouts.execute import ActionFailed
from webrl.rollouts.guard import NO_LIMITS, NavigationGuard
from webrl.rollouts.observe import load_script
from webrl.rollouts.sites import Site
from webrl.runs.text import valid_text

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

MAX_LINES = 5
"""An observation tells no more than these; further ones are counted."""


class Notices:
    """See the module docstring."""

    def __init__(self, *, accept: bool = False) -> None:
        self._accept = accept
        self._lines: list[str] = []
        self._answers: set[asyncio.Future[None]] = set()
        self.downloads = 0
        """Downloads refused since this was set back."""

    def attach(self, context: BrowserContext) -> None:
        """Watch a new profile."""
        self._lines.clear()
        self.downloads = 0
        context.on("dialog", self._answer)
        context.on("page", self._follow)

    def take(self) -> str:
        """What has happened since the last call, a line each."""
        lines, self._lines = self._lines, []
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
        return "".join(f"{line}\n" for line in lines)

    def tell(self, line: str) -> None:
        """Add a line of an action's own."""
        self._lines.append(line)

    def _follow(self, page: Page) -> None:
        page.on("download", self._note_download)

    def _note_download(self, download: Download) -> None:
        self.downloads += 1
        self._lines.append(f"download {valid_text(download.suggested_filename)!r:.200}, refused")

    def _answer(self, dialog: Dialog) -> None:
        leaves = dialog.type == "beforeunload"  # Playwright's answer too, where nobody listens
        words = "answered Leave: what was not saved is lost" if leaves else self._words(dialog)
        self._lines.append(f"{dialog.type} box {valid_text(dialog.message)!r:.200}, {words}")
        accepts = leaves or self._accept
        answering = asyncio.ensure_future(self._end(dialog, accepts=accepts))
        self._answers.add(answering)
        answering.add_done_callback(self._answers.discard)

    def _words(self, dialog: Dialog) -> str:
        if dialog.type == "alert":
            return "closed"
        if not self._accept:
            return "answered Cancel"
        return (
            f"answered OK with {valid_text(dialog.default_value)!r:.200}" if dialog.type == "prompt" else "answered OK"
        )

    async def _end(self, dialog: Dialog, *, accepts: bool) -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # its page has gone
            await (dialog.accept(dialog.default_value) if accepts else dialog.dismiss())


MAX_TABS = 20
"""Open tabs of an environment; further ones are closed at once."""
_PAGE_TIMEOUT_MS = 5000
_NO_DOCUMENT = ("", ":")
"""Addresses of a tab that a link or a script has opened, while it has no document; ":" seen with Chromium 150."""


class EpisodeObserver(Protocol):
    """Somebody in whose sight episodes are played: a person who demonstrates (`webrl_site.hand`)."""

    script: str
    """Every document runs it before its own scripts."""

    async def attach(self, context: BrowserContext) -> None:
        """Called for a new profile, before its first page."""
        ...

    def acting(self, action: Action) -> AbstractAsyncContextManager[None]:
        """Around every action."""
        ...


class BrowserProfile:
    """See the module docstring."""

    imports = True
    """Whether pages may import scripts while they run: programs of one document do. It costs to watch for them."""
    every_element = False
    """`rollout.every_element` where the config leaves it open."""

    def __init__(self, browser: Browser, config: RolloutConfig) -> None:
        self._browser = browser
        self._config = config
        self._script = load_script("world", "mark", "act")
        """What runs in our own world of a document that is read or acted on."""
        self._site: Site = None  # type: ignore[assignment]
        self._first_page: Page | None = None
        self._tabs: dict[Page, Tab] = {}
        self._activated = asyncio.Event()
        self._closing: set[asyncio.Future[None]] = set()
        self._limits = NO_LIMITS
        self._routes: dict[str, int] = {}
        self._profile_options: dict[str, Any] = {}
        self._first_id = 0
        self._guard = NavigationGuard(())
        self._notices = Notices()
        self.context: BrowserContext = None  # type: ignore[assignment]
        self.page: Page = None  # type: ignore[assignment]
        self.tab: Tab = None  # type: ignore[assignment]
        self.scale = 1.0
        self.upload_dir = config.upload_dir
        self.max_tabs = MAX_TABS
        self.observer: EpisodeObserver | None = None

    async def close(self) -> None:
        """Close the profile and its pages."""
        context, self.context = self.context, None  # type: ignore[assignment]
        for tab in self._tabs.values():
            await tab.close()
        self._tabs.clear()
        if context is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(context.close(), 5)
        await self._guard.close()

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
        options = {"viewport": {"width": width, "height": height}} | await self._guard.open()
        options |= self._profile_options
        self.context = await self._browser.new_context(**options)
        self.context.set_default_timeout(_PAGE_TIMEOUT_MS)
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
        if len(self.context.pages) > MAX_TABS:
            closing = asyncio.ensure_future(page.close())
            self._closing.add(closing)
            closing.add_done_callback(self._forget)
            return
        self.page = page
        self._activated.set()

    def _forget(self, closing: asyncio.Future[None]) -> None:
        self._closing.discard(closing)
        if not closing.cancelled():
            closing.exception()  # the tab has gone by itself, or with its profile

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
            script = f"{self._script}\n__webrl.every = {json.dumps(every)};"
            tab = self._tabs[self.page] = await Tab.open(self.page, self._browser.port, script)
            if self.imports and not self._site.reusable:
                await tab.channel.watch_imports()
        tab.first_id = self._first_id
        self.tab = tab
        return tab

    @property
    def _is_empty(self) -> bool:
        """Whether the active tab has had no document yet."""
        return self.page.url in _NO_DOCUMENT

    async def _leave_download(self) -> bool:
        """Close the active tab if a download is all that came of it: a link opened it, and it has no document."""
        page = self.page
        if (
            not self._is_empty
            or page is self._first_page
            or not self._notices.downloads
            or len(self.context.pages) == 1
        ):
            return False
        self._notices.downloads = 0
        opener = await page.opener()
        await page.close()
        self.page = opener or self.context.pages[-1]
        await self.page.bring_to_front()
        return True

    async def _await_popup(self, page: Page, end: float) -> None:
        """The page has asked for a new tab: wait, until `end`, for it to become the active one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                self._activated.clear()
                while page is self.page and not page.is_closed():
                    await self._activated.wait()

    @property
    def _viewport(self) -> tuple[int, int]:
        """Width and height in CSS pixels."""
        return self._config.viewport or self._site.viewport

    async def _capture(self, tab: Tab) -> bytes:
        width, height = self._viewport
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": self.scale}
        answer = await tab.channel.send("Page.captureScreenshot", {"format": "png", "clip": clip})
        return base64.b64decode(answer["data"])
