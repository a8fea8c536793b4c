"""Episodes over plain HTTP, as OpenEnv's first clients play them: POST /reset, POST /step, GET /state.

API: `HttpSessions(hub)`; `await sessions.answer(request)` for these three paths.

HTTP has no connection that an episode could belong to, so a reset's answer sets a cookie, which `requests.Session` (and
with it OpenEnv's `HTTPEnvClient`) sends back: each client has its own episode. Where a server is for this machine only,
clients without cookies share one episode, the last that was begun; elsewhere an address may be a proxy's.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from webrl.errors import BrowserError, DataError
from webrl.openenv.access import is_loopback, names_loopback
from webrl.openenv.answers import Answer, as_json, explain, observation_answer
from webrl.openenv.connection import unless_gone
from webrl.openenv.environment import Session, first_state
from webrl.openenv.hub import Hub, NoEpisode
from webrl.openenv.models import BrowserGymAction
from webrl.openenv.plain_http import HttpRequest, HttpResponse

COOKIE = "webrl_session"
IDLE_S = 300.0
"""Silence after which an episode's place is given to whoever waits: nothing tells that an HTTP client has gone."""
NEW_IDLE_S = 60.0
"""The same for a client that has not come back since its first reset: it may have given up."""
PATIENCE_S = 10.0
"""Longest wait for a place: OpenEnv's HTTP client gives up after 15 s, the reset itself included."""
_REMEMBERED = 4
"""Clients that are remembered, for each place."""
_STATUS = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503}


class NoObject(DataError):
    """A body that is no JSON object."""


_STATUS_OF: dict[type[Exception], int] = {NoEpisode: 409, NoObject: 422, DataError: 400}


class StepRequest(BaseModel):
    """Body of a step; only `action` matters here."""

    model_config = ConfigDict(extra="forbid")

    action: dict[str, Any]
    timeout_s: float | None = Field(None, gt=0)
    request_id: str | None = None
    episode_id: str | None = None


class _Client:
    """One client's session; its requests are answered in turn."""

    def __init__(self, hub: Hub) -> None:
        self._idle_s = min(IDLE_S, hub.options.idle_timeout_s)
        self.session = Session(hub, min(NEW_IDLE_S, self._idle_s))
        self.lock = asyncio.Lock()
        self.takes_cookies: bool | None = None
        """None: not known yet."""

    def came_back(self, *, with_cookie: bool) -> None:
        """Its second request."""
        self.takes_cookies = with_cookie
        self.session.idle_timeout_s = self._idle_s


class HttpSessions:
    """See the module docstring; lives in the server's event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_private = hub.options.token is None  # only this machine can connect
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._by_address: dict[str, str] = {}

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request for `/reset`, `/step` or `/state`; never raises."""
        asked = request.path.strip("/")
        try:
            if asked == "reset":
                return await self._reset(request)
            action = _action(request) if asked == "step" else ""
            client = self._find(request)
            if client is None and asked == "state" and _cookie(request) is None:
                return await _respond({"type": "state", "data": first_state(self._hub).model_dump()})
            if client is None:
                raise NoEpisode(
                    "no episode: POST /reset first, and send the cookie back that it sets (requests.Session does)"
                )
            async with client.lock:
                if asked == "step":
                    client.came_back(with_cookie=_cookie(request) is not None)
                if asked == "state":
                    return await _respond({"type": "state", "data": client.session.state.model_dump()})
                return await self._step(client, action)
        except Exception as error:  # the boundary of the server: the client must hear of it, and the others live on
            answer = explain(error, asked)
            status = next((status for kind, status in _STATUS_OF.items() if isinstance(error, kind)), 500)
            return await _respond(answer, _STATUS.get(answer["data"]["code"], status))

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(client.session.close() for client in self._clients.values()))

    async def _reset(self, request: HttpRequest) -> HttpResponse:
        options = _body(request)
        key, client, is_new = self._find_or_make(request)
        async with client.lock:
            reset = client.session.reset(options, PATIENCE_S)
            try:
                # Without the cookie nobody comes back to an episode: its place is not for a client that has gone.
                page = await (unless_gone(request.gone.wait(), reset) if is_new else reset)
                if page is None:
                    raise BrowserError("the client has gone before its first episode had begun")
                answer = observation_answer(page)
            except Exception:
                if is_new:  # the next attempt comes as another client
                    await client.session.park()
                raise
        if is_new:
            if _cookie(request) is None:
                self._by_address[request.address] = key
            return await _respond(answer, headers={"Set-Cookie": f"{COOKIE}={key}; Path=/; HttpOnly; SameSite=Strict"})
        return await _respond(answer)

    async def _step(self, client: _Client, action: str) -> HttpResponse:
        observation = await client.session.step(action)
        if observation.done:
            await client.session.park()  # whoever has played an episode says nothing when it leaves
        return await _respond(observation_answer(observation))

    def _find(self, request: HttpRequest) -> _Client | None:
        """The client that asks; None before its first reset."""
        shown = _cookie(request)
        key = shown or self._last_here(request)
        client = self._clients.get(key) if key else None
        if key is None or client is None or (shown is None and client.takes_cookies):
            return None
        self._clients.move_to_end(key)
        return client

    def _last_here(self, request: HttpRequest) -> str | None:
        """Key of the client whose episode one without cookies plays on; None where that could be somebody else's."""
        is_direct = not any(name in request.headers for name in ("Forwarded", "X-Forwarded-For", "Via"))
        if self._is_private and is_direct and names_loopback(request.headers) and is_loopback(request.address):
            return self._by_address.get(request.address)
        return None

    def _find_or_make(self, request: HttpRequest) -> tuple[str, _Client, bool]:
        """The client that asks, or a new one (True)."""
        shown = _cookie(request)
        key = shown if shown in self._clients else None
        if key is None and shown is None:
            last = self._last_here(request)
            if last is not None and last in self._clients and self._clients[last].takes_cookies is False:
                key = last
        if key is not None:
            self._clients.move_to_end(key)
            return key, self._clients[key], False
        self._forget()
        key = secrets.token_urlsafe(16)
        self._clients[key] = client = _Client(self._hub)
        return key, client, True

    def _forget(self) -> None:
        """Make room for another client: those without a place are forgotten, the longest silent first."""
        for key, client in list(self._clients.items()):
            if len(self._clients) < _REMEMBERED * self._hub.size:
                break
            if client.session not in self._hub.active and not client.lock.locked():
                client.session.forget()
                del self._clients[key]
        self._by_address = {address: key for address, key in self._by_address.items() if key in self._clients}


def _cookie(request: HttpRequest) -> str | None:
    try:
        found = SimpleCookie(request.headers.get("Cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def _action(request: HttpRequest) -> str:
    """What a step asks for. Raises NoObject, ValidationError."""
    body = _body(request)
    data = StepRequest.model_validate(body).action if "action" in body else body
    action: BrowserGymAction = BrowserGymAction.model_validate(data)
    return action.action_str


def _body(request: HttpRequest) -> dict[str, Any]:
    """The object in a body. Raises NoObject."""
    try:
        body = json.loads(request.body or b"{}")
    except (ValueError, RecursionError) as error:
        raise NoObject(f"the body of {request.path} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise NoObject(f"the body of {request.path} is a JSON object, not {type(body).__name__}")
    return body


async def _respond(answer: Answer, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    failed = answer["type"] == "error"
    reason = answer["data"]["message"] if failed else ""
    body = as_json({"detail": reason} if failed else answer["data"])
    # Lists of pixels are up to 200 MB: joined on the event loop they would keep every other session waiting.
    whole = body if isinstance(body, bytes) else await asyncio.to_thread(b"".join, body)
    return HttpResponse(status, whole, reason=reason, headers=headers or {})
