"""A direct line to one open tab: Chrome DevTools Protocol over a local WebSocket.

Playwright's driver costs about 4 ms of CPU a call, this line under 1 ms; the calls of every step go through it and
everything else through Playwright, on the same pages.

Scripts that read a page and act on it run in their own world: they share its elements, but neither its globals
nor its prototypes, which pages replace.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from webrl.runs.text import dump_json, load_json, valid_text

if TYPE_CHECKING:
    from playwright.async_api import Page

# Events of the network are many; most are told by their first bytes.
_NETWORK = b'{"method":"Network.'
_BEGINS = _NETWORK + b'requestWillBeSent"'
_ENDS = (_NETWORK + b'loadingFinished"', _NETWORK + b'loadingFailed"')
_ASKED = re.compile(rb'"type":"(?:Script|XHR)"')

# What the browser says of a call whose document was replaced meanwhile.
REPLACED = (
    "context was destroyed", "navigated or closed", "detached", "frameId is not found", "Cannot find context",
    "given id", "Cannot find default execution context", "Promise was collected",
)  # fmt: skip

_FINAL, _OPCODE = 0x80, 0x0F
_TEXT, _CONTINUED, _CLOSE, _PING, _PONG = 0x1, 0x0, 0x8, 0x9, 0xA
_MASKED = 0x80
MAX_MESSAGE_BYTES = 1 << 28
"""A page that makes the browser send more in one message is given up."""


@cache
def load_script(*names: str) -> str:
    """Concatenated JavaScript files of this package, by name without `.js`."""
    folder = Path(__file__).parent / "js"
    return "\n".join((folder / f"{name}.js").read_text(encoding="utf-8") for name in names)


class ChannelError(Exception):
    """The browser answered with an error, or an exception was thrown in the page; the text says which."""


class ScriptError(ChannelError):
    """An exception was thrown in the page."""


class ChannelClosed(Exception):
    """Page or browser are gone or have crashed."""


# What a browser opens itself; all other addresses (`mailto:`) are for programs that a person runs next to it.
_OWN = "about|blob|chrome[a-z-]*|data|devtools|file|filesystem|https?|javascript|view-source"
_OUTWARD = re.compile(rf"(?!(?:{_OWN}):)[a-z][a-z\d+.-]*:", re.I)
# What the browser logs of links, forms and scripts that it does not follow, and shows to no one.
_UNFOLLOWED = re.compile(
    r"(?P<page>Not allowed to (?:load local resource|navigate top frame))|(?P<tab>Blocked opening)|Ignored call to|"
    r"Blocked form submission|Refused to send form data|Sending form data to \S+ violates the following Content|"
    r"Unsafe attempt to initiate navigation"
)
# A document has gone, and the world with it; another context may have its number.
_NO_WORLD = re.compile("Cannot find context|__webrl is not defined")
_BUTTON_BITS = {"left": 1, "right": 2, "middle": 4}


class Tab:
    """One page and its DevTools session; calls may overlap and are carried out in the order they are made.

    It is its own WebSocket client, for Chromium's DevTools server on loopback alone: every step of every episode passes
    through it about ten times, and a general library costs more here than parsing and carrying out the calls does. Left
    out: TLS, extensions, and fragmented sending.
    """

    def __init__(self, page: Page, script: str = "") -> None:
        self.page = page
        self.pointer: tuple[float, float] | None = None
        """Where the direct line, or a scroll, has put the mouse; None if they have not moved it."""
        self.held_keys: set[str] = set()
        """Modifier keys that the agent holds down."""
        self.frames: dict[str, str] = {}
        """DevTools' ids of the frames that were last looked at, by their bid."""
        self.filled_in = ""
        """DevTools' id of the frame in which the last action has filled or chosen something; "": in none."""
        self.unseen_in_frames = 0
        """Elements of those frames that a person could use, but that are not shown."""
        self.outward: list[str] = []
        """What the page has asked for since the last observation and the browser does not do, for the agent."""
        self.opens_tab = False
        """Whether it has asked for a new tab, which the browser reports a little later."""
        self.opens_outward = False
        """Whether the last tab that it asked for was to lead out of the browser: Chromium 153 opens an empty one."""
        self.loading: set[str] = set()
        """The page's frames that are on their way to a document, its own included, by DevTools' id."""
        self.stays = False
        """Whether what was last asked for has brought no document so far: it is a download, or nothing."""
        self.heard_at = math.inf
        """When its last network event was heard (`watch_imports` turns them on), by `time.monotonic`."""
        self.asking: set[str] = set()
        """Its requests by XMLHttpRequest that have no answer yet, by DevTools' id."""
        self.num_documents = 0
        """Documents that its main frame has navigated to since this was opened."""
        self.on_crash: Callable[[Page], None] | None = None
        """Called with its page when that crashes."""
        self.first_id = 0
        """Number of the first element of each of its documents."""
        self.main_frame = ""
        """DevTools' id of the page's own frame."""
        self.worlds: dict[str, int] = {}
        """The execution contexts of our own world in its documents, by frame."""
        self._script = script
        self._writer: asyncio.StreamWriter
        self._receiving: asyncio.Task[None]
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._closed = ""
        self._given_up: set[str] = set()  # of those, what is not waited for again
        self._keeping: list[str] = []  # fields out of sight that have kept a form from being sent
        self._bound_for = ""  # the address that it is on its way to, in quotes
        self._asking = ""  # the frame whose request for a document the browser is looking at
        self._imports: set[str] = set()
        self._has_changed = asyncio.Event()
        self._has_imported = False

    @classmethod
    async def open(cls, page: Page, port: int, script: str = "") -> Self:
        """Open the direct line to a page; `script` runs in our own world of a document before anything else is
        evaluated there. Raises ChannelClosed, Playwright's Error.
        """
        session = await page.context.new_cdp_session(page)
        target = (await session.send("Target.getTargetInfo"))["targetInfo"]["targetId"]
        await session.detach()
        tab = cls(page, script)
        try:
            reader, tab._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
            lines = (f"GET /devtools/page/{target} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Upgrade: websocket")
            key = base64.b64encode(os.urandom(16)).decode()
            more = ("Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", "", "")
            tab._writer.write("\r\n".join(lines + more).encode())
            status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode("latin-1")
            if " 101 " not in status:
                tab._writer.transport.abort()
                raise ConnectionRefusedError(status)
        except (OSError, EOFError) as error:
            raise ChannelClosed(f"no DevTools connection to the page: {error}") from None
        tab._receiving = asyncio.create_task(tab._receive(reader))
        try:
            domains = ("Inspector.enable", "Log.enable", "Page.enable")
            *_, tree = await tab.send_all(*((enable, {}) for enable in domains), ("Page.getFrameTree", {}))
        except BaseException:
            await tab.close()
            raise
        tab.main_frame = tree["frameTree"]["frame"]["id"]
        return tab

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Take messages until the browser hangs up."""
        parts: list[bytes] = []
        try:
            while True:
                first, size = await reader.readexactly(2)
                if size > 125:
                    size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
                if size + sum(map(len, parts)) > MAX_MESSAGE_BYTES:
                    return
                body = await reader.readexactly(size)
                opcode = first & _OPCODE
                if opcode == _CLOSE:
                    return
                if opcode == _PING:
                    self._writer.write(_frame(_PONG, body))
                elif opcode in (_TEXT, _CONTINUED):
                    parts.append(body)
                    if first & _FINAL:
                        self._take(b"".join(parts))
                        parts.clear()
        except (OSError, EOFError):
            pass
        finally:
            self._fail("the page has been closed")
            self._writer.transport.abort()

    async def send(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a DevTools method. Raises ChannelError (protocol error), ChannelClosed."""
        return (await self.send_all((method, params or {})))[0]

    async def send_all(self, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Call methods one after the other without waiting in between; their results. Errors as in `send`."""
        if self._closed:
            raise ChannelClosed(self._closed)
        loop = asyncio.get_running_loop()
        numbers = [next(self._ids) for _ in calls]
        futures = [loop.create_future() for _ in calls]
        self._waiting.update(zip(numbers, futures, strict=True))
        try:
            messages = (
                dump_json({"id": number, "method": method, "params": params})
                for number, (method, params) in zip(numbers, calls, strict=True)
            )
            self._writer.write(b"".join(_frame(_TEXT, message) for message in messages))
            answers = [await future for future in futures]
        finally:
            for number, future in zip(numbers, futures, strict=True):
                del self._waiting[number]
                if future.done() and not future.cancelled():
                    future.exception()  # seen, so that asyncio does not report the later ones of a failed group
        for (method, _), answer in zip(calls, answers, strict=True):
            if "error" in answer:
                raise ChannelError(f"{method}: {answer['error'].get('message', answer['error'])}")
        return [answer["result"] for answer in answers]

    async def evaluate_in_page(self, expression: str, context: int | None = None) -> Any:
        """Value of a JavaScript expression, promises awaited, in an execution context, or that of the page's own
        scripts. Raises ChannelError, ChannelClosed.
        """
        params: dict[str, Any] = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        if context is not None:
            params["contextId"] = context
        answer = await self.send("Runtime.evaluate", params)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise ScriptError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    async def evaluate(self, expression: str, frame: str = "") -> Any:
        """Value of an expression in our own world of a frame, by DevTools' id; "": the page's own."""
        frame = frame or self.main_frame
        context = self.worlds.get(frame)
        if context is not None:
            try:
                return await self.evaluate_in_page(expression, context)
            except ChannelError as error:
                if not _NO_WORLD.search(str(error)):
                    raise
        listens = {"expression": "window.__webrl?.listen()"}
        world = {"frameId": frame, "worldName": "webrl"}
        _, made = await self.send_all(("Runtime.evaluate", listens), ("Page.createIsolatedWorld", world))
        context = int(made["executionContextId"])
        await self.evaluate_in_page(self._script, context)
        self.worlds[frame] = context
        return await self.evaluate_in_page(expression, context)

    async def evaluate_or_stop(self, expression: str, patience_s: float, frame: str = "") -> Any:
        """Evaluate; a page that is on its way to a server that does not answer in `patience_s` is stopped, and stays
        what it was: Chromium holds scripts back while a page is leaving.
        """
        answer = asyncio.ensure_future(self.evaluate(expression, frame))
        try:
            await asyncio.wait([answer], timeout=patience_s)
            if not answer.done() and self.leaving:
                if self.stays:
                    self._tell(f"{self._bound_for or 'the next page'} did not open: its server has not answered")
                await self.send("Page.stopLoading")
            return await answer
        finally:
            answer.cancel()

    async def close(self) -> None:
        """Hang up; the page lives on."""
        self._fail("the page has been closed")
        self._receiving.cancel()
        await asyncio.gather(self._receiving, return_exceptions=True)

    async def watch_imports(self) -> None:
        """Follow the scripts on their way to the page: `import()` leaves no trace in it. Raises ChannelClosed."""
        await self.send("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0})

    def _take(self, data: bytes) -> None:
        if data.startswith(_NETWORK):
            self.heard_at = time.monotonic()
            if not (data.startswith(_ENDS) or (data.startswith(_BEGINS) and _ASKED.search(data))):
                return
        message = load_json(data)
        future = self._waiting.get(message.get("id", 0))
        if future is not None and not future.done():
            future.set_result(message)
        elif "method" in message:
            self._note(message["method"], message.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        """Follow what the page does by itself: crash, leave for another document, import scripts."""
        if method == "Inspector.targetCrashed":
            self._fail("the page has crashed")
            if self.on_crash:
                self.on_crash(self.page)
        elif method in ("Page.windowOpen", "Page.frameRequestedNavigation") and _OUTWARD.match(params["url"]):
            self._tell(f"{valid_text(params['url'])!r:.200} leads out of the browser: nothing was opened")
            self.opens_outward |= method == "Page.windowOpen"
        elif method == "Page.windowOpen" or params.get("disposition", "").startswith("new"):
            self.opens_tab, self.opens_outward = True, False
        elif method == "Log.entryAdded":
            entry = params["entry"]
            if entry["text"].startswith("An invalid form control"):
                self._keeping += [node["objectId"] for node in entry.get("args", ())]
            found = _UNFOLLOWED.match(entry["text"])
            if found and not (found["page"] and entry["source"] == "javascript"):  # that is a picture, or a script
                self._tell(f"the browser says: {valid_text(entry['text']).strip()!r:.300}")
                self.opens_tab &= not found["tab"]
                if found["page"]:
                    self._arrive(self._asking)  # it stays
        elif method in ("Page.frameScheduledNavigation", "Page.frameClearedScheduledNavigation"):
            self._asking = params["frameId"] if "url" in params else ""
        elif method in ("Page.frameNavigated", "Page.frameDetached"):
            frame = params.get("frameId") or params["frame"]["id"]
            self.worlds.pop(frame, None)
            if frame == self.main_frame:
                self.num_documents += 1  # with its content to come
                self.stays, self._bound_for = False, ""
            else:
                self._arrive(frame)
        elif method == "Page.frameStartedLoading" or params.get("disposition") == "currentTab":
            self.loading.add(params["frameId"])
            self._given_up.discard(params["frameId"])
            if params["frameId"] == self.main_frame:
                self.stays = True
                self.forget_imports()
                if "url" in params:
                    self._bound_for = f"{valid_text(params['url'])!r:.200}"
        elif method == "Page.frameStoppedLoading":
            self._arrive(params["frameId"])
        elif method == "Page.downloadWillBegin":
            self.stays = True
        elif method == "Page.domContentEventFired":
            self._arrive(self.main_frame)
        elif method == "Network.requestWillBeSent" and params.get("type") in ("Script", "XHR"):
            (self._imports if params["type"] == "Script" else self.asking).add(params["requestId"])
        elif method in ("Network.loadingFinished", "Network.loadingFailed"):
            self.asking.discard(params["requestId"])
            if params["requestId"] not in self._imports:
                return
            self._imports.discard(params["requestId"])
            self._has_imported |= not self.leaving
            self._has_changed.set()

    def _tell(self, line: str) -> None:
        if line not in self.outward:
            self.outward = [*self.outward[:9], line]

    def _arrive(self, frame: str) -> None:
        self.loading.discard(frame)
        self._has_changed.set()

    async def arriving_frames(self) -> set[str]:
        """The frames within the page that a person can see, now or by scrolling, and that are on their way. Raises
        ChannelClosed.
        """
        found: set[str] = set()
        if not self.loading - {self.main_frame}:
            return found
        trees = [(await self.send("Page.getFrameTree"))["frameTree"]]
        for tree in trees:
            parent, children = tree["frame"]["id"], tree.get("childFrames", ())
            trees += children
            for frame in self.loading & {child["frame"]["id"] for child in children}:
                with contextlib.suppress(ChannelError):  # it has gone
                    if await self.can_be_seen(frame, parent):
                        found.add(frame)
        return found

    async def can_be_seen(self, frame: str, parent: str) -> bool:
        """Whether a person can see a frame in `parent`, now or by scrolling. Raises ChannelError: it has gone."""
        owner = await self.send("DOM.getFrameOwner", {"frameId": frame})
        await self.evaluate("null", parent)
        node = {"backendNodeId": owner["backendNodeId"], "executionContextId": self.worlds.get(parent, 0)}
        return bool(await self._ask((await self.send("DOM.resolveNode", node))["object"]["objectId"], "can_be_seen"))

    async def _ask(self, element: str, script: str) -> Any:
        """What a script's function says of an element, by DevTools' id of the object, which is released."""
        asked = {"functionDeclaration": load_script(script), "returnByValue": True, "objectId": element}
        calls = (("Runtime.callFunctionOn", asked), ("Runtime.releaseObject", {"objectId": element}))
        return (await self.send_all(*calls))[0]["result"].get("value")

    async def take_asked(self) -> list[str]:
        """What the page has asked for since the last call and the browser does not do, for the agent."""
        for element in self._keeping[:9]:
            with contextlib.suppress(ChannelError):  # it has gone
                self._tell(valid_text(await self._ask(element, "keeps_form"))[:300])
        lines, self.outward, self._keeping = self.outward, [], []
        return lines

    async def has_frames(self, end: float) -> bool:
        """Wait, until `end`, for frames on their way, but never again for one that does not come; whether any has.
        Raises ChannelClosed.
        """
        awaited = await self.arriving_frames() - self._given_up
        await self._wait_while(lambda: awaited & self.loading, end)
        self._given_up |= awaited & self.loading
        return bool(awaited - self.loading)

    def forget_asked(self) -> None:
        """Drop what it asked for outside the browser or in a new tab: that belongs to an earlier episode."""
        self.outward, self._keeping = [], []
        self.opens_tab = self.opens_outward = False

    def forget_imports(self) -> None:
        """Wait for none of those on their way again."""
        self._imports.clear()
        self._has_changed.set()

    async def has_imported(self, end: float) -> bool:
        """Wait, until `end`, for scripts that the page imports; whether any has come, since this was last asked, that
        it may not have run yet. Raises ChannelClosed.
        """
        if not await self._wait_while(lambda: self._imports, end):
            self.forget_imports()
        has, self._has_imported = self._has_imported, False
        return has and time.monotonic() < end

    @property
    def leaving(self) -> bool:
        """Whether the page is on its way to another document."""
        return self.main_frame in self.loading

    async def arrive(self, end: float) -> None:
        """Wait, until `end` (`time.monotonic`), for a document that is on its way. Raises ChannelClosed."""
        await self._wait_while(lambda: self.leaving, end)

    async def _wait_while(self, is_so: Callable[[], object], end: float) -> bool:
        """Whether it is no longer so before `end`."""
        while is_so():
            self._has_changed.clear()
            try:
                async with asyncio.timeout(max(0.0, end - time.monotonic())):
                    await self._has_changed.wait()
            except TimeoutError:
                return False
            if self._closed:
                raise ChannelClosed(self._closed)
        return True

    def _fail(self, reason: str) -> None:
        self._closed = self._closed or reason
        self.loading.clear()
        self.forget_imports()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ChannelClosed(self._closed))

    async def move(self, x: float, y: float) -> None:
        """Move the mouse."""
        self.pointer = (x, y)
        await self.send_all(_mouse("mouseMoved", x, y))

    async def leave_page(self) -> None:
        """Take the mouse off the page. A move alone is delivered with the next frame, a button's event at once."""
        self.pointer = None
        await self.send_all(_mouse("mouseMoved", -1, -1), _mouse("mouseReleased", -1, -1))

    async def click(self, x: float, y: float, button: str = "left", count: int = 1) -> None:
        """Move the mouse and click, `count` times in quick succession; the events of Playwright's `mouse.click`."""
        self.pointer = (x, y)
        calls = [_mouse("mouseMoved", x, y)]
        for number in range(1, count + 1):
            pressed = {"button": button, "clickCount": number}
            calls.append(_mouse("mousePressed", x, y, buttons=_BUTTON_BITS[button], **pressed))
            calls.append(_mouse("mouseReleased", x, y, **pressed))
        await self.send_all(*calls)


def _mouse(kind: str, x: float, y: float, **more: Any) -> tuple[str, dict[str, Any]]:
    return "Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **more}


def _frame(opcode: int, body: bytes) -> bytes:
    """A final WebSocket frame, masked with the key zero, which leaves the bytes as they are: RFC 6455 asks for a random
    key against caching proxies, of which loopback has none.
    """
    size = len(body)
    if size < 126:
        head = bytes((_FINAL | opcode, _MASKED | size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, _MASKED | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, _MASKED | 127)) + size.to_bytes(8, "big")
    return head + bytes(4) + body
