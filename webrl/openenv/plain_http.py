"""HTTP/1.1 on a connection that is no WebSocket: requests with small bodies, one at a time, with deadlines.

API: `PlainHttp(transport, refuse, answer)`; the owner of the transport calls `feed(data)` and `lost()`. `refuse(path,
headers)` may say no as soon as a request's head is there: its body is then read (else the client would not hear the
answer), but not kept. `answer` is awaited for each other `HttpRequest` and returns an `HttpResponse`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

import h11

from webrl.openenv.access import MAX_REQUEST_BYTES, REQUEST_TIMEOUT_S, SEND_TIMEOUT_S

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 60.0
"""A connection without a request for so long is closed."""
_PAUSE_S = 0.01
"""At least so long between two answers on a connection."""


@dataclass(frozen=True)
class HttpRequest:
    """One request."""

    method: str
    """In upper case."""
    path: str
    """Without its query."""
    headers: Mapping[str, str]
    """By name in title case (`Authorization`); of several with one name the last."""
    body: bytes
    """At most MAX_REQUEST_BYTES."""
    address: str
    """The client's."""
    gone: asyncio.Event
    """Set once the client has closed its connection."""


@dataclass(frozen=True)
class HttpResponse:
    """One response."""

    status: int
    """HTTP status."""
    body: bytes
    """What it says."""
    content_type: str = "application/json"
    """What that is."""
    reason: str = ""
    """Reason phrase, which `requests` shows in its errors; "": the usual one."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers."""


class PlainHttp:
    """See the module docstring; lives in the server's event loop."""

    def __init__(
        self,
        transport: asyncio.Transport,
        refuse: Callable[[str, Mapping[str, str]], HttpResponse | None],
        answer: Callable[[HttpRequest], Awaitable[HttpResponse]],
    ) -> None:
        self._transport = transport
        self._refusal_of = refuse
        self._answer = answer
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=16_384)
        self._loop = asyncio.get_running_loop()
        self._head: h11.Request | None = None
        self._headers: dict[str, str] = {}
        self._refusal: HttpResponse | None = None
        self._body = bytearray()
        self._num_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._deadline = self._loop.call_later(REQUEST_TIMEOUT_S, transport.abort)

    def feed(self, data: bytes) -> None:
        """What the client has sent."""
        if self._task is not None:
            self._transport.pause_reading()  # one at a time: what comes after this stays in the kernel
        self._h11.receive_data(data)
        self._read()

    def lost(self) -> None:
        """The client has gone; who answers a request that is under way may finish it for nobody."""
        self._gone.set()
        self._deadline.cancel()

    def _read(self) -> None:
        try:
            self._take_events()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _take_events(self) -> None:
        while self._task is None:
            event = self._h11.next_event()
            if event is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    if self._refusal is not None:  # no body is needed to hear it
                        self._send(self._refusal)
                        self._transport.close()
                        return
                    self._write(h11.InformationalResponse(status_code=100, headers=[]))
                return
            if isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return
            if isinstance(event, h11.Request):
                self._arm(REQUEST_TIMEOUT_S)
                self._head = event
                self._headers = {n.decode("latin-1").title(): v.decode("latin-1") for n, v in event.headers}
                self._refusal = self._refusal_of(self._path(event), self._headers)
                self._body.clear()
                self._num_bytes = 0
                if any(name == b"content-length" and int(value) > MAX_REQUEST_BYTES for name, value in event.headers):
                    self._refuse(413, f"a body has at most {MAX_REQUEST_BYTES} bytes")
                    return
            elif isinstance(event, h11.Data):
                self._num_bytes += len(event.data)
                if self._refusal is None:
                    self._body += event.data
                if self._num_bytes > MAX_REQUEST_BYTES:
                    self._refuse(413, f"a body has at most {MAX_REQUEST_BYTES} bytes")
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._deadline.cancel()
                self._task = asyncio.create_task(self._respond())

    async def _respond(self) -> None:
        try:
            await self._answer_request()
        except Exception:  # whatever went wrong, the connection must not stay open for ever
            logger.exception("connection failed")
            self._transport.abort()

    async def _answer_request(self) -> None:
        assert self._head is not None
        request = HttpRequest(
            method=self._head.method.decode("latin-1").upper(),
            path=self._path(self._head),
            headers=self._headers,
            body=bytes(self._body),
            address=str((self._transport.get_extra_info("peername") or ("",))[0]),
            gone=self._gone,
        )
        try:
            response = self._refusal or await self._answer(request)
        except Exception:  # the boundary of the server: the others live on
            logger.exception("request failed")
            response = HttpResponse(500, b"internal error\n", "text/plain")
        if self._transport.is_closing():
            return
        self._send(response)
        await asyncio.sleep(_PAUSE_S)
        await self._drained()
        self._task = None
        if self._h11.our_state is h11.MUST_CLOSE:
            self._transport.close()
            return
        self._h11.start_next_cycle()
        self._head = None
        self._arm(KEEP_ALIVE_S)
        self._transport.resume_reading()
        self._read()

    @staticmethod
    def _path(head: h11.Request) -> str:
        return head.target.decode("latin-1").partition("?")[0]

    async def _drained(self) -> None:
        """Until the client has taken its answer."""
        end = self._loop.time() + SEND_TIMEOUT_S
        while self._transport.get_write_buffer_size() and not self._transport.is_closing():
            if self._loop.time() > end:
                self._transport.abort()
            await asyncio.sleep(_PAUSE_S)

    def _send(self, response: HttpResponse) -> None:
        reason = response.reason or HTTPStatus(response.status).phrase
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **response.headers,
        }
        head = h11.Response(
            status_code=response.status,
            headers=list(headers.items()),
            reason=" ".join(reason.split())[:300].encode("latin-1", "replace"),
        )
        has_body = self._head is None or self._head.method != b"HEAD"  # h11 knows it in this spelling
        self._write(head, *([h11.Data(data=response.body)] if has_body else []), h11.EndOfMessage())

    def _write(self, *events: h11.Event) -> None:
        for event in events:
            data = self._h11.send(event)
            if data:
                self._transport.write(data)

    def _refuse(self, status: int, text: str) -> None:
        """Answer what is no request that can be answered, and hang up."""
        if self._h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(HttpResponse(status, f"{text}\n".encode(), "text/plain", headers={"Connection": "close"}))
        self._transport.close()

    def _arm(self, timeout_s: float) -> None:
        self._deadline.cancel()
        self._deadline = self._loop.call_later(timeout_s, self._transport.abort)
