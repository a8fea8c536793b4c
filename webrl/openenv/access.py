"""Who may talk to a server: a bearer token, and no web pages.

API: `refusal(headers, token)` is the status to refuse a request with, or None; `is_loopback(host)`,
`names_loopback(headers)`; `listen(host, port)` takes a port, `address_of` says which; `http_config` is uvicorn with
nothing that we do not need; what a client may send and how long it may take;
`TOKEN_VARIABLE` names the environment variable that both server and client take the token from (never the command line:
other users see that).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.errors import UsageError

if TYPE_CHECKING:
    import uvicorn

TOKEN_VARIABLE = "WEBRL_ENV_TOKEN"
MAX_REQUEST_BYTES = 1 << 20
"""A message or a body with more is refused."""
REQUEST_TIMEOUT_S = 10.0
"""A connection that has not sent its whole request by then is closed."""
SEND_TIMEOUT_S = 60.0
"""A client that does not take its answer for so long is hung up on."""
_BACKLOG = 1024
"""Connections that may wait to be taken."""
_GOODBYE_S = 1
"""How long answers and exports may go on after Ctrl-C."""


def refusal(headers: Mapping[str, str], token: str | None) -> int | None:
    """401 for whoever lacks the token, 403 for web pages, None for the others.

    The token comes as `Authorization: Bearer TOKEN`, or as the password of a URL (`http://any:TOKEN@host`), which is
    what clients can send that know no headers. Without a token anyone may in who can connect, except web pages: a
    browser lets every page open WebSockets to this machine, and says so by an `Origin` header.
    """
    if token is not None:
        return None if _shows(headers.get("Authorization", ""), token) else 401
    return 403 if "Origin" in headers else None


def names_loopback(headers: Mapping[str, str]) -> bool:
    """Whether a request's `Host` is this machine: a page that has had its name resolved to it still says that name."""
    try:
        return is_loopback(urlsplit(f"//{headers.get('Host', 'localhost')}").hostname or "")
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_port(port: int) -> None:
    """Raises UsageError: no port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port {port}: ports go from 1 to 65535, 0 takes a free one")


def check_host(host: str, token: str | None, variable: str) -> None:
    """Raises UsageError: other machines can connect, and no token is asked of them; `variable` would hold it."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} lets other machines connect: set {variable} to a secret that clients show,"
            " or use --host 127.0.0.1"
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens: connections wait in it, and no other process can take the port; port 0 is a free one.

    Raises:
        UsageError: the address cannot be used, or the port is taken.
    """
    check_port(port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """`http://HOST:PORT` of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def http_config(app: Any, max_requests: int) -> uvicorn.Config:
    """Uvicorn for HTTP alone, silent, in a loop of the caller's or its own.

    Args:
        app: ASGI.
        max_requests: at a time; further ones are answered with 503.
    """
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=max_requests,
        timeout_graceful_shutdown=_GOODBYE_S,
    )


def _shows(header: str, token: str) -> bool:
    scheme, _, text = header.partition(" ")
    value = text.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(value, token.encode())
