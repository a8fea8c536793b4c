"""The server's door: what a connection's first bytes say decides whether it is a WebSocket or plain HTTP.

API: `Doors(capacity, refuse, answer)`; `doors.connection_class()` goes to `websockets`' server, `doors.close()` ends
what it does not know of.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

from websockets.asyncio.server import ServerConnection

from webrl.openenv.access import REQUEST_TIMEOUT_S
from webrl.openenv.plain_http import HttpRequest, HttpResponse, PlainHttp

_WEBSOCKET = (b"GET /ws ", b"GET /ws?")


class Doors:
    """All connections of a server."""

    def __init__(
        self,
        capacity: int,
        refuse: Callable[[str, Mapping[str, str]], HttpResponse | None],
        answer: Callable[[HttpRequest], Awaitable[HttpResponse]],
    ) -> None:
        """Further connections than `capacity` are hung up on at once; `refuse` and `answer` are `PlainHttp`'s."""
        self._capacity = capacity
        self._refuse = refuse
        self._answer = answer
        self._open: set[ServerConnection] = set()

    def close(self) -> None:
        """Hang up on whoever is still connected."""
        for connection in list(self._open):
            connection.transport.abort()

    def connection_class(self) -> type[ServerConnection]:
        """The class of this server's connections."""
        doors = self

        class Door(ServerConnection):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                _keep_alive(transport.get_extra_info("socket"))
                self.transport = transport
                self.first = b""
                self.http: PlainHttp | None = None
                self.is_websocket = False
                doors._open.add(self)
                self.deadline = self.loop.call_later(REQUEST_TIMEOUT_S, transport.abort)
                if len(doors._open) > doors._capacity:
                    transport.abort()

            def data_received(self, data: bytes) -> None:
                if self.is_websocket:
                    super().data_received(data)
                elif self.http is not None:
                    self.http.feed(data)
                else:
                    self.first += data
                    if len(self.first) < len(_WEBSOCKET[0]) and _WEBSOCKET[0].startswith(self.first):
                        return
                    self.deadline.cancel()
                    self._decide()

            def _decide(self) -> None:
                first, self.first = self.first, b""
                if first.startswith(_WEBSOCKET):
                    self.is_websocket = True
                    super().connection_made(self.transport)
                    super().data_received(first)
                else:
                    self.http = PlainHttp(self.transport, doors._refuse, doors._answer)
                    self.http.feed(first)

            def eof_received(self) -> None:
                if self.is_websocket:
                    super().eof_received()

            def connection_lost(self, exc: Exception | None) -> None:
                doors._open.discard(self)
                self.deadline.cancel()
                if self.is_websocket:
                    super().connection_lost(exc)
                elif self.http is not None:
                    self.http.lost()

        return Door


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice after two or three minutes that the other machine has gone.

    While an answer waits for it, nothing asks whether it is alive: that answer is sent again for a quarter of an hour
    unless the last option says how long.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 60),
        ("TCP_KEEPINTVL", 20),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 140_000),
    ):
        if hasattr(socket, name):  # macOS has other names, and defaults
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
