"""JSON-RPC about tools, of which the environment has none: errors, with the codes that OpenEnv's servers give them.

API: `answer_body(body)` is the answer to a POST of `/mcp`, `answer_request(request)` that to a WebSocket's message.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from webrl.errors import problem_text
from webrl.runs.text import dump_json, load_json

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INTERNAL_ERROR = -32700, -32600, -32601, -32603
_METHODS = ("tools/list", "tools/call")


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = {}
    id: str | int | None = None


def answer_body(body: bytes) -> bytes:
    """The answer to a body as JSON."""
    try:
        request = load_json(body)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        return dump_json(_error(PARSE_ERROR, "Parse error"))
    return dump_json(answer_request(request))


def answer_request(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request."""
    try:
        asked = _Request.model_validate(request)
    except ValidationError as error:
        return _error(INVALID_REQUEST, f"Invalid request: {problem_text(error.errors()[0])}")
    if asked.method not in _METHODS:
        return _error(METHOD_NOT_FOUND, f"Method not found: {asked.method:.100}", asked.id)
    return _error(INTERNAL_ERROR, "Environment does not support MCP", asked.id)


def _error(code: int, message: str, number: str | int | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message, "data": None}}
