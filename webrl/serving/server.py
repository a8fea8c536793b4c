"""The server: a model behind uvicorn, and who may talk to it.

API: `await serve(checkpoint, options, on_ready)` runs until it is told to stop (SIGINT, SIGTERM).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from webrl.llm import open_model
from webrl.llm.interface import LanguageModel
from webrl.openenv.access import address_of, check_host, check_port, http_config, listen, names_loopback, refusal
from webrl.serving.app import Service, error_response, make_app
from webrl.serving.checkpoint import Checkpoint
from webrl.serving.requests import RequestError

TOKEN_VARIABLE = "WEBRL_MODEL_TOKEN"
_MAX_CONNECTIONS = 512
"""Further ones are answered with 503."""


@dataclass(frozen=True)
class ServerOptions:
    """Where `webrl serve-model` listens, and to whom."""

    host: str = "127.0.0.1"
    """Address."""
    port: int = 8000
    """Port; 0 takes a free one."""
    token: str | None = None
    """What clients must show; None lets everybody in, which is possible on loopback only."""


def check_options(options: ServerOptions) -> None:
    """Raises UsageError; see `serve`."""
    check_port(options.port)
    check_host(options.host, options.token, TOKEN_VARIABLE)


async def serve(
    checkpoint: Checkpoint, context: int | None, options: ServerOptions, on_ready: Callable[[str], None]
) -> None:
    """Serve a checkpoint.

    Args:
        context: what `check_context` says of it.
        on_ready: called with the address, without `/v1`, once the model is loaded.

    Raises:
        UsageError: no token although others can connect, or an address that cannot be used.
        ModelError: unusable weights, or a vLLM server that does not start.
    """
    check_options(options)
    with listen(options.host, options.port) as listener:  # loading may take minutes
        async with _open(checkpoint) as model:
            app = make_app(Service(model, checkpoint.alias, checkpoint.config, context))
            server = _Server(http_config(Door(app, options.token), _MAX_CONNECTIONS))
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, server.stop)
            on_ready(address_of(listener))
            await server.serve(sockets=[listener])


def _open(checkpoint: Checkpoint) -> AbstractAsyncContextManager[LanguageModel]:
    config = checkpoint.config
    sees = config.rollout.image_size is not None
    return open_model(checkpoint.name, config.rollout.engine, config.models, sees=sees)


class Door:
    """ASGI middleware: whoever lacks the token, and web pages, are refused before a body is read."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through or refuse."""
        if scope["type"] != "http":
            return
        answer = None if scope["path"].rstrip("/") == "/health" else self._refusal(Headers(scope=scope))
        await (answer or self._app)(scope, receive, send)

    def _refusal(self, headers: Headers) -> ASGIApp | None:
        status = refusal(headers, self._token)
        if status == 401:
            error = RequestError("the token of this server is needed, as API key", status=401, code="invalid_api_key")
            return error_response(error, {"WWW-Authenticate": "Bearer", "Connection": "close"})
        if status or (self._token is None and not names_loopback(headers)):
            error = RequestError("web pages may not ask", status=403)
            return error_response(error, {"Connection": "close"})
        return None


class _Server(uvicorn.Server):
    """A server that leaves signals alone, so that the model is closed after it."""

    def stop(self) -> None:
        """Take no more requests, and end."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured."""
        yield
