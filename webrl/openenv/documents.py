"""What the server says about itself: OpenEnv's documents, an OpenAPI description of them all, and the same as a page.

API: `ROUTES`, what is asked over HTTP; `documents()` maps the paths of the documents to their answers.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

import webrl
from webrl.openenv.http_sessions import StepRequest
from webrl.openenv.models import BrowserGymAction, BrowserGymObservation, BrowserGymState, ResetOptions
from webrl.openenv.plain_http import HttpResponse
from webrl.openenv.protocol import EnvironmentMetadata, HealthResponse, ResetResponse, SchemaResponse, StepResponse


@dataclass(frozen=True)
class Route:
    """Something that is asked over HTTP."""

    method: str
    """GET or POST."""
    path: str
    """Without the host."""
    summary: str
    """What it does."""
    answer: type[BaseModel] | None = None
    """Of a status 200; None: no model."""
    body: type[BaseModel] | None = None
    """What is posted."""


_TITLE = "webrl's BrowserGym environment"
_EPISODES = (
    Route("POST", "/reset", "Start an episode; the answer's cookie names it", ResetResponse, ResetOptions),
    Route("POST", "/step", "Act once", StepResponse, StepRequest),
    Route("GET", "/state", "Where the episode stands", BrowserGymState),
    Route("POST", "/mcp", "JSON-RPC 2.0: an error, as this environment has no tools"),
)
_DOCUMENTS = (
    Route("GET", "/health", "Whether the server is up", HealthResponse),
    Route("GET", "/metadata", "Name, description and version", EnvironmentMetadata),
    Route("GET", "/schema", "JSON schemas of actions, observations and states", SchemaResponse),
    Route("GET", "/openapi.json", "This server in OpenAPI's terms"),
    Route("GET", "/docs", "The same as a page"),
    Route("GET", "/redoc", "The same as a page"),
)
ROUTES = (*_EPISODES, *_DOCUMENTS)


def documents() -> dict[str, HttpResponse]:
    """The answers to GET, by path."""
    metadata = EnvironmentMetadata(
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
    found = {
        "/health": HealthResponse().model_dump(mode="json"),
        "/metadata": metadata.model_dump(mode="json"),
        "/schema": schemas,
        "/openapi.json": _openapi(),
    }
    answers = {path: HttpResponse(200, orjson.dumps(document)) for path, document in found.items()}
    page = HttpResponse(200, _page().encode(), "text/html; charset=utf-8")
    return answers | {"/docs": page, "/redoc": page}


def _openapi() -> dict[str, Any]:
    models = {model for route in ROUTES for model in (route.answer, route.body) if model is not None}
    by_name = sorted(models, key=lambda model: model.__name__)
    references, schemas = models_json_schema(
        [(model, "validation") for model in by_name], ref_template="#/components/schemas/{model}"
    )

    def content(model: type[BaseModel] | None) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": references[model, "validation"]}}} if model else {}

    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        known: dict[str, Any] = {"summary": route.summary}
        if route.body:
            known["requestBody"] = content(route.body)
        known["responses"] = {"200": {"description": "OK"} | content(route.answer)}
        paths.setdefault(route.path, {})[route.method.lower()] = known
    return {
        "openapi": "3.1.0",
        "info": {"title": _TITLE, "version": webrl.__version__},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _page() -> str:
    rows = "".join(
        f"<tr><td>{route.method}<td><code>{route.path}</code><td>{html.escape(route.summary)}" for route in ROUTES
    )
    more = "Sessions are WebSockets at <code>/ws</code>; <a href=openapi.json>openapi.json</a> has the fields."
    return (
        f"<!doctype html><meta charset=utf-8><title>{_TITLE}</title><h1>{_TITLE}</h1><p>{more}<table>{rows}</table>\n"
    )
