"""`webrl view`'s server: token authentication with CSRF and DNS-rebinding protection in front of the pages.

The address that `webrl view` prints holds a token, which is exchanged for a cookie that no script and no other site can
use. Browsers send a cookie to every port of a host, so it is for the paths below a random one: another server on this
machine does not get it. Hosts other than this machine's are refused (a page of another site may have its name point
here), and so are forms of other pages. Programs may show the token as `webrl/net.py` takes it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from webrl.net import address_of, is_loopback, listen, names_loopback, refusal, run_app, stop_on_signals
from webrl_report.view.app import make_app
from webrl_report.view.index import Index, check_run

_MAX_REQUESTS = 64
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_COOKIE = "webrl_view"
_NOT_ADMITTED = "open the address that `webrl view` has printed: it holds the token\n"
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers say `Origin: null` of our own forms
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def serve(runs: Sequence[Path], host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Show runs until interrupted; the first page is there while the index is still being built.

    Args:
        on_ready: called with the address to open, which holds the token.

    Raises:
        UsageError: no such run folder, not a run folder, or an address that cannot be used.
    """
    for run in runs:
        check_run(run)
    with listen(host, port) as listener:
        token, root = secrets.token_urlsafe(24), f"/{secrets.token_hex(8)}"
        index = Index(runs)
        guarded = Guard(make_app(index, root), token, root, host)
        reader = threading.Thread(target=index.refresh, name="index", daemon=True)
        reader.start()

        async def serve_index() -> None:
            stop = stop_on_signals()
            on_ready(f"{address_of(listener)}{root}/?token={token}")
            await run_app(guarded, listener, _MAX_REQUESTS, stop)

        try:
            asyncio.run(serve_index())
        finally:
            index.close()
            reader.join()


class Guard:
    """ASGI middleware: lets requests through to `app`, or refuses them in one line of text."""

    def __init__(self, app: ASGIApp, token: str, root: str, host: str) -> None:
        """Guard `app`.

        Args:
            token: what a request must show.
            root: what the paths of all pages begin with; nobody can guess it.
            host: what the server listens on; a name among the addresses that it may be asked under.
        """
        self._app = app
        self._token = token
        self._root = root
        self._is_open = not is_loopback(host)
        self._names = {host.lower(), socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let through."""
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._answer(scope) or self._app
        await answer({**scope, "root_path": self._root}, receive, send_guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """A refusal, or the exchange of the token for the cookie; None lets through."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._is_own(headers.get("host")):
            return PlainTextResponse(f"this is not {host!r:.100}\n", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("GET and POST only\n", 405, {"Allow": "GET, HEAD, POST"})
        if not scope["path"].startswith(f"{self._root}/"):
            return PlainTextResponse(_NOT_ADMITTED, 401)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = next((value for name, value in query if name == "token"), None)
        if shown is not None and scope["method"] == "GET" and self._is_token(shown):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse(f"{scope['path']}?{rest}" if rest else scope["path"], 303)
            answer.set_cookie(_COOKIE, self._token, httponly=True, samesite="strict", path=self._root)
            return answer
        cookie = cookie_parser(headers.get("cookie", "")).get(_COOKIE, "")
        if not self._is_token(cookie) and refusal(headers, self._token) is not None:
            return PlainTextResponse(_NOT_ADMITTED, 401)
        if scope["method"] == "POST" and headers.get("origin", f"http://{host}") != f"http://{host}":
            return PlainTextResponse("other pages may not send forms here\n", 403)
        return None

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    def _is_own(self, host: str | None) -> bool:
        """Whether a request's `Host` is this machine: its names, or an address, which nobody can redirect."""
        if names_loopback(host) or not self._is_open:
            return names_loopback(host)
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True
