# ruff: noqa: E501, RUF012 - markup and scripts read better on one line
"""A very small web framework: one site a server thread, cookie sessions, form posts, faults on demand."""

import html
import json
import logging
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import werkzeug
import yaml
from werkzeug.serving import make_server
from werkzeug.utils import redirect as werkzeug_redirect

STYLE = (
    "body{font:14px sans-serif;margin:8px}nav a,li a,td a{margin-right:8px}label{display:block}.hidden{display:none}"
)


class Request(werkzeug.Request):
    parameter_storage_class = dict  # the last value of a name
    user = ""


class Response(werkzeug.Response):
    default_mimetype = "text/html"


def redirect(to: str) -> Response:
    return werkzeug_redirect(to, 302, Response)


def as_json(data: object) -> Response:
    return Response(json.dumps(data), content_type="application/json")


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
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._server = make_server("127.0.0.1", 0, self.serve, threaded=True)
        self.port = self._server.port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def serve(self, environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        request.get_data(parse_form_data=True)  # read, whatever comes of it
        if self.fault == "drop":
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionError
        return self.answer(request)(environ, start_response)

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
                    result = function(request, *match.groups())
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
        response = redirect(to)
        response.set_cookie(self.cookie, token, httponly=True)
        return response

    def shown(self, key: str, request: Request, *args: str) -> str:
        """A page of the table; "" if it has none of that name."""
        return self._pages[key].render(site=self, request=request, args=args) if key in self._pages else ""

    def page(self, request: Request, body: str) -> str:
        header, footer = self.shown("header", request), self.shown("footer", request)
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{esc(self.title)}</title>'
            f"<style>{STYLE}</style></head><body>{header}<main>{body}</main>{footer}</body></html>"
        )


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
