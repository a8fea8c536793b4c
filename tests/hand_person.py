"""A person at a visible page: mouse and keys as DevTools sends them for a hand, none of webrl's actions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from browsers import run, shared_browser
from rollouts_builders import serve

from webrl.config import RunConfig
from webrl.types import Task
from webrl_site.by_hand import record_by_hand

WAIT_S = 120.0


class Person:
    """Looks for things on the page as a person does, by their text, and points at them."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.said: list[str] = []
        self._heard = 0
        self._spoke = asyncio.Event()

    def hear(self, line: str) -> None:
        """What the recorder says."""
        self.said.append(line)
        self._spoke.set()

    async def wait(self, *words: str) -> str:
        """Until the recorder says a line with these words, after those waited for before."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for at in range(self._heard, len(self.said)):
                    if all(word in self.said[at] for word in words):
                        self._heard = at + 1
                        return self.said[at]
                self._spoke.clear()
                await self._spoke.wait()

    @property
    def page(self) -> Any:
        """The page in front."""
        return self._browser._browser.contexts[-1].pages[-1]

    async def point(self, target: Any) -> tuple[float, float]:
        """The middle of a thing (a locator, or a selector)."""
        found = self.page.locator(target) if isinstance(target, str) else target
        box = await found.first.bounding_box(timeout=WAIT_S * 1000)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    async def click(self, target: Any, **how: Any) -> None:
        await self.page.mouse.click(*await self.point(target), **how)

    async def type(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def press(self, key: str) -> None:
        await self.page.keyboard.press(key)

    def tell(self, line: str) -> None:
        """Into the terminal."""
        self.inbox.put_nowait(line)


def record(
    config: RunConfig,
    tasks: Sequence[Task] | Callable[[str], Sequence[Task]],
    out: Path,
    act: Callable[[Person], Awaitable[None]],
    pages: dict[str, str] | None = None,
    **more: Any,
) -> list[str]:
    """Record what a person does; gives all that the recorder has said. `pages` are served, `tasks` told where."""

    async def work() -> list[str]:
        async with serve(pages or {}) as url, shared_browser() as browser:
            chosen = tasks(url) if callable(tasks) else tasks
            person = Person(browser)
            recording = asyncio.ensure_future(
                record_by_hand(
                    chosen, config, out, say=person.hear, inbox=person.inbox, visible=browser, unseen=browser, **more
                )
            )
            acting = asyncio.ensure_future(act(person))
            try:
                await asyncio.wait([recording, acting], return_when=asyncio.FIRST_EXCEPTION)
                for ended in (recording, acting):
                    if ended.done():
                        ended.result()
                await recording
            except TimeoutError:
                raise AssertionError("\n".join(person.said)) from None
            finally:
                for each in (recording, acting):
                    each.cancel()
                await asyncio.gather(recording, acting, return_exceptions=True)
            return person.said

    return run(work())
