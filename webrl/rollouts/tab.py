"""One open tab: Playwright's page, the direct line to it, and where its mouse is.

API: `tab = await Tab.open(page, port, script)`; `await tab.click(x, y)`, `await tab.insert_text(text)`,
`await tab.evaluate(expression)`, `await tab.evaluate_in_page(expression)`, `await tab.arrive(end)`,
`await tab.has_imported(end)`, `await tab.close()`.

Scripts that read a page and act on it run in a world of their own: they share its elements, but neither its globals
nor its prototypes, which pages replace.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Self

from webrl.rollouts.devtools import Channel, ChannelError

if TYPE_CHECKING:
    from playwright.async_api import Page

# A document has gone, and the world with it; another context may have its number.
_NO_WORLD = re.compile("Cannot find context|__webrl is not defined")
_BUTTON_BITS = {"left": 1, "right": 2, "middle": 4}


class Tab:
    """See the module docstring."""

    def __init__(self, page: Page, channel: Channel, script: str = "") -> None:
        self.page = page
        self.channel = channel
        self._script = script
        self.pointer: tuple[float, float] | None = None
        """Where the direct line, or a scroll, has put the mouse; None if they have not moved it."""
        self.held_keys: set[str] = set()
        """Modifier keys that the agent holds down."""
        self.frames: dict[str, str] = {}
        """DevTools' ids of the frames that were last looked at, by their bid."""
        self.unseen_in_frames = 0
        """Elements of those frames that a person could use, but that are not shown."""
        self.first_id = 0
        """Number of the first element of each of its documents."""

    @classmethod
    async def open(cls, page: Page, port: int, script: str = "") -> Self:
        """Open the direct line to a page. Raises ChannelClosed, Playwright's Error.

        Args:
            script: what is run in our own world of a document before anything else is evaluated there.
        """
        session = await page.context.new_cdp_session(page)
        target = await session.send("Target.getTargetInfo")
        await session.detach()
        return cls(page, await Channel.open(port, target["targetInfo"]["targetId"]), script)

    async def evaluate_in_page(self, expression: str) -> Any:
        """Value of an expression among the page's own scripts."""
        return await self.channel.evaluate(expression)

    async def evaluate(self, expression: str, frame: str = "") -> Any:
        """Value of an expression in our own world.

        Args:
            frame: DevTools' id of one of the page's frames; "": its own.
        """
        frame = frame or self.channel.main_frame
        context = self.channel.worlds.get(frame)
        if context is not None:
            try:
                return await self.channel.evaluate(expression, context)
            except ChannelError as error:
                if not _NO_WORLD.search(str(error)):
                    raise
        return await self.channel.evaluate(expression, await self._enter(frame))

    async def _enter(self, frame: str) -> int:
        """The context of our own world in a frame's document, with our script."""
        listens = {"expression": "window.__webrl?.listen()"}
        world = {"frameId": frame, "worldName": "webrl"}
        _, made = await self.channel.send_all(("Runtime.evaluate", listens), ("Page.createIsolatedWorld", world))
        context = int(made["executionContextId"])
        await self.channel.evaluate(self._script, context)
        self.channel.worlds[frame] = context
        return context

    async def evaluate_or_stop(self, expression: str, patience_s: float) -> Any:
        """Evaluate; a page that is on its way to a server that does not answer is stopped, and stays what it was.

        (Chromium holds scripts back while a page is leaving.)

        Args:
            patience_s: how long that server has.
        """
        answer = asyncio.ensure_future(self.evaluate(expression))
        try:
            await asyncio.wait([answer], timeout=patience_s)
            if not answer.done() and self.channel.leaving:
                await self.channel.send("Page.stopLoading")
            return await answer
        finally:
            answer.cancel()

    async def arrive(self, end: float) -> None:
        """If the page is on its way to another document, wait for that, until `end` (`time.monotonic`)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                while self.channel.leaving:
                    await self.channel.arrive()

    async def has_imported(self, end: float) -> bool:
        """Wait, until `end`, for scripts that the page imports; whether any has come that it may not have run yet."""
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                await self.channel.imported()
        except TimeoutError:
            self.channel.forget_imports()
        return self.channel.take_import() and time.monotonic() < end

    async def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.pointer = (x, y)
        await self.channel.send_all(_mouse("mouseMoved", x, y))

    async def leave_page(self) -> None:
        """Take the mouse off the page. A move alone is delivered with the next frame, a button's event at once."""
        self.pointer = None
        await self.channel.send_all(_mouse("mouseMoved", -1, -1), _mouse("mouseReleased", -1, -1))

    async def click(self, x: float, y: float, button: str = "left", count: int = 1) -> None:
        """Move the mouse and click, `count` times in quick succession; the events of Playwright's `mouse.click`."""
        self.pointer = (x, y)
        calls = [_mouse("mouseMoved", x, y)]
        for number in range(1, count + 1):
            pressed = {"button": button, "clickCount": number}
            calls.append(_mouse("mousePressed", x, y, buttons=_BUTTON_BITS[button], **pressed))
            calls.append(_mouse("mouseReleased", x, y, **pressed))
        await self.channel.send_all(*calls)

    async def insert_text(self, text: str) -> None:
        """Put text at the caret of the focused field."""
        await self.channel.send("Input.insertText", {"text": text})

    async def content_quads(self, expression: str) -> list[list[float]]:
        """Boxes of the element that an expression in our own world names: eight numbers each, clockwise.

        Empty if the element has gone, or its document.
        """
        context = self.channel.worlds.get(self.channel.main_frame, 0)
        try:
            answer = await self.channel.send("Runtime.evaluate", {"expression": expression, "contextId": context})
            if "objectId" not in answer["result"]:
                return []
            handle = {"objectId": answer["result"]["objectId"]}
            quads: list[list[float]] = (await self.channel.send("DOM.getContentQuads", handle))["quads"]
            await self.channel.send("Runtime.releaseObject", handle)
            return quads
        except ChannelError:
            return []

    async def close(self) -> None:
        """Hang up; the page lives on."""
        await self.channel.close()


def _mouse(kind: str, x: float, y: float, **more: Any) -> tuple[str, dict[str, Any]]:
    return "Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more}
