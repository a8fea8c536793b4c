"""What the pages of an environment may reach: one rule for navigation, frames, requests, sockets and new tabs.

Chromium's requests go through a proxy of ours (`_serve`) unless their host and port are named (and nothing is routed):
nothing on the network is reached past it, redirects, WebSockets and workers included. Names are resolved there, once,
and the connection goes to the very address that was judged: a name that resolves differently the next time gains
nothing. Schemes that are not the network's (`file:`, `chrome:`, `view-source:`, …) are refused to the agent (`allows`),
and to pages by Chromium itself.

`Limits` restrict method and path on top of the host allow-list, where the browser asks before each request and in the
proxy; inside TLS that sees no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.rollouts.sites import miniwob_root

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Route


@dataclass(frozen=True)
class Limits:
    """What is refused to the hosts that are allowed, in the browser, and in the proxy where it sees the request."""

    refusal: Callable[[str, str], str | None]
    """(method, address) -> why this request is refused, for the agent; None if it is not."""
    read_only: bool = False
    """No WebSockets, and nothing that outlives its page."""


BLOCKED = "Blocked: "
"""How the page that replaces a refused one begins."""
UNREACHED = "cannot be reached: "
"""In the page that replaces one of an unreachable host, after the host."""
_HEAD_LIMIT = 1 << 18
_HEAD_TIMEOUT_S = 60.0
_CONNECT_TIMEOUT_S = 10.0
_TLS_HANDSHAKE = b"\x16"
# The protocols that Chromium offers for pages; for WebSockets it offers HTTP/1.1 alone.
_PAGES_OFFER = b"\x02h2\x08http/1.1"
_HOP_BY_HOP = re.compile(rb"\r\n(?:connection|keep-alive|proxy-connection|proxy-authorization):[^\r]*", re.IGNORECASE)
# Addresses that carry an IPv4 address for a translator on the way; the inner one is what is reached.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class HostBlocked(Exception):
    """The host, or what it resolves to, is outside the allow-list."""


def is_public(address: str) -> bool:
    """Return whether an address belongs to the public internet and not to this machine."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return is_public(str(inner))
    if not ip.is_global or ip.is_multicast:
        return False
    # This machine's own is where packets to it would come from; none is sent.
    with socket.socket(socket.AF_INET if ip.version == 4 else socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(ip), 9))
        except OSError:
            return True  # no route: nothing will be reached either
        return bool(probe.getsockname()[0] != str(ip))


async def _forward(
    head: bytes, method: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Send one request in the form that servers take; its connection is not used again."""
    path = re.sub(r"^http://[^/?#]*", "", target).partition("#")[0]
    lines = head.split(b"\r\n", 1)[1]
    if re.search(rb"^transfer-encoding:", lines, re.IGNORECASE | re.MULTILINE):
        raise ValueError("browsers do not send chunked bodies")
    first = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1\r\n".encode("latin-1")
    writer.write(first + _HOP_BY_HOP.sub(b"", b"\r\n" + lines[:-4])[2:] + b"\r\nConnection: close\r\n\r\n")
    length = re.search(rb"^content-length: *(\d+)", lines, re.IGNORECASE | re.MULTILINE)
    left = int(length.group(1)) if length else 0
    while left:
        data = await reader.read(min(left, _HEAD_LIMIT))
        if not data:
            raise EOFError
        left -= len(data)
        writer.write(data)
        await writer.drain()


async def _splice(*ways: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """Copy until either side hangs up."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    copies = [asyncio.ensure_future(copy(*way)) for way in ways]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copying in copies:
            copying.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


# A loopback host without a port would admit every port, the browser's DevTools included.
_LOOPBACK = re.compile(r"localhost|.*\.localhost|127\.[0-9.]+|0\.0\.0\.0|\[::1?\]")
_PLAIN_SCHEMES = r"about:(blank|srcdoc)([?#]|$)|data:|blob:"


class NavigationGuard:
    """Block and count requests outside an allow-list.

    Always allowed: `about:blank`, `data:`, `blob:` and the MiniWoB pages' own files. Hosts are compared exactly;
    `example.org:8080` allows one port only, `example.org` all of them. A named host may have any address; `*` allows
    every host with only public ones, and so does an entry of `public_hosts`, which takes precedence over `hosts`.
    """

    def __init__(
        self,
        hosts: Iterable[str],
        public_hosts: Iterable[str] = (),
        *,
        devtools_port: int = 0,
        limits: Limits | None = None,
        routes: Mapping[str, int] | None = None,
    ) -> None:
        named = {host.lower() for host in hosts}
        self.public_hosts = frozenset(host.lower() for host in public_hosts) | (named & {"*"})
        self.hosts = frozenset(named - self.public_hosts)
        self.blocked = 0
        """Requests blocked so far."""
        self.reason = ""
        """Why the last one was, if limits say so."""
        self.proxy = ""
        """Address of the proxy while it is open."""
        self._limits = limits
        self._routes = routes or {}
        self._devtools_port = devtools_port
        self._server: asyncio.Server | None = None
        self._running: set[asyncio.Task[None]] = set()
        files = re.escape(f"{miniwob_root().as_uri()}/")
        # No way back up, whichever way `..` and `/` are written.
        inside = rf"{files}(?![^?#]*(\.\.(\/|$)|%2e|%2E|%2f|%2F|%5c|%5C|%00|\\))"
        self._local = rf"{inside}|{_PLAIN_SCHEMES}"

    async def open(self) -> dict[str, Any]:
        """Start the proxy; return the options of a browser context that reaches the allowed hosts only."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        self.proxy = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        hosts = [] if self._limits or self._routes else sorted(self.hosts)
        direct = (host for host in hosts if ":" in host.rpartition("]")[2] or not _LOOPBACK.fullmatch(host))
        return {"proxy": {"server": self.proxy, "bypass": ",".join(("<-loopback>", *direct))}}

    async def close(self) -> None:
        """Stop the proxy and close its connections."""
        if self._server is not None:
            self._server.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def attach(self, context: BrowserContext) -> None:
        """Watch all requests of a context, from the first page on."""
        scripts = Path(__file__).parent / "js"
        if self._limits:
            await context.add_init_script(path=scripts / "no_service_worker.js")
            await context.route(re.compile(""), self._hold)
            if self._limits.read_only:
                await context.add_init_script(path=scripts / "only_reads.js")

    def allows(self, url: str) -> bool:
        """Whether a request to `url` may be tried; what it then connects to is judged by the proxy."""
        url = url.strip()
        try:
            parts = urlsplit(url)
            netloc, port = parts.netloc.lower(), parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return False
        if re.search(r"[\x00-\x1f\x7f]", url):
            return False  # browsers drop some of these, so the address would be another one
        if parts.scheme not in ("http", "https"):
            return bool(re.match(self._local, url))
        if not re.fullmatch(r"[a-z0-9._:\[\]-]+", netloc):
            return False
        return bool("*" in self.public_hosts or _entries(parts.hostname or "", port) & (self.hosts | self.public_hosts))

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
        reason = self._limits.refusal(method, target) if self._limits and not tunnel else None
        try:
            if reason:
                raise HostBlocked(reason)
            there, to_server = await self._connect(host, port)
        except (HostBlocked, OSError, TimeoutError) as error:
            status, text = "502 Bad Gateway", f"{host} {UNREACHED}{error or 'time-out'}"
            if isinstance(error, HostBlocked):
                # Not for a host: browsers contact their maker by themselves, without the agent.
                self.blocked, self.reason = self.blocked + 1, reason or ""
                status, text = "403 Forbidden", f"{BLOCKED}{error}"
            body = text.encode()
            fields = f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close"
            writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body)
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                # inside a tunnel only pages are let through: a WebSocket would go round it
                if self._limits and self._limits.read_only:
                    async with asyncio.timeout(_HEAD_TIMEOUT_S):
                        first = await reader.readexactly(5)
                        if first.startswith(_TLS_HANDSHAKE):
                            first += await reader.readexactly(int.from_bytes(first[3:], "big"))
                    if not first.startswith(_TLS_HANDSHAKE) or _PAGES_OFFER not in first:
                        self.blocked, self.reason = self.blocked + 1, "WebSockets are not to be opened here"
                        return
                    to_server.write(first)
            else:
                await _forward(head, method, target, reader, to_server)
                while re.match(rb"HTTP/1\.\d 1\d\d", answer := await there.readuntil(b"\r\n\r\n")):
                    writer.write(answer)
                # The browser must not send its next request, to another host perhaps, here.
                writer.write(_HOP_BY_HOP.sub(b"", answer[:-4]) + b"\r\nConnection: close\r\n\r\n")
            await _splice((reader, to_server), (there, writer))
        finally:
            to_server.close()

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises HostBlocked, OSError, TimeoutError."""
        entries = _entries(host, port)
        is_named = bool(entries & self.hosts) and not entries & self.public_hosts and port != self._devtools_port
        if not (is_named or entries & self.public_hosts or "*" in self.public_hosts):
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
            if not is_named and not all(map(is_public, addresses)):
                raise HostBlocked(f"{host} is an internal address; name it in rollout.allowed_hosts to allow it.")
            failure: OSError = OSError("no address")
            for address in addresses:
                try:
                    return await asyncio.open_connection(address, port, limit=_HEAD_LIMIT)
                except OSError as error:
                    failure = error
            raise failure

    async def _hold(self, route: Route) -> None:
        from playwright.async_api import Error

        assert self._limits is not None
        reason = self._limits.refusal(route.request.method, route.request.url)
        with contextlib.suppress(Error):  # the page has been closed meanwhile
            if reason is None:
                await route.fallback()
                return
            self.blocked, self.reason = self.blocked + 1, reason
            await route.abort("aborted")  # a page that would have been left stays


def _entries(host: str, port: int) -> set[str]:
    """The entries of an allow-list that name a host and port."""
    name = f"[{host}]" if ":" in host else host.lower()
    return {name, f"{name}:{port}"}
