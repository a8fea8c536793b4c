"""A direct line to one page: Chrome DevTools Protocol over a local WebSocket.

Playwright's driver costs about 4 ms of CPU a call, this line under 1 ms; the calls of every step go through it and
everything else through Playwright, on the same pages.

API: `channel = await Channel.open(port, target_id)`, `await channel.send(method, params)`,
`await channel.evaluate(expression)`, `await channel.close()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from typing import Any, Self

import orjson

logger = logging.getLogger(__name__)


class ChannelError(Exception):
    """The page answered with an error, or an exception was thrown in it; the text says which."""


class ChannelClosed(Exception):
    """Page or browser are gone or have crashed."""


class Channel:
    """One page's DevTools session; calls may overlap and are carried out in the order they are made."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())
        self._closed = ""
        self._main_frame = ""
        self._arrived = asyncio.Event()
        self._arrived.set()

    @classmethod
    async def open(cls, port: int, target_id: str) -> Self:
        """Connect to a page by its DevTools target id. Raises ChannelClosed."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException

        try:
            socket = await connect(
                f"ws://127.0.0.1:{port}/devtools/page/{target_id}",
                max_size=None,
                compression=None,
                ping_interval=None,
                proxy=None,
            )
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ChannelClosed(f"no DevTools connection to the page: {error}") from None
        channel = cls(socket)
        await channel.send("Inspector.enable")
        await channel.send("Page.enable")
        tree = await channel.send("Page.getFrameTree")
        channel._main_frame = tree["frameTree"]["frame"]["id"]
        return channel

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a DevTools method. Raises ChannelError (protocol error), ChannelClosed."""
        from websockets.exceptions import ConnectionClosed

        if self._closed:
            raise ChannelClosed(self._closed)
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._socket.send(orjson.dumps({"id": number, "method": method, "params": params or {}}), text=True)
            answer = await future
        except ConnectionClosed:
            raise ChannelClosed("the page has been closed") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise ChannelError(f"{method}: {answer['error'].get('message', answer['error'])}")
        result: dict[str, Any] = answer["result"]
        return result

    async def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression in the page, promises awaited. Raises ChannelError, ChannelClosed."""
        params = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = await self.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ChannelError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    async def close(self) -> None:
        """Hang up; the page lives on."""
        self._fail("the page has been closed")
        self._reader.cancel()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._socket.close(), 1)

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = orjson.loads(await self._socket.recv(decode=False))
                future = self._waiting.get(message.get("id", 0))
                if future is not None and not future.done():
                    future.set_result(message)
                elif "method" in message:
                    self._note(message["method"], message.get("params", {}))
        except ConnectionClosed:
            self._fail("the page has been closed")

    def _note(self, method: str, params: dict[str, Any]) -> None:
        """Follow what the page does by itself: crash, and leave for another document."""
        if method == "Inspector.targetCrashed":
            self._fail("the page has crashed")
        elif params.get("frameId") == self._main_frame:
            if method == "Page.frameStartedLoading" or (
                method == "Page.frameRequestedNavigation" and params.get("disposition", "currentTab") == "currentTab"
            ):
                self._arrived.clear()
            elif method == "Page.frameStoppedLoading":
                self._arrived.set()
        elif method == "Page.domContentEventFired":
            self._arrived.set()

    @property
    def leaving(self) -> bool:
        """Whether the page is on its way to another document."""
        return not self._arrived.is_set()

    async def arrive(self) -> None:
        """Wait until the next document has its content. Raises ChannelClosed."""
        arrived = asyncio.ensure_future(self._arrived.wait())
        await asyncio.wait([arrived, self._reader], return_when=asyncio.FIRST_COMPLETED)
        arrived.cancel()
        if self._closed:
            raise ChannelClosed(self._closed)

    def _fail(self, reason: str) -> None:
        self._closed = self._closed or reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosed(self._closed))
