"""Serves a pool of environments: OpenEnv's WebSocket protocol, its older HTTP one, and documents about both.

API: `await serve(config, options, on_ready)` runs until SIGINT or SIGTERM; `await host(hub, listener, on_ready, stop)`
is its second half, on a pool that is open. `make_app(hub, HttpSessions(hub))` is ASGI. (OpenEnv's own application
imports Gradio, and over HTTP plays every step on its own page.)

Episodes over HTTP (POST /reset, POST /step, GET /state) are for OpenEnv's first clients. HTTP has no connection that an
episode could belong to, so the response to a reset sets a cookie, which `requests.Session` (and with it OpenEnv's
`HTTPEnvClient`) sends back: each client has its own episode. A server does not notice that an HTTP client has gone: its
requests are its keep-alive. After `IDLE_S` without one, another client that waits gets the place of its episode.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import math
import random
import secrets
import socket
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

import webrl
from webrl.config import RunConfig
from webrl.errors import DataError, UsageError, WebRLError
from webrl.rollouts.collect import open_pool
from webrl.rollouts.suite import find_suite, suite_of
from webrl_serve import net
from webrl_serve.openenv.messages import (
    Answer,
    BrowserGymAction,
    BrowserGymObservation,
    BrowserGymState,
    ClientMessage,
    NoEpisode,
    ResetOptions,
    StepRequest,
    as_json,
    error_answer,
    explain,
    observation_answer,
    tool_answer,
)
from webrl_serve.openenv.session import SPLITS, Hub, ServerOptions, Session, first_state, task_of

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Open connections in addition to one for each environment; further ones are closed at once."""
MAX_SESSIONS = 4096
"""Each holds a page, tens of megabytes."""
MESSAGES_PER_S = 100
"""A client that sends more is read more slowly."""
_MAX_WAITING = 4
"""Messages of a client that are read ahead; further ones wait in its own send buffer."""
_TOO_BIG = 1009
"""Close code of a side that gets a larger message than it accepts: the client, or this server."""
_NAME = "browsergym_env"
"""As OpenEnv's own server of BrowserGym calls it; the task API's paths begin with it."""
_LISTINGS = ("tasks", "num_tasks", "task", "task_range")
_TITLE = "webrl's BrowserGym environment"
COOKIE = "webrl_session"
IDLE_S = 300.0
"""Silence after which an episode loses its place to a client that waits."""
PATIENCE_S = 10.0
"""Longest wait for a place: OpenEnv's HTTP client gives up after 15 s, the reset itself included."""
_REMEMBERED = 4
"""Clients that are remembered, for each place."""
_STATUS = {"VALIDATION_ERROR": 422, "CAPACITY_REACHED": 503}
"""HTTP status of an error code."""
_REFUSED = {401: "a token is needed", 403: "web pages may not connect"}
_CLIENTS_FAULTS = ("Invalid UTF-8", "ASGI callable returned without completing handshake")
"""How errors begin that uvicorn logs of a WebSocket's client: one with a broken message, one that was refused."""
logging.getLogger("uvicorn.error").addFilter(lambda record: not record.getMessage().startswith(_CLIENTS_FAULTS))
_PATHS = "sessions are WebSockets at /ws, episodes over HTTP at /reset, /step and /state; GET /docs lists all"


async def serve(config: RunConfig, options: ServerOptions, on_ready: Callable[[str, int], None]) -> None:
    """Serve sessions; pages are opened as they are needed.

    Args:
        on_ready: called with the server's URL and number of sessions once a first page has been opened.

    Raises:
        UsageError: as of `check_options`, an address that cannot be used, or no such default task.
        BrowserMissing, BrowserError: the first page does not open.
    """
    check_options(config, options)
    with net.listen(options.host, options.port) as listener:
        rollout = config.rollout
        if options.num_sessions is not None:
            per_worker = -(-options.num_sessions // rollout.num_workers)
            rollout = rollout.model_copy(update={"envs_per_worker": per_worker})
        rollout = find_suite(config.tasks.suite).with_step_rewards(rollout)
        async with open_pool(rollout) as pool:
            size = options.num_sessions or pool.size
            hub = Hub(pool, rollout, size, options, random.Random(config.seed), config)
            try:
                first = task_of(options.default_site, 0, ResetOptions(), hub)
                async with pool.env() as env:
                    await env.reset(first)
                    if not suite_of(first).is_stateless:
                        await env.close()
            except DataError as error:
                raise UsageError(str(error)) from None
            await host(hub, listener, on_ready, net.stop_on_signals())


def check_options(config: RunConfig, options: ServerOptions) -> None:
    """Raises UsageError: others can connect without a token, no local browsers, or a number out of its range."""
    if config.rollout.env != "browser":
        raise UsageError(f"rollout.env={config.rollout.env}: serve-env needs browsers of its own, rollout.env=browser")
    suite = find_suite(config.tasks.suite)
    if suite.not_served:
        raise UsageError(f"tasks.suite={suite.name}: {suite.not_served}")
    if config.rollout.random_ids:
        raise UsageError(
            "rollout.random_ids=true is for training, and serve-env cannot know which episodes are; leave it out"
        )
    net.check_address(options.host, options.port, options.token, net.ENV_TOKEN)
    if not 0 < options.idle_timeout_s < math.inf:
        raise UsageError(f"--idle-timeout {options.idle_timeout_s}: expected a number of seconds above 0")
    if options.num_sessions is not None and not 1 <= options.num_sessions <= MAX_SESSIONS:
        raise UsageError(f"--sessions {options.num_sessions}: expected 1 to {MAX_SESSIONS}")


async def host(hub: Hub, listener: socket.socket, on_ready: Callable[[str, int], None], stop: asyncio.Event) -> None:
    """Serve a hub's sessions until `stop` is set.

    Args:
        on_ready: called with the server's URL and number of sessions once clients can connect.
    """
    sessions = HttpSessions(hub)
    on_ready(net.address_of(listener), hub.size)
    try:
        await net.run_app(make_app(hub, sessions), listener, MAX_CONNECTIONS + hub.size, stop, websockets=True)
    finally:
        await sessions.close()


def make_app(hub: Hub, sessions: HttpSessions) -> ASGIApp:
    """Return the application of a hub, which requires the hub's token."""
    schemas = {
        "action": BrowserGymAction.model_json_schema(),
        "observation": BrowserGymObservation.model_json_schema(),
        "reset_observation": BrowserGymObservation.model_json_schema(),
        "state": BrowserGymState.model_json_schema(),
    }
    splits = [{"name": name, "type": name} for name in SPLITS]
    metadata = {
        "name": _NAME,
        "description": "MiniWoB++ and other web pages in Chromium, as BrowserGym shows and rewards them",
        "version": webrl.__version__,
    }
    entries: list[tuple[str, str, str, Callable[[Request], Any], type[BaseModel] | None]] = [
        ("POST", "/reset", "Start an episode; a cookie identifies it", sessions.reset, ResetOptions),
        ("POST", "/step", "Act once", sessions.step, StepRequest),
        ("GET", "/state", "State of the episode", sessions.state, None),
        ("POST", "/mcp", "JSON-RPC 2.0: an error, as this environment has no tools", _refuse_tools, None),
        ("GET", "/list_environments", "Name of the environment", lambda _: JSONResponse([_NAME]), None),
        ("GET", f"/{_NAME}/splits", "Splits of tasks", lambda _: JSONResponse(splits), None),
        *(
            ("POST", f"/{_NAME}/{what}", "Tasks of a split", partial(list_tasks, hub=hub), Listing)
            for what in _LISTINGS
        ),
        ("GET", "/health", "Whether the server is up", lambda _: JSONResponse({"status": "healthy"}), None),
        ("GET", "/metadata", "Name, description and version", lambda _: JSONResponse(metadata), None),
        ("GET", "/schema", "JSON schemas of actions, observations and states", lambda _: JSONResponse(schemas), None),
        ("GET", "/openapi.json", "This server in OpenAPI's terms", lambda _: JSONResponse(openapi), None),
        ("GET", "/docs", "The same as a page", lambda _: HTMLResponse(page), None),
        ("GET", "/redoc", "The same as a page", lambda _: HTMLResponse(page), None),
    ]
    paths: dict[str, Any] = {}
    for method, path, summary, _, body in entries:
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "OK"}}}
        if body is not None:
            operation["requestBody"] = {"content": {"application/json": {"schema": body.model_json_schema()}}}
        paths[path] = {method.lower(): operation}
    info = {"title": _TITLE, "version": webrl.__version__, "description": "Sessions are WebSockets at /ws"}
    openapi: dict[str, Any] = {"openapi": "3.1.0", "info": info, "paths": paths}
    text = html.escape(json.dumps(openapi, indent=2))
    page: str = f"<!doctype html><meta charset=utf-8><title>{_TITLE}</title><h1>{_TITLE}</h1><pre>{text}</pre>\n"

    async def failed(request: Request, error: Exception) -> Response:
        known = request.url.path.rstrip("/")
        if isinstance(error, net.ClientGone | ClientDisconnect):
            return Response(status_code=499)
        if isinstance(error, net.BodyError):
            return JSONResponse({"detail": str(error)}, error.status, {"Connection": "close"})
        if isinstance(error, HTTPException) and error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "")
            return JSONResponse({"detail": f"{request.url.path} takes {allowed} only"}, 405, {"Allow": allowed})
        if isinstance(error, HTTPException) and known in paths:
            return RedirectResponse(known, 307)
        if isinstance(error, HTTPException):
            return JSONResponse({"detail": _PATHS}, error.status_code)
        problem = explain(error, known.strip("/"))["data"]
        status = 409 if isinstance(error, NoEpisode) else 400 if isinstance(error, DataError) else 500
        return JSONResponse({"detail": problem["message"]}, _STATUS.get(problem["code"], status))

    kinds = (HTTPException, net.BodyError, net.ClientGone, ClientDisconnect, ValidationError, WebRLError, Exception)
    routes: list[Route | WebSocketRoute] = [WebSocketRoute("/ws", partial(converse, hub=hub))]
    elsewhere = JSONResponse({"detail": _PATHS}, 404)
    routes.append(WebSocketRoute("/{path:path}", lambda websocket: websocket.send_denial_response(elsewhere)))
    routes += [Route(path, endpoint, methods=[method]) for method, path, _, endpoint, _ in entries]
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, failed))
    app.router.redirect_slashes = False  # to a path without a host: a proxy may stand before this server
    return net.Access(app, hub.options.token, lambda status: JSONResponse({"detail": _REFUSED[status]}, status))


async def converse(websocket: WebSocket, hub: Hub) -> None:
    """Serve one session until its client has gone: OpenEnv's messages in, its responses out, one at a time.

    A client that closes its connection, or whose process dies, ends its session at once, even during a step.
    """
    await websocket.accept()
    session = Session(hub)
    hub.enter(session)
    waiting: asyncio.Queue[str | bytes] = asyncio.Queue(_MAX_WAITING)

    size = 0  # bytes of the last response

    async def read_all() -> int:
        """Returns the code that the connection is closed with."""
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            await waiting.put(message.get("text") or message.get("bytes") or "")
        return int(message.get("code") or 0)

    async def answer_all() -> None:
        nonlocal size
        loop = asyncio.get_running_loop()
        while True:
            raw = await waiting.get()
            begun = loop.time()
            answer = await _answer(session, raw)
            if answer is None:
                return
            text = await as_json(answer)
            size = len(text)
            await websocket.send_text(text.decode())
            await asyncio.sleep(begun + 1 / MESSAGES_PER_S - loop.time())

    reading, answering = asyncio.create_task(read_all()), asyncio.create_task(answer_all())
    try:
        await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and reading.result() == _TOO_BIG and size > net.MAX_BODY_BYTES:
            logger.warning(
                "a client has hung up because our response of %d bytes is larger than it accepts (openenv-core up to "
                "0.2.1: 1 MB): it needs a smaller --viewport, --screenshots none, or a newer openenv-core", size,
            )  # fmt: skip
        if answering.done():
            with contextlib.suppress(WebSocketDisconnect):
                answering.result()
    finally:
        reading.cancel()
        answering.cancel()
        await asyncio.gather(reading, answering, return_exceptions=True)
        await asyncio.shield(session.park())
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):  # it has gone already
        await websocket.close()


async def _answer(session: Session, raw: str | bytes) -> Answer | None:
    """Return the response to one message; None: the client ends the session."""
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return error_answer(f"Invalid JSON: {error}", "INVALID_JSON")
    if not isinstance(message, dict):
        return error_answer(f"a message is a JSON object, not {type(message).__name__}", "VALIDATION_ERROR")
    kind = message.get("type")
    if kind not in ("reset", "step", "state", "mcp", "close"):
        return error_answer(f"Unknown message type: {str(kind)!r:.100}", "UNKNOWN_TYPE")
    try:
        data = ClientMessage.model_validate(message).data
        match kind:
            case "reset":
                return observation_answer(await session.reset(data))
            case "step":
                return observation_answer(await session.step(BrowserGymAction.model_validate(data).action_str))
            case "state":
                await session.check_place()
                return {"type": "state", "data": session.state.model_dump()}
        return {"type": "mcp", "data": tool_answer(data)} if kind == "mcp" else None
    except Exception as error:  # the server's boundary: the client gets the error, other sessions are not affected
        return explain(error, str(kind))


async def _refuse_tools(request: Request) -> Response:
    try:
        asked = json.loads(await net.read_body(request))
    except (ValueError, RecursionError):
        asked = None
    return JSONResponse(tool_answer(asked))


class Listing(BaseModel):
    """What a call of the task API names: a split, and one index or bounds as of Python's slices."""

    model_config = ConfigDict(extra="forbid", strict=True)

    split: str
    index: int | None = None
    start: int | None = None
    stop: int | None = None


async def list_tasks(request: Request, hub: Hub) -> Response:
    """Answer OpenEnv's task API (since 0.10): tasks that a reset takes by `split` and `index`."""
    asked = Listing.model_validate(await _body(request))
    tasks = await asyncio.to_thread(hub.tasks, asked.split)
    rows = [
        {"id": task.task_id, "index": index, "task_name": task.site, "seed": task.seed}
        | ({} if task.instruction is None else {"goal": task.instruction})
        for index, task in enumerate(tasks)
    ]
    match request.url.path.rpartition("/")[2]:
        case "num_tasks":
            return JSONResponse({"num_tasks": len(rows)})
        case "task":
            if asked.index is None:
                raise DataError("index is missing: a task's place in the split, from 0")
            hub.task_at(asked.split, asked.index)
            return JSONResponse({"task": rows[asked.index]})
        case "task_range":
            return JSONResponse({"tasks": rows[asked.start : asked.stop]})
    return JSONResponse({"tasks": rows, "env_name": _NAME})


class HttpSessions:
    """See the module docstring; lives in the server's event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """By cookie; those that were silent for longest come first."""

    async def close(self) -> None:
        """End all sessions."""
        await asyncio.gather(*(session.park() for session in self._sessions.values()))

    async def reset(self, request: Request) -> Response:
        """Start an episode, in the client's session if it has one."""
        options = await _body(request)
        if session := self._find(request):
            return await _respond(await session.reset(options, PATIENCE_S))

        # Make room: clients without a place are forgotten.
        for old, known in list(self._sessions.items()):
            if len(self._sessions) < _REMEMBERED * self._hub.size:
                break
            if known not in self._hub.active and not known.lock.locked():
                del self._sessions[old]
        key, session = secrets.token_urlsafe(16), Session(self._hub, min(IDLE_S, self._hub.options.idle_timeout_s))
        try:
            # Nobody returns to an episode without its cookie: a client that has gone gets no place.
            page = await net.unless_gone(request.receive, session.reset(options, PATIENCE_S))
        except BaseException:
            await session.park()  # the next attempt comes as another client
            raise
        self._sessions[key] = session
        response = await _respond(page)
        response.set_cookie(COOKIE, key, httponly=True, samesite="strict")
        return response

    async def step(self, request: Request) -> Response:
        """Act once."""
        body = await _body(request)
        data = StepRequest.model_validate(body).action if "action" in body else body
        action: BrowserGymAction = BrowserGymAction.model_validate(data)
        session = self._find(request)
        if session is None:
            raise NoEpisode("no episode: POST /reset first, and send back the cookie that it sets")
        observation = await session.step(action.action_str)
        if observation.done:
            await session.park()  # clients do not say when they leave after an episode
        return await _respond(observation)

    async def state(self, request: Request) -> Response:
        """Return the state of the client's episode."""
        session = self._find(request)
        if session is None and COOKIE in request.cookies:
            raise NoEpisode("no episode of this cookie: POST /reset first")
        return JSONResponse((first_state(self._hub) if session is None else session.state).model_dump())

    def _find(self, request: Request) -> Session | None:
        """Return the session of a request's cookie; None before its first reset."""
        key = request.cookies.get(COOKIE, "")
        if key in self._sessions:
            self._sessions.move_to_end(key)
        return self._sessions.get(key)


async def _body(request: Request) -> dict[str, Any]:
    """Return the object in a body. Raises BodyError."""
    path = request.url.path
    try:
        body = json.loads(await net.read_body(request) or b"{}")
    except (ValueError, RecursionError) as error:
        raise net.BodyError(422, f"the body of {path} is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise net.BodyError(422, f"the body of {path} is a JSON object, not {type(body).__name__}")
    return body


async def _respond(observation: BrowserGymObservation) -> Response:
    return Response(await as_json(observation_answer(observation)["data"]), media_type="application/json")
