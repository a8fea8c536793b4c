"""The entry to the sites: decides to which session a request belongs, and so on which database it works.

A visitor sends a signed cookie that names a session; the shop or the tracker then answers from that session's database
and no other.
The control interface below `/arena/` makes and drops sessions for clients that have the key.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.core.signing import BadSignature, Signer
from django.http import parse_cookie

from webrl_arena.world.content import STAFF_EMAIL
from webrl_arena.world.running import COOKIE, SESSIONS
from webrl_arena.world.shop.database.base import using
from webrl_arena.world.shop.tracker import site as tracker
from webrl_arena.world.sites import DATABASES, SITES, database_of
from webrl_arena.world.tracker import login_of

Environ = dict[str, Any]
Wsgi = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]
Answer = tuple[HTTPStatus, list[tuple[str, str]], bytes]

_LOGIN_COOKIE = "sessionid"
_BACKEND = "oscar.apps.customer.auth_backends.EmailBackend"
_TRACKER = "tracker"
"""Folder of the tracker's environment in a session's."""
_NO_SESSION = "This shop belongs to webrl's arena, where every visitor has a session of their own: webrl arena open"
_DROPPED = "This session of the arena has been dropped; open another: webrl arena open"


@dataclass(frozen=True)
class Gateway:
    """The WSGI application; it keeps nothing between requests, so that any process may answer any of them."""

    shop: Wsgi
    tracker: tracker.Site
    folder: Path
    """Folder of the running arena, which contains the sessions."""
    templates: dict[str, Path]
    """The databases that every session begins with, by site."""
    key: str
    """What the control interface asks for, and what session cookies are signed with."""

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        path = environ.get("PATH_INFO", "")
        if path.startswith("/arena/"):
            return _send(start_response, *self._control(environ, path.removeprefix("/arena/")))
        # It skips what it cannot read, which a script of a page may have set.
        cookie = parse_cookie(environ.get("HTTP_COOKIE", "")).get(COOKIE, "")
        try:
            name = str(self._signer().unsign(cookie))
        except BadSignature:
            return _send(start_response, HTTPStatus.FORBIDDEN, [], _NO_SESSION.encode())
        database = self._database(name)
        if not database.is_file():
            return _send(start_response, HTTPStatus.GONE, [], _DROPPED.encode())

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            """Add headers by which no cache, which sessions may share, gives one session's answer to another."""
            given = {name.lower() for name, _ in headers}
            own = [("Vary", "Cookie"), ("Cache-Control", "no-cache")]
            return start_response(status, [*headers, *(pair for pair in own if pair[0].lower() not in given)], *rest)

        if f"{environ['PATH_INFO']}/".startswith(f"{SITES['tracker']}/"):
            return self.tracker.answer(database.with_name(_TRACKER), environ, start)
        with using(database):
            answer = self.shop(environ, start)
            try:
                return [b"".join(answer)]
            finally:
                getattr(answer, "close", lambda: None)()

    def _control(self, environ: Environ, path: str) -> Answer:
        """Make and drop sessions; without the key, only say that the arena is healthy, and let a browser enter."""
        method, what, _, name = environ["REQUEST_METHOD"], *path.partition("/")
        if (method, path) == ("GET", "health"):
            return _json(HTTPStatus.OK, {"healthy": True})
        if (method, what) == ("GET", "enter"):
            return self._enter(name)
        if not hmac.compare_digest(environ.get("HTTP_AUTHORIZATION", "").encode(), f"Bearer {self.key}".encode()):
            return _json(HTTPStatus.UNAUTHORIZED, {"error": "the arena's key is missing or wrong"})
        match method, what, name:
            case "POST", "sessions", "":
                return self._make(parse_qs(environ.get("QUERY_STRING", "")).get("user", [""])[0])
            case "DELETE", "sessions", _:
                # One session; without a name, all of them.
                found = [each for each in (self.folder / SESSIONS).iterdir() if not name or each.name == name]
                for session in found:
                    shutil.rmtree(session, ignore_errors=True)
                return _json(HTTPStatus.OK, {"dropped": len(found)})
        return _json(HTTPStatus.NOT_FOUND, {"error": f"the arena has no {method} /arena/{path}"})

    def _make(self, user: str) -> Answer:
        name = secrets.token_hex(8)
        # Under a name that no cookie can hold until it is whole.
        making = self.folder / SESSIONS / f".{name}"
        making.mkdir(parents=True)
        try:
            for site, file in DATABASES.items():
                shutil.copyfile(self.templates[site], making / file)
            tracker.make(making / _TRACKER)
            cookies = {COOKIE: self._signer().sign(name)}
            if user:
                with using(making / database_of("shop")):
                    email = STAFF_EMAIL if user == "staff" else user.removeprefix("customer:")
                    account = User.objects.filter(email__iexact=email).first()
                    if account is None:
                        return _json(HTTPStatus.NOT_FOUND, {"error": f"the shop has no user {user!r}"})
                    store = SessionStore()
                    store[SESSION_KEY] = str(account.pk)
                    store[BACKEND_SESSION_KEY] = _BACKEND
                    store[HASH_SESSION_KEY] = account.get_session_auth_hash()
                    store.create()
                    cookies[_LOGIN_COOKIE] = str(store.session_key)
                cookies[tracker.COOKIE] = tracker.log_in(making / tracker.DATABASE, login_of(account.email))
            making.rename(self._database(name).parent)
        finally:
            shutil.rmtree(making, ignore_errors=True)
        start = "/dashboard/" if user == "staff" else "/"
        enter = "/arena/enter/" + self._signer("enter").sign_object({"cookies": cookies, "start": start})
        return _json(HTTPStatus.CREATED, {"id": name, "cookies": cookies, "start": start, "enter": enter})

    def _enter(self, token: str) -> Answer:
        """Set a session's cookies in the browser that sent the request, and redirect it to the first page."""
        try:
            entry = self._signer("enter").unsign_object(token)
        except (BadSignature, ValueError):
            return HTTPStatus.FORBIDDEN, [], _NO_SESSION.encode()
        headers = [("Set-Cookie", f"{k}={v}; Path=/; HttpOnly; SameSite=Lax") for k, v in entry["cookies"].items()]
        return HTTPStatus.SEE_OTHER, [("Location", entry["start"]), *headers], b""

    def _database(self, name: str) -> Path:
        return self.folder / SESSIONS / name / database_of("shop")

    def _signer(self, purpose: str = "session") -> Signer:
        return Signer(key=self.key, salt=f"webrl_arena.world.{purpose}")


def _json(status: HTTPStatus, content: dict[str, Any]) -> Answer:
    return status, [("Content-Type", "application/json")], json.dumps(content).encode()


def _send(
    start_response: Callable[..., Any], status: HTTPStatus, headers: list[tuple[str, str]], body: bytes
) -> list[bytes]:
    if not any(name == "Content-Type" for name, _ in headers):
        headers = [*headers, ("Content-Type", "text/plain; charset=utf-8")]
    start_response(f"{status.value} {status.phrase}", [*headers, ("Content-Length", str(len(body)))])
    return [body]
