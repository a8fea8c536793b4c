"""Plays episodes over plain HTTP, for OpenEnv's first clients: POST /reset, POST /step, GET /state.

API: `HttpSessions(hub)`, whose `reset`, `step` and `state` are endpoints.

HTTP has no connection that an episode could belong to, so the response to a reset sets a cookie, which
`requests.Session` (and with it OpenEnv's `HTTPEnvClient`) sends back: each client has its own episode. Where a server
is for this machine only, clients without cookies share one episode, the last that was begun; elsewhere an address may
be a proxy's.

A server does not notice that an HTTP client has gone: its requests are its keep-alive. After `IDLE_S` without one,
another client that waits gets the place of its episode.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from webrl.errors import DataError
from webrl.net import BodyError, ClientGone, is_loopback, read_body, unless_gone
from webrl_serve.openenv.hub import Hub, NoEpisode
from webrl_serve.openenv.messages import (
    BrowserGymAction,
    BrowserGymObservation,
    StepRequest,
    as_json,
    explain,
    observation_answer,
)
from webrl_serve.openenv.session import Session, first_state

COOKIE = "webrl_session"
IDLE_S = 300.0
"""Silence after which an episode loses its place to a client that waits."""
NEW_IDLE_S = 60.0
"""The same for a client that has sent nothing since its first reset: it may have given up."""
PATIENCE_S = 10.0
"""Longest wait for a place: OpenEnv's HTTP client gives up after 15 s, the reset itself included."""
_REMEMBERED = 4
"""Clients that are remembered, for each place."""
Endpoint = Callable[[Request], Awaitable[Response]]
_STATUS = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503}
"""HTTP status of an error code."""


@dataclass
class _Client:
    """One client; its requests are served in turn."""

    session: Session
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    takes_cookies: bool | None = None
    """None: not known yet."""


class HttpSessions:
    """See the module docstring; lives in the server's event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._idle_s = min(IDLE_S, hub.options.idle_timeout_s)
        self._clients: OrderedDict[str, _Client] = OrderedDict()
        self._last = ""
        """Key of the client that began an episode last without sending a cookie."""
        self.reset, self.step, self.state = map(_with_errors, (self._reset, self._step, self._state))

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(client.session.close() for client in self._clients.values()))

    async def _reset(self, request: Request) -> Response:
        options = await _body(request)
        key = request.cookies.get(COOKIE) or self._shared_key(request)
        known = self._clients.get(key)
        if known is not None and COOKIE not in request.cookies and known.takes_cookies is not False:
            known = None  # its owner may send a cookie
        if known is not None:
            self._clients.move_to_end(key)
            async with known.lock:
                return await _respond(await known.session.reset(options, PATIENCE_S))

        # Make room: clients without a place are forgotten, those that have been silent for longest first.
        for old, client in list(self._clients.items()):
            if len(self._clients) < _REMEMBERED * self._hub.size:
                break
            if client.session not in self._hub.active and not client.lock.locked():
                client.session.forget()
                del self._clients[old]
        key, client = secrets.token_urlsafe(16), _Client(Session(self._hub, min(NEW_IDLE_S, self._idle_s)))
        self._clients[key] = client
        async with client.lock:
            try:
                # Nobody returns to an episode without its cookie: a client that has gone gets no place.
                page = await unless_gone(request.receive, client.session.reset(options, PATIENCE_S))
            except Exception:
                await client.session.park()  # the next attempt comes as another client
                raise
        if COOKIE not in request.cookies:
            self._last = key
        response = await _respond(page)
        response.set_cookie(COOKIE, key, httponly=True, samesite="strict")
        return response

    async def _step(self, request: Request) -> Response:
        body = await _body(request)
        data = StepRequest.model_validate(body).action if "action" in body else body
        action: BrowserGymAction = BrowserGymAction.model_validate(data)
        client = self._find(request)
        if client is None:
            raise NoEpisode("no episode: POST /reset first, and send the cookie back that it sets")
        async with client.lock:
            client.takes_cookies = COOKIE in request.cookies
            client.session.idle_timeout_s = self._idle_s
            observation = await client.session.step(action.action_str)
            if observation.done:
                await client.session.park()  # clients do not say when they leave after an episode
            return await _respond(observation)

    async def _state(self, request: Request) -> Response:
        client = self._find(request)
        if client is None and COOKIE not in request.cookies:
            return JSONResponse(first_state(self._hub).model_dump())
        if client is None:
            raise NoEpisode("no episode of this cookie: POST /reset first")
        async with client.lock:
            return JSONResponse(client.session.state.model_dump())

    def _find(self, request: Request) -> _Client | None:
        """Return the client of a request; None before its first reset."""
        cookie = request.cookies.get(COOKIE)
        key = cookie or self._shared_key(request)
        client = self._clients.get(key)
        if client is None or (cookie is None and client.takes_cookies):
            return None
        self._clients.move_to_end(key)
        return client

    def _shared_key(self, request: Request) -> str:
        """Return the key of the episode that clients without cookies share; "" where it could be somebody else's."""
        is_direct = not any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via"))
        here = request.client is not None and is_loopback(request.client.host)
        return self._last if self._hub.options.token is None and is_direct and here else ""


def _with_errors(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with its exceptions as responses."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except BodyError as error:
            return JSONResponse({"detail": str(error)}, error.status, {"Connection": "close"})
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # the boundary of the server: the client is told, other episodes are not affected
            problem = explain(error, request.url.path.strip("/"))["data"]
            status = 409 if isinstance(error, NoEpisode) else 400 if isinstance(error, DataError) else 500
            return JSONResponse({"detail": problem["message"]}, _STATUS.get(problem["code"], status))

    return answer


async def _body(request: Request) -> dict[str, Any]:
    """Return the object in a body. Raises BodyError."""
    path = request.url.path
    try:
        body = json.loads(await read_body(request) or b"{}")
    except (ValueError, RecursionError) as error:
        raise BodyError(422, f"the body of {path} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise BodyError(422, f"the body of {path} is a JSON object, not {type(body).__name__}")
    return body


async def _respond(observation: BrowserGymObservation) -> Response:
    return Response(await as_json(observation_answer(observation)["data"]), media_type="application/json")
