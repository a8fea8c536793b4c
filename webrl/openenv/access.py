"""Who may talk to a server: a bearer token, and no web pages.

API: `Guarded(app, token)` is an ASGI application around another one; `is_loopback(host)`; `TOKEN_VARIABLE` names the
environment variable that both server and client take the token from (never the command line: other users see that).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

TOKEN_VARIABLE = "WEBRL_ENV_TOKEN"
_OPEN_PATHS = frozenset(("/health",))

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guarded:
    """Answers 401 to whoever lacks the token, 403 to web pages; `/health` is open.

    The token comes as `Authorization: Bearer TOKEN`, or as the password of a URL (`http://any:TOKEN@host`), which is
    what clients can send that know no headers. Without a token anyone may in who can connect, except web pages: a
    browser lets every page open WebSockets to this machine, and says so by an `Origin` header.
    """

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Part of ASGI."""
        if scope["type"] in ("http", "websocket") and scope["path"] not in _OPEN_PATHS:
            headers = dict(scope["headers"])
            if self._token is not None and not _shows(headers.get(b"authorization", b""), self._token):
                await _refuse(scope, send, 401)
                return
            if self._token is None and b"origin" in headers:
                await _refuse(scope, send, 403)
                return
        await self._app(scope, receive, _forgiving(send) if scope["type"] == "websocket" else send)


def _forgiving(send: Send) -> Send:
    """openenv-core hangs up on clients that have gone already; that is no error worth a trace."""

    async def wrapper(message: MutableMapping[str, Any]) -> None:
        with contextlib.suppress(OSError) if message["type"] == "websocket.close" else contextlib.nullcontext():
            await send(message)

    return wrapper


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shows(header: bytes, token: str) -> bool:
    scheme, _, value = header.partition(b" ")
    if scheme.lower() == b"basic":
        try:
            value = base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(value.strip(), token.encode())


async def _refuse(scope: Scope, send: Send, status: int) -> None:
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    if scope["type"] == "websocket" and kind not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    body = b"a token is needed" if status == 401 else b"web pages may not connect"
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": f"{kind}.start", "status": status, "headers": headers})
    await send({"type": f"{kind}.body", "body": body})
