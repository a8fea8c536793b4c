"""Holds what all servers of webrl share: addresses, access control, and uvicorn with deadlines.

Threats, and what answers them:

- another machine: servers listen on loopback unless they have a token;
- a web page in a browser of this machine: requests with an `Origin` are refused, and so is a `Host` that is not this
  machine (a page may have its own name resolved to it); a token lifts both, because pages do not have it;
- a client that is slow, huge or gone: deadlines for a request's head and body and for reading its response, a bound on
  connections, and the kernel's keep-alive.

A token is passed in the environment, never on the command line, which other users of the machine see.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import ipaddress
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from webrl.errors import UsageError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")

ENV_TOKEN, MODEL_TOKEN = "WEBRL_ENV_TOKEN", "WEBRL_MODEL_TOKEN"
"""Environment variables of the tokens of `webrl serve-env` and `webrl serve-model`, read by server and client."""
MAX_BODY_BYTES = 1 << 20
"""Default bound of a request's body, and of a WebSocket message."""
REQUEST_TIMEOUT_S = 10.0
"""A connection that has not sent the whole head of its request by then is closed; the same for a body."""
SEND_TIMEOUT_S = 140.0
"""A client that has read nothing of what is sent to it for this long is dropped (by Linux); reading slowly is not."""
_KEEP_ALIVE_S = 60
"""An HTTP connection without a request for this long is closed."""
_SHUTDOWN_S = 2
"""How long requests may still run after Ctrl-C."""
_KERNEL_TIMEOUTS = {
    "TCP_KEEPIDLE": 60,
    "TCP_KEEPINTVL": 20,
    "TCP_KEEPCNT": 4,
    "TCP_USER_TIMEOUT": int(1000 * SEND_TIMEOUT_S),  # unacknowledged data is sent again for 15 minutes otherwise
}
"""The kernel closes the connections of a machine that has been gone for two or three minutes."""


class BodyError(Exception):
    """Raised for a body that is too large, or too slow."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ClientGone(Exception):
    """Raised when the client has closed its connection before its response was ready."""


def is_loopback(host: str) -> bool:
    """Returns True if a server bound to `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(host_header: str | None) -> bool:
    """Returns True if a request's `Host` header names this machine, or is missing."""
    try:
        return is_loopback(urlsplit(f"//{'localhost' if host_header is None else host_header}").hostname or "")
    except ValueError:
        return False


def check_port(port: int) -> None:
    """Raises UsageError if this is not a port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: ports are 1 to 65535; 0 picks a free one")


def check_address(host: str, port: int, token: str | None, variable: str) -> None:
    """Raises UsageError: not a port, or other machines can connect without a token, which `variable` would hold."""
    check_port(port)
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} lets other machines connect: set {variable} to a secret that clients send, "
            "or use --host 127.0.0.1"
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket: connections queue in it, and no other process can take the port; 0 is a free one.

    Raises:
        UsageError: the address cannot be used, or the port is taken.
    """
    check_port(port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KERNEL_TIMEOUTS.items():  # accepted connections inherit them
            if hasattr(socket, name):  # macOS has other names, and keeps a client that does not read
                listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Returns `http://HOST:PORT` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def refusal(headers: Mapping[str, str], token: str | None) -> int | None:
    """Returns the status that a request is refused with: 401 without the token, 403 for web pages; None to accept it.

    The token comes as `Authorization: Bearer TOKEN`, or as the password of a URL (`http://any:TOKEN@host`), for clients
    that cannot set headers. Header names are looked up in lower case.
    """
    if token is None:
        return 403 if "origin" in headers or not names_loopback(headers.get("host")) else None
    scheme, _, text = headers.get("authorization", "").partition(" ")
    shown = text.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            shown = base64.b64decode(shown, validate=True).partition(b":")[2]
        except binascii.Error:
            return 401
    elif scheme.lower() != "bearer":
        return 401
    return None if hmac.compare_digest(shown, token.encode()) else 401


class Access:
    """Answers the requests that `refusal` refuses (ASGI middleware); `/health` is open to all."""

    def __init__(self, app: ASGIApp, token: str | None, refuse: Callable[[int], Response]) -> None:
        """Guard `app`; `refuse(status)` makes the response to a refused request."""
        self._app = app
        self._token = token
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        from starlette.datastructures import Headers
        from starlette.websockets import WebSocket

        is_open = scope["type"] == "http" and scope["path"].rstrip("/") == "/health"
        status = None if is_open else refusal(Headers(scope=scope), self._token)
        if status is None:
            await self._app(scope, receive, send)
            return
        response = self._refuse(status)
        response.headers["Connection"] = "close"
        if status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Returns a request's body. Raises BodyError."""
    body = bytearray()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            async for part in request.stream():
                body += part
                if len(body) > max_bytes:
                    raise BodyError(413, f"a body has at most {max_bytes} bytes")
    except TimeoutError:
        raise BodyError(408, f"the body did not arrive within {REQUEST_TIMEOUT_S:g} s") from None
    return bytes(body)


async def unless_gone(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which is cancelled when the client hangs up; its body must have been read.

    Raises:
        ClientGone: the client has hung up.
    """
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientGone
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


def stop_on_signals() -> asyncio.Event:
    """Returns an event that SIGINT and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def run_app(
    app: ASGIApp, listener: socket.socket, max_connections: int, stop: asyncio.Event, *, websockets: bool = False
) -> None:
    """Serve an application until `stop` is set; signals are the caller's business.

    Args:
        max_connections: further ones are closed.
        websockets: whether the application accepts them.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        http=_http_protocol(),
        ws="websockets-sansio" if websockets else "none",
        ws_max_size=MAX_BODY_BYTES,
        # A client may be busy training for longer than it takes to answer a ping; its kernel answers keep-alives.
        ws_ping_interval=None,
        ws_per_message_deflate=False,  # costs more time than the wire saves
        lifespan="off",
        log_config=None,
        log_level="error",  # malformed requests of strangers are not worth a warning
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=max_connections,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


@cache
def _http_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's HTTP/1.1 protocol with a deadline for a request's head, and a bound on all connections."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class DeadlineProtocol(H11Protocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._arm()
            if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
                transport.abort()

        def handle_events(self) -> None:
            super().handle_events()
            has_begun = self.cycle is None or bool(self.conn.trailing_data[0])
            if self.conn.their_state is h11.IDLE and has_begun:
                self._arm()
            else:
                self._disarm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def _arm(self) -> None:
            if self.deadline is None:
                self.deadline = self.loop.call_later(REQUEST_TIMEOUT_S, self.transport.abort)

        def _disarm(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

    return DeadlineProtocol
