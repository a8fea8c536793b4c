# ruff: noqa: E501, RUF012 - markup and scripts read better on one line
"""A very small web framework: one site a server thread, cookie sessions, form posts, faults on demand."""

from __future__ import annotations

import html
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import jinja2
import yaml

STYLE = (
    "body{font:14px sans-serif;margin:8px}nav a,li a,td a{margin-right:8px}label{display:block}.hidden{display:none}"
)


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, str]
    form: dict[str, str]
    cookies: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    user: str = ""


@dataclass
class Response:
    body: str = ""
    status: int = 200
    type: str = "text/html; charset=utf-8"
    headers: list[tuple[str, str]] = field(default_factory=list)


def redirect(to: str) -> Response:
    return Response("", 302, headers=[("Location", to)])


def as_json(data: object) -> Response:
    return Response(json.dumps(data), type="application/json")


def esc(text: object) -> str:
    return html.escape(str(text))


Handler = Callable[..., "Response | str"]


def route(method: str, pattern: str, login: bool = False) -> Callable[[Handler], Handler]:
    def mark(function: Handler) -> Handler:
        function.route = (method, re.compile(pattern + r"/?$"), login)  # type: ignore[attr-defined]
        return function

    return mark


class Site:
    """One application: pages from `pages/NAME.yaml`; subclasses add what changes data (`@route`), and data in `reset`.

    A page is a Jinja template under the pattern of its address, after `login ` if it is for users alone, or under a
    name by which code shows it. It knows `site`, `request`, and the pattern's groups as `args`; `header` and `footer`
    are around each page.
    """

    name = ""
    title = ""
    users: dict[str, str] = {}
    login_path = "/login"
    base_path = ""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        self.fault = ""
        self.delay_s = 0.0
        self.log: list[str] = []
        self.lock = threading.RLock()
        self._routes = [(f.route, f) for f in self._handlers()]
        file = Path(__file__).parent / "pages" / f"{self.name}.yaml"
        texts = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else {}
        self._pages = {key: _JINJA.from_string(re.sub(r"\n\s*", "", text)) for key, text in texts.items()}
        for key in (key for key in texts if "/" in key):
            pattern = re.compile(key.removeprefix("login ") + r"/?$")
            self._routes.append((("GET", pattern, key.startswith("login ")), partial(self.shown, key)))
        # The specific before the general: fixed addresses first, then the longest pattern.
        self._routes.sort(key=lambda item: (item[0][1].groups > 0, -len(item[0][1].pattern)))
        self.reset()

    def reset(self) -> None:
        """Back to the published data; sessions end, as they do when a container is replaced."""
        self.sessions.clear()

    def _handlers(self) -> list[Handler]:
        names = [name for name in dir(type(self)) if hasattr(getattr(type(self), name), "route")]
        return [getattr(self, name) for name in names]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.base_path}"

    def start(self) -> None:
        handler = type("BoundHandler", (_HTTPHandler,), {"site": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: Request) -> Response:
        self.log.append(f"{request.method} {request.path}")
        if self.fault == "half":
            return Response("503 Service Unavailable", 503)
        time.sleep(self.delay_s)
        with self.lock:
            request.user = self.sessions.get(request.cookies.get(self.cookie, ""), "")
            for (method, pattern, login), function in self._routes:
                match = pattern.match(request.path)
                if method == request.method and match:
                    if login and not request.user:
                        return redirect(self.base_path + self.login_path)
                    result = function(request, *map(unquote, match.groups()))
                    return Response(self.page(request, result)) if isinstance(result, str) else result
        return Response(self.page(request, "<h1>404 Not Found</h1>"), 404)

    @property
    def cookie(self) -> str:
        return f"{self.name}_session"

    def log_in(self, request: Request, user: str, password: str, to: str, failed: str) -> Response:
        if self.users.get(user) != password:
            return redirect(failed)
        token = secrets.token_hex(16)
        self.sessions[token] = user
        return Response("", 302, headers=[("Location", to), ("Set-Cookie", f"{self.cookie}={token}; Path=/; HttpOnly")])

    def shown(self, key: str, request: Request, *args: str) -> str:
        """A page of the table; "" if it has none of that name."""
        return self._pages[key].render(site=self, request=request, args=args) if key in self._pages else ""

    def page(self, request: Request, body: str) -> str:
        header, footer = self.shown("header", request), self.shown("footer", request)
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{esc(self.title)}</title>'
            f"<style>{STYLE}</style></head><body>{header}<main>{body}</main>{footer}</body></html>"
        )


class _HTTPHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if self.site.fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        parts = urlsplit(self.path)
        cookies = dict(c.strip().split("=", 1) for c in (self.headers.get("Cookie") or "").split(";") if "=" in c)
        is_form = "urlencoded" in (self.headers.get("Content-Type") or "")
        request = Request(
            self.command,
            parts.path,
            {k: v[-1] for k, v in parse_qs(parts.query, keep_blank_values=True).items()},
            {k: v[-1] for k, v in parse_qs(body.decode(), keep_blank_values=True).items()} if is_form else {},
            cookies,
            dict(self.headers),
            body,
        )
        response = self.site.answer(request)
        data = response.body.encode()
        self.send_response(response.status)
        self.send_header("Content-Type", response.type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in response.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = _serve  # noqa: N815

    def log_message(self, *args: object) -> None:
        pass


_JINJA = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
_MACROS = _JINJA.from_string("""
{%- macro field(label, name, value="", kind="text", extra="") -%}
<label for="{{ name }}">{{ label }}</label><input id="{{ name }}" name="{{ name }}" type="{{ kind }}" value="{{ value }}" {{ extra|safe }}>
{%- endmacro -%}
{%- macro select(label, name, options, chosen) -%}
<label for="{{ name }}">{{ label }}</label><select id="{{ name }}" name="{{ name }}" >
{%- for value, text in options.items() -%}
<option value="{{ value }}"{{ " selected" if value == chosen }}>{{ text }}</option>
{%- endfor -%}</select>
{%- endmacro -%}
{%- macro links(items) -%}
{%- for text, path in items.items() %}<a href="{{ path }}">{{ text }}</a> {% endfor -%}
{%- endmacro -%}
""").module
_JINJA.globals |= {name: getattr(_MACROS, name) for name in ("field", "select", "links")}


def links(items: dict[str, str]) -> str:
    return str(_MACROS.links(items))
