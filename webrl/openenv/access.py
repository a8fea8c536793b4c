"""Who may talk to a server: a bearer token, and no web pages.

API: `refusal(headers, token)` is the status to refuse a request with, or None; `is_loopback(host)`,
`names_loopback(headers)`; `listen(host, port)` binds a socket; what a client may send and how long it may take;
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
from urllib.parse import urlsplit

from webrl.errors import UsageError

TOKEN_VARIABLE = "WEBRL_ENV_TOKEN"
MAX_REQUEST_BYTES = 1 << 20
"""A message or a body with more is refused."""
REQUEST_TIMEOUT_S = 10.0
"""A connection that has not sent its whole request by then is closed."""
SEND_TIMEOUT_S = 60.0
"""A client that does not take its answer for so long is hung up on."""


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


def listen(host: str, port: int, *, backlog: int = 0) -> socket.socket:
    """A bound socket; port 0 takes a free one.

    Args:
        backlog: so many connections are taken from now on, and wait: until then another process may take the port, too.

    Raises:
        UsageError: the address cannot be used, or the port is taken.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if backlog:
            listener.listen(backlog)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener


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
