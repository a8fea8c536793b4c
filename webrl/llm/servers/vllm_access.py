"""ASGI middleware that runs inside vLLM: every route wants the server's key, not only those below `/v1`.

vLLM's own check leaves its development routes open (`/collective_rpc` calls any method of its workers by name, with
which we load new weights) to every user of the machine, and to any page in a browser on it. Standard library only: a
copy of this file is imported by whichever Python vLLM runs in.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

_OPEN = "/health"
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class RequireKey:
    """Answers 401 to a request without `Authorization: Bearer <VLLM_API_KEY>`; only `/health` is open."""

    def __init__(self, app: Callable[[Scope, Any, Send], Awaitable[None]]) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ['VLLM_API_KEY']}".encode()

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        """Pass on what may pass (ASGI)."""
        is_open = scope["type"] == "lifespan" or (scope["type"] == "http" and scope["path"] == _OPEN)
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        if is_open or (len(given) == 1 and hmac.compare_digest(given[0], self._expected)):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b"the key of this server is needed"})
