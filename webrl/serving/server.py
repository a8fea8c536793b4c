"""The server: a model behind uvicorn, and who may talk to it.

API: `await serve(checkpoint, options, on_ready)` runs until it is told to stop (SIGINT, SIGTERM).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from starlette.responses import Response

from webrl.llm import open_model
from webrl.llm.interface import LanguageModel
from webrl.net import MODEL_TOKEN, Access, address_of, check_address, listen, run_app, stop_on_signals
from webrl.serving.app import Service, error_response, make_app
from webrl.serving.checkpoint import Checkpoint
from webrl.serving.requests import RequestError

_MAX_CONNECTIONS = 512
"""Further ones are hung up on."""


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
    check_address(options.host, options.port, options.token, MODEL_TOKEN)


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
            on_ready(address_of(listener))
            await run_app(Access(app, options.token, refuse), listener, _MAX_CONNECTIONS, stop_on_signals())


def _open(checkpoint: Checkpoint) -> AbstractAsyncContextManager[LanguageModel]:
    config = checkpoint.config
    sees = config.rollout.image_size is not None
    return open_model(checkpoint.name, config.rollout.engine, config.models, sees=sees)


def refuse(status: int) -> Response:
    """Returns the answer to a request without the token (401), or of a web page (403)."""
    if status == 401:
        said = "the token of this server is needed, as API key"
        return error_response(RequestError(said, status=401, code="invalid_api_key"))
    return error_response(RequestError("web pages may not ask", status=status))
