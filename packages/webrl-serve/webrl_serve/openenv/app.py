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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

import webrl
from webrl.net import Access, BodyError, read_body
from webrl_serve.openenv import openenv_types
from webrl_serve.openenv.http_sessions import HttpSessions
from webrl_serve.openenv.hub import Hub
from webrl_serve.openenv.messages import (
    Answer,
    BrowserGymAction,
    BrowserGymObservation,
    BrowserGymState,
    ResetOptions,
    StepRequest,
    ToolsMessage,
    as_json,
    error_answer,
    explain,
    observation_answer,
    tool_answer,
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


@dataclass(frozen=True)
class _Entry:
    """An HTTP endpoint."""

    method: str
    """GET or POST."""
    path: str
    """Without the host."""
    summary: str
    """What it does."""
    endpoint: Callable[[Request], Any]
    """Handles requests."""
    answer: type[BaseModel] | None = None
    """Model of the response; None: it has none."""
    body: type[BaseModel] | None = None
    """Model of the request's body."""


def make_app(hub: Hub, sessions: HttpSessions) -> ASGIApp:
    """Returns the application of a hub, which requires the hub's token."""
    entries = _entries(sessions)
    paths = {entry.path for entry in entries}

    def not_found(request: Request, _error: Exception) -> Response:
        known = request.url.path.rstrip("/")
        if known in paths:
            return RedirectResponse(known, 307)
        text = "sessions are at /ws, episodes over HTTP at /reset, /step and /state; GET /docs lists all"
        return JSONResponse({"detail": text}, 404)

    def not_allowed(request: Request, error: Exception) -> Response:
        allowed = (error.headers or {}).get("Allow", "") if isinstance(error, HTTPException) else ""
        return JSONResponse({"detail": f"{request.url.path} takes {allowed} only"}, 405, {"Allow": allowed})

    routes = [Route(entry.path, entry.endpoint, methods=[entry.method]) for entry in entries]
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
        match kind:
            case "reset":
                return observation_answer(await session.reset(openenv_types.WSResetMessage(**message).data))
            case "step":
                action = BrowserGymAction.model_validate(openenv_types.WSStepMessage(**message).data)
                return observation_answer(await session.step(action.action_str))
            case "state":
                openenv_types.WSStateMessage(**message)
                await session.check_place()
                return {"type": "state", "data": session.state.model_dump()}
            case "mcp":
                return {"type": "mcp", "data": tool_answer(ToolsMessage.model_validate(message).data)}
            case "close":
                return None
            case _:
                return error_answer(f"Unknown message type: {str(kind)!r:.100}", "UNKNOWN_TYPE")
    except Exception as error:  # the boundary of the server: the client is told, the other sessions are not affected
        return explain(error, str(kind))


async def _answer_tools(request: Request) -> Response:
    try:
        asked = json.loads(await read_body(request))
    except BodyError as error:
        return JSONResponse({"detail": str(error)}, error.status)
    except (ValueError, RecursionError):
        asked = None
    return JSONResponse(tool_answer(asked))


def _entries(sessions: HttpSessions) -> list[_Entry]:
    """Return the HTTP endpoints: episodes, then documents."""
    types = openenv_types
    metadata = types.EnvironmentMetadata(
        name="browsergym_env",
        description="MiniWoB++ and other web pages in Chromium, as BrowserGym shows and rewards them",
        version=webrl.__version__,
    )
    observation = BrowserGymObservation.model_json_schema()
    schemas = {
        "action": BrowserGymAction.model_json_schema(),
        "observation": observation,
        "reset_observation": observation,
        "state": BrowserGymState.model_json_schema(),
    }
    health = types.HealthResponse().model_dump(mode="json")
    entries = [
        _Entry("POST", "/reset", "Start an episode; a cookie identifies it", sessions.reset, types.ResetResponse,
               ResetOptions),
        _Entry("POST", "/step", "Act once", sessions.step, types.StepResponse, StepRequest),
        _Entry("GET", "/state", "State of the episode", sessions.state, BrowserGymState),
        _Entry("POST", "/mcp", "JSON-RPC 2.0: an error, as this environment has no tools", _answer_tools),
        _Entry("GET", "/health", "Whether the server is up", lambda _: JSONResponse(health), types.HealthResponse),
        _Entry("GET", "/metadata", "Name, description and version",
               lambda _: JSONResponse(metadata.model_dump(mode="json")), types.EnvironmentMetadata),
        _Entry("GET", "/schema", "JSON schemas of actions, observations and states", lambda _: JSONResponse(schemas),
               types.SchemaResponse),
        _Entry("GET", "/openapi.json", "This server in OpenAPI's terms", lambda _: JSONResponse(_openapi(entries))),
        _Entry("GET", "/docs", "The same as a page", lambda _: HTMLResponse(_page(entries))),
        _Entry("GET", "/redoc", "The same as a page", lambda _: HTMLResponse(_page(entries))),
    ]  # fmt: skip
    return entries


def _openapi(entries: Sequence[_Entry]) -> dict[str, Any]:
    models = {model for entry in entries for model in (entry.answer, entry.body) if model is not None}
    references, schemas = models_json_schema(
        [(model, "validation") for model in sorted(models, key=lambda model: model.__name__)],
        ref_template="#/components/schemas/{model}",
    )

    def content(model: type[BaseModel] | None) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": references[model, "validation"]}}} if model else {}

    paths: dict[str, Any] = {}
    for entry in entries:
        operation: dict[str, Any] = {"summary": entry.summary}
        if entry.body:
            operation["requestBody"] = content(entry.body)
        operation["responses"] = {"200": {"description": "OK"} | content(entry.answer)}
        paths[entry.path] = {entry.method.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": webrl.__version__},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _page(entries: Sequence[_Entry]) -> str:
    rows = "".join(
        f"<tr><td>{entry.method}<td><code>{entry.path}</code><td>{html.escape(entry.summary)}" for entry in entries
    )
    more = "Sessions are WebSockets at <code>/ws</code>; <a href=openapi.json>openapi.json</a> has the fields."
    return (
        f"<!doctype html><meta charset=utf-8><title>{_TITLE}</title><h1>{_TITLE}</h1><p>{more}<table>{rows}</table>\n"
    )
