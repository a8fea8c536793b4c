"""Builds the application: OpenEnv's WebSocket protocol, its older HTTP one, and documents about both.

API: `make_app(hub, sessions)` is ASGI. (OpenEnv's own application imports Gradio, and over HTTP plays every step on a
page of its own.)
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

import webrl
from webrl.net import Access, BodyError, read_body
from webrl_serve.openenv.http_sessions import HttpSessions
from webrl_serve.openenv.hub import Hub
from webrl_serve.openenv.messages import (
    Answer,
    BrowserGymAction,
    BrowserGymObservation,
    BrowserGymState,
    ClientMessage,
    ResetOptions,
    StepRequest,
    as_json,
    error_answer,
    explain,
    observation_answer,
)
from webrl_serve.openenv.session import Session

logger = logging.getLogger(__name__)

MESSAGES_PER_S = 100
"""A client that sends more is read more slowly."""
_MAX_WAITING = 4
"""Messages of a client that are read ahead; further ones wait in its own send buffer."""
_TOO_BIG = 1009
"""Close code of a client that does not accept messages of this size."""
_TITLE = "webrl's BrowserGym environment"
_REFUSED = {401: "a token is needed", 403: "web pages may not connect"}


def make_app(hub: Hub, sessions: HttpSessions) -> ASGIApp:
    """Return the application of a hub, which requires the hub's token."""
    schemas = {
        "action": BrowserGymAction.model_json_schema(),
        "observation": BrowserGymObservation.model_json_schema(),
        "reset_observation": BrowserGymObservation.model_json_schema(),
        "state": BrowserGymState.model_json_schema(),
    }
    metadata = {
        "name": "browsergym_env",
        "description": "MiniWoB++ and other web pages in Chromium, as BrowserGym shows and rewards them",
        "version": webrl.__version__,
    }
    entries: list[tuple[str, str, str, Callable[[Request], Any], type[BaseModel] | None]] = [
        ("POST", "/reset", "Start an episode; a cookie identifies it", sessions.reset, ResetOptions),
        ("POST", "/step", "Act once", sessions.step, StepRequest),
        ("GET", "/state", "State of the episode", sessions.state, None),
        ("POST", "/mcp", "JSON-RPC 2.0: an error, as this environment has no tools", _answer_tools, None),
        ("GET", "/health", "Whether the server is up", lambda _: JSONResponse({"status": "healthy"}), None),
        ("GET", "/metadata", "Name, description and version", lambda _: JSONResponse(metadata), None),
        ("GET", "/schema", "JSON schemas of actions, observations and states", lambda _: JSONResponse(schemas), None),
        ("GET", "/openapi.json", "This server in OpenAPI's terms", lambda _: JSONResponse(openapi), None),
        ("GET", "/docs", "The same as a page", lambda _: HTMLResponse(page), None),
        ("GET", "/redoc", "The same as a page", lambda _: HTMLResponse(page), None),
    ]
    paths: dict[str, Any] = {}
    rows = ""
    for method, path, summary, _, body in entries:
        operation: dict[str, Any] = {"summary": summary, "responses": {"200": {"description": "OK"}}}
        if body is not None:
            operation["requestBody"] = {"content": {"application/json": {"schema": body.model_json_schema()}}}
        paths[path] = {method.lower(): operation}
        rows += f"<tr><td>{method}<td><code>{path}</code><td>{html.escape(summary)}"
    openapi = {"openapi": "3.1.0", "info": {"title": _TITLE, "version": webrl.__version__}, "paths": paths}
    more = "Sessions are WebSockets at <code>/ws</code>; <a href=openapi.json>openapi.json</a> has the fields."
    page = (
        f"<!doctype html><meta charset=utf-8><title>{_TITLE}</title><h1>{_TITLE}</h1><p>{more}<table>{rows}</table>\n"
    )

    def not_found(request: Request, _error: Exception) -> Response:
        known = request.url.path.rstrip("/")
        if known in paths:
            return RedirectResponse(known, 307)
        text = "sessions are at /ws, episodes over HTTP at /reset, /step and /state; GET /docs lists all"
        return JSONResponse({"detail": text}, 404)

    def not_allowed(request: Request, error: Exception) -> Response:
        allowed = (error.headers or {}).get("Allow", "") if isinstance(error, HTTPException) else ""
        return JSONResponse({"detail": f"{request.url.path} takes {allowed} only"}, 405, {"Allow": allowed})

    routes = [Route(path, endpoint, methods=[method]) for method, path, _, endpoint, _ in entries]
    handlers: dict[Any, Any] = {404: not_found, 405: not_allowed}
    app = Starlette(routes=[*routes, WebSocketRoute("/ws", partial(converse, hub=hub))], exception_handlers=handlers)
    app.router.redirect_slashes = False  # to a path without a host: a proxy may stand before this server
    return Access(app, hub.options.token, lambda status: JSONResponse({"detail": _REFUSED[status]}, status))


async def converse(websocket: WebSocket, hub: Hub) -> None:
    """Serve one session until its client has gone: OpenEnv's messages in, its responses out, one at a time.

    A client that closes its connection, or whose process dies, ends its session at once, even during a step.
    """
    await websocket.accept()
    session = Session(hub)
    hub.enter(session)
    waiting: asyncio.Queue[str | bytes] = asyncio.Queue(_MAX_WAITING)

    async def read_all() -> int:
        """Returns the code that the client closes its connection with."""
        while (message := await websocket.receive())["type"] != "websocket.disconnect":
            await waiting.put(message.get("text") or message.get("bytes") or "")
        return int(message.get("code") or 0)

    async def answer_all() -> None:
        loop = asyncio.get_running_loop()
        while True:
            raw = await waiting.get()
            begun = loop.time()
            answer = await _answer(session, raw)
            if answer is None:
                return
            await websocket.send_text((await as_json(answer)).decode())
            await asyncio.sleep(begun + 1 / MESSAGES_PER_S - loop.time())

    reading, answering = asyncio.create_task(read_all()), asyncio.create_task(answer_all())
    try:
        await asyncio.wait((reading, answering), return_when=asyncio.FIRST_COMPLETED)
        if reading.done() and reading.result() == _TOO_BIG:
            logger.warning(
                "a client has hung up because our response is larger than it accepts (openenv-core up to 0.2.1: 1 MB): "
                "it needs a smaller --viewport, --screenshots none, or a newer openenv-core"
            )
        if answering.done():
            with contextlib.suppress(WebSocketDisconnect):
                answering.result()
    finally:
        reading.cancel()
        answering.cancel()
        await asyncio.gather(reading, answering, return_exceptions=True)
        await asyncio.shield(session.close())
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
    try:
        if kind not in ("reset", "step", "state", "mcp", "close"):
            return error_answer(f"Unknown message type: {str(kind)!r:.100}", "UNKNOWN_TYPE")
        data = ClientMessage.model_validate(message).data
        if kind == "reset":
            return observation_answer(await session.reset(data))
        if kind == "step":
            return observation_answer(await session.step(BrowserGymAction.model_validate(data).action_str))
        if kind == "state":
            await session.check_place()
            return {"type": "state", "data": session.state.model_dump()}
        return {"type": "mcp", "data": no_tools(data)} if kind == "mcp" else None
    except Exception as error:  # the boundary of the server: the client is told, the other sessions are not affected
        return explain(error, str(kind))


def no_tools(request: Any) -> dict[str, Any]:
    """Return the answer to a JSON-RPC request for tools: the error of OpenEnv's server where there are none."""
    number = request.get("id") if isinstance(request, dict) else None
    error = {"code": -32603, "message": "Environment does not support MCP", "data": None}
    return {"jsonrpc": "2.0", "id": number if isinstance(number, str | int) else None, "error": error}


async def _answer_tools(request: Request) -> Response:
    try:
        return JSONResponse(no_tools(json.loads(await read_body(request))))
    except BodyError as error:
        return JSONResponse({"detail": str(error)}, error.status)
    except (ValueError, RecursionError):
        return JSONResponse(no_tools(None))
