"""Browser profiles that arena episodes reuse: they are emptied, but keep their process.

API: `pool = ProfilePool.of(browser)`; `await pool.release(key, profile)` empties one for `await pool.acquire(key)`;
after acquiring one, call `await profile.clear_next_document()` before its first page and
`await profile.stop_clearing()` when that has loaded.

A new profile starts a process, which fetches, parses and compiles every script again: a fifth of what an episode costs.
All that an episode can leave in a profile is removed: documents, history, cookies, everything a page can store, the
mouse. What only a document of the site can clear, its tab's store and name, the next one does before its own scripts
run: a page for that alone would cost half a step. What stays is the files in its caches that are the same in all
sessions, which the server ensures (`webrl_arena/world/shop/gateway.py`): this is for the arena alone, whose sites are
one origin of our own.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from webrl.rollouts.devtools import ChannelClosed, ChannelError, Tab
from webrl.rollouts.guard import NavigationGuard

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from webrl.rollouts.browser import Browser

_CLOSE_S = 5.0
_FORGET = "if (window === top) { sessionStorage.clear(); window.name = ''; }"


@dataclass
class Profile:
    """A profile with one page."""

    context: BrowserContext
    tab: Tab
    guard: NavigationGuard
    origin: str
    """Of the arena, `http://HOST:PORT`: the only one that its pages could reach."""
    timeout_s: float
    """Longest that emptying it may take."""
    _forgetting: str = ""
    """Name of the script that does so in a new document."""

    async def empty(self) -> bool:
        """Remove what the episode has left, except for what `clear_next_document` removes; False if that fails."""
        from playwright.async_api import Error

        try:
            async with asyncio.timeout(self.timeout_s):
                # No page of a session: what the last one had under way ends, and nothing new is stored.
                await self.tab.page.goto("about:blank", timeout=self.timeout_s * 1000)
                stored = {"origin": self.origin, "storageTypes": "all"}
                await self.tab.send_all(
                    ("Network.clearBrowserCookies", {}),
                    ("Storage.clearDataForOrigin", stored),
                    ("Page.resetNavigationHistory", {}),
                )
                await self.tab.move(-1, -1)
        except (Error, ChannelError, ChannelClosed, TimeoutError):
            return False
        self.tab.pointer = None
        return True

    async def clear_next_document(self) -> None:
        """Have the next document clear what only a document can, before its own scripts run."""
        added = await self.tab.send("Page.addScriptToEvaluateOnNewDocument", {"source": _FORGET})
        self._forgetting = added["identifier"]

    async def stop_clearing(self) -> None:
        """Keep what later documents store."""
        script = {"identifier": self._forgetting}
        await self.tab.send("Page.removeScriptToEvaluateOnNewDocument", script)

    async def close(self) -> None:
        """Close it, with its page."""
        await self.tab.close()
        with contextlib.suppress(Exception):  # the browser has gone, or goes
            await asyncio.wait_for(self.context.close(), _CLOSE_S)
        await self.guard.close()


class ProfilePool:
    """The emptied profiles of a browser, by key."""

    def __init__(self) -> None:
        self._spare: dict[object, list[Profile]] = {}

    @classmethod
    def of(cls, browser: Browser) -> ProfilePool:
        """Return the pool of a browser, which closes with it."""
        if browser not in _POOLS:
            _POOLS[browser] = pool = cls()
            browser.on_close(pool._close)
        return _POOLS[browser]

    async def acquire(self, key: object) -> Profile | None:
        """Return a profile that was released under the key; None if there is none."""
        spare = self._spare.get(key, [])
        while spare:
            profile = spare.pop()
            if not profile.tab.page.is_closed():
                return profile
            await profile.close()
        return None

    async def release(self, key: object, profile: Profile) -> None:
        """Empty a profile for the next one to acquire the key."""
        emptied = False
        try:
            emptied = await profile.empty()
        finally:
            if not emptied:
                await profile.close()
        if emptied:
            self._spare.setdefault(key, []).append(profile)

    async def _close(self) -> None:
        spare = [profile for profiles in self._spare.values() for profile in profiles]
        self._spare.clear()
        await asyncio.gather(*(profile.close() for profile in spare))


_POOLS: WeakKeyDictionary[Browser, ProfilePool] = WeakKeyDictionary()
