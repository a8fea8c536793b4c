"""A forward proxy of one browser profile: what the profile may connect to is decided here, on the address itself.

API: `async with Egress(admit, on_refusal) as egress`: `egress.port` is an HTTP proxy on loopback. `admit(host, port)`
says for each request what the host may resolve to. Names are resolved here, once, and the connection goes to the very
address that was judged: a name that answers differently the next time gains nothing. `limits` hold plain HTTP, where
the proxy sees requests; inside of TLS it sees none. `routes` are hosts that a server on this machine stands for.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Self
from urllib.parse import urlsplit

from webrl.rollouts.limits import NO_LIMITS, Limits

BLOCKED = "Blocked: "
"""How a page begins that stands for a refused one."""
UNREACHED = "cannot be reached: "
"""In a page that stands for one of a host that does not answer, after the host."""
_HEAD_LIMIT = 1 << 18
_HEAD_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_TLS_HANDSHAKE = b"\x16"
# The protocols that Chromium offers for pages; for WebSockets it offers HTTP/1.1 alone.
_PAGES_OFFER = b"\x02h2\x08http/1.1"
_HOP_BY_HOP = re.compile(rb"\r\n(?:connection|keep-alive|proxy-connection|proxy-authorization):[^\r]*", re.IGNORECASE)
# Addresses that carry an IPv4 address for a translator on the way; the inner one is what is reached.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class Admission(Enum):
    """What a host may resolve to."""

    NONE = auto()
    """The host is refused."""
    PUBLIC = auto()
    """Addresses of the public internet that are not this machine's own."""
    ANY = auto()
    """Any address."""


class HostBlocked(Exception):
    """The host, or what it resolves to, is outside the allow-list."""


class Egress:
    """See the module docstring."""

    def __init__(
        self,
        admit: Callable[[str, int], Admission],
        on_refusal: Callable[[str], None],
        limits: Limits = NO_LIMITS,
        routes: Mapping[str, int] | None = None,
    ) -> None:
        self._admit = admit
        self._on_refusal = on_refusal
        self._limits = limits
        self._routes = routes or {}
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            async with asyncio.timeout(_HEAD_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            await self._answer(head, reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            pass  # either side has gone, or does not speak HTTP: the browser reports a failed connection
        except asyncio.CancelledError:
            pass  # the profile is closed; asyncio would report the task otherwise
        finally:
            self._running.discard(task)
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        tunnel = method == "CONNECT"
        url = urlsplit(f"//{target}" if tunnel else target)
        if not tunnel and url.scheme != "http":
            raise ValueError(f"not a proxy request: {target!r:.200}")
        host, port = url.hostname or "", url.port or 80
        reason = "" if tunnel else self._limits.refusal(method, target)
        try:
            if reason:
                raise HostBlocked(reason)
            there, to_server = await self._connect(host, port)
        except HostBlocked as error:
            # Not a host's: a browser connects to its maker by itself, which is none of the agent's doing.
            self._on_refusal(reason or "")
            body = f"{BLOCKED}{error}"
            writer.write(_plain("403 Forbidden", body))
            await writer.drain()
            return
        except (OSError, TimeoutError) as error:
            writer.write(_plain("502 Bad Gateway", f"{host} {UNREACHED}{error or 'time-out'}"))
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if self._limits.read_only and not await self._starts_tls(reader, to_server):
                    return
            else:
                await _forward(head, method, target, reader, to_server)
                await _relay_head(there, writer)
            await _splice((reader, to_server) if tunnel else None, (there, writer), reader)
        finally:
            to_server.close()

    async def _starts_tls(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> bool:
        """Pass the first record of a tunnel on if it is one of pages: a WebSocket would go round the limits."""
        async with asyncio.timeout(_HEAD_TIMEOUT_S):
            first = await reader.readexactly(5)
            if first.startswith(_TLS_HANDSHAKE):
                first += await reader.readexactly(int.from_bytes(first[3:], "big"))
        if not first.startswith(_TLS_HANDSHAKE) or _PAGES_OFFER not in first:
            self._on_refusal("WebSockets are not to be opened here")
            return False
        to_server.write(first)
        return True

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises HostBlocked, OSError, TimeoutError."""
        admission = self._admit(host, port)
        if admission is Admission.NONE:
            raise HostBlocked(f"{host} is outside the hosts of this task.")
        if (served := self._routes.get(f"{host}:{port}")) is not None:
            host, port = "127.0.0.1", served
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            loop = asyncio.get_running_loop()
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except UnicodeError:
                raise HostBlocked(f"{host!r:.100} is no host name.") from None
            addresses = list(dict.fromkeys(str(info[4][0]) for info in found))
            if admission is Admission.PUBLIC and not all(map(is_public, addresses)):
                raise HostBlocked(f"{host} is an internal address; name it in rollout.allowed_hosts to allow it.")
            failure: OSError = OSError("no address")
            for address in addresses:
                try:
                    return await asyncio.open_connection(address, port, limit=_HEAD_LIMIT)
                except OSError as error:
                    failure = error
            raise failure


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet and not to this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast and not _is_own(ip)


def _is_own(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether packets to `ip` would come from `ip`. Sends none."""
    with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(ip), 9))
        except OSError:
            return False  # no route: nothing will be reached either
        return bool(probe.getsockname()[0] == str(ip))


async def _forward(
    head: bytes, method: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send one request in the form that servers take; its connection is not used again."""
    path = re.sub(r"^http://[^/?#]*", "", target).partition("#")[0]
    lines = head.split(b"\r\n", 1)[1]
    if re.search(rb"^transfer-encoding:", lines, re.IGNORECASE | re.MULTILINE):
        raise ValueError("browsers do not send chunked bodies")
    first = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1\r\n".encode("latin-1")
    rest = _HOP_BY_HOP.sub(b"", b"\r\n" + lines[:-4])[2:]
    writer.write(first + rest + b"\r\nConnection: close\r\n\r\n")
    length = re.search(rb"^content-length: *(\d+)", lines, re.IGNORECASE | re.MULTILINE)
    left = int(length.group(1)) if length else 0
    while left:
        data = await reader.read(min(left, _HEAD_LIMIT))
        if not data:
            raise EOFError
        left -= len(data)
        writer.write(data)
        await writer.drain()


async def _relay_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass a response's head on; the browser must not send its next request, to another host perhaps, here."""
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        if re.match(rb"HTTP/1\.\d 1\d\d", head):
            writer.write(head)
            continue
        writer.write(_HOP_BY_HOP.sub(b"", head[:-4]) + b"\r\nConnection: close\r\n\r\n")
        return


async def _splice(
    up: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None,
    down: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    browser: asyncio.StreamReader,
) -> None:
    """Copy both ways (one way without `up`) until either side hangs up."""
    copies = [asyncio.ensure_future(_copy(*down)), asyncio.ensure_future(_copy(*up) if up else _wait_for_end(browser))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _wait_for_end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        await reader.read(1)


def _plain(status: str, text: str) -> bytes:
    body = text.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body
