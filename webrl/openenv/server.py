"""The server: a pool of environments behind OpenEnv's WebSocket protocol, and three documents over HTTP.

Of openenv-core only the message types are used: its own application also takes requests with bodies of any size, and
has routes that make sessions without a connection.

API: `await serve(config, options, on_ready)` runs until it is told to stop (SIGINT, SIGTERM).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response

import webrl
from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.openenv.access import TOKEN_VARIABLE, is_loopback, refusal
from webrl.rollouts.collect import open_pool
from webrl.types import Task

if TYPE_CHECKING:
    from webrl.openenv.environment import Hub

logger = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 20
"""A client that sends more at once is hung up on."""
HANDSHAKE_TIMEOUT_S = 10.0
"""A connection that has not sent its whole request by then is closed."""
MAX_CONNECTIONS = 512
"""Open connections beside one for each environment; further ones are closed at once."""
_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class ServerOptions:
    """What `webrl serve-env` takes beside the config."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port; 0 takes a free one."""
    idle_timeout_s: float = 1800.0
    """A session that is silent for longer gives its environment back; its next reset gets one again."""
    default_site: str = "miniwob.click-test"
    """Task of a reset that names none."""
    token: str | None = None
    """What clients must show; None lets everybody in, which is possible on loopback only."""


async def serve(config: RunConfig, options: ServerOptions, on_ready: Callable[[str, int], None]) -> None:
    """Serve `num_workers * envs_per_worker` sessions.

    Args:
        on_ready: called with the server's URL and number of sessions once a first page has been opened.

    Raises:
        UsageError: no token although others can connect, an address that cannot be used, no such default task, or
            a config that has no browsers of its own.
        BrowserMissing, BrowserError: the first page does not open.
    """
    check_options(config, options)
    listener = _listen(options.host, options.port)
    with listener:
        async with open_pool(config.rollout) as pool:
            # openenv-core takes seconds to import: after what can be refused at once.
            from webrl.openenv.environment import Hub, check_default

            seeds = random.Random(config.seed)
            hub = Hub(pool, config.rollout, options.default_site, options.idle_timeout_s, seeds)
            check_default(hub)
            async with pool.env() as env:
                await env.reset(Task(task_id="default", site=options.default_site))
            await _run(hub, options, listener, on_ready)


def check_options(config: RunConfig, options: ServerOptions) -> None:
    """Raises UsageError; see `serve`."""
    if config.rollout.env != "browser":
        raise UsageError(f"rollout.env={config.rollout.env}: serve-env needs browsers of its own, rollout.env=browser")
    if not 0 <= options.port <= 65535:
        raise UsageError(f"--port {options.port}: ports go from 1 to 65535, 0 takes a free one")
    if not 0 < options.idle_timeout_s < math.inf:
        raise UsageError(f"--idle-timeout {options.idle_timeout_s}: expected a number of seconds above 0")
    if options.token is None and not is_loopback(options.host):
        raise UsageError(
            f"--host {options.host} lets other machines connect: set {TOKEN_VARIABLE} to a secret that clients show,"
            " or use --host 127.0.0.1"
        )


async def _run(hub: Hub, options: ServerOptions, listener: socket.socket, on_ready: Callable[[str, int], None]) -> None:
    from webrl.openenv.connection import converse

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    handshakes = logging.getLogger("webrl.openenv.handshakes")
    handshakes.setLevel(logging.CRITICAL)  # what strangers send is no error of ours
    server = serve_websockets(
        lambda connection: converse(connection, hub),
        sock=listener,
        backlog=1024,
        process_request=_routes(options.token),
        create_connection=_bounded(MAX_CONNECTIONS + hub.pool.size),
        open_timeout=HANDSHAKE_TIMEOUT_S,
        # Whether a client's machine has gone is asked of its kernel: the client itself may be busy training.
        ping_interval=None,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=MAX_MESSAGE_BYTES,
        max_queue=4,
        compression=None,  # costs more than the wire saves
        server_header=None,
        logger=handshakes,
    )
    async with server:
        host, port = listener.getsockname()[:2]
        on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}", hub.pool.size)
        await stop.wait()


def _bounded(capacity: int) -> type[ServerConnection]:
    """Connections that are hung up on at once while too many others are open."""

    class Bounded(ServerConnection):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            _keep_alive(transport.get_extra_info("socket"))
            super().connection_made(transport)
            if len(self.server.handler_tasks) > capacity:
                transport.abort()

    return Bounded


def _keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice after two or three minutes that the other machine has gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # macOS has other names, and defaults
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _routes(token: str | None) -> Callable[[ServerConnection, Request], Response | None]:
    """What is not a session: three documents; everything else is refused. No request may have a body."""
    from webrl.openenv.models import BrowserGymAction, BrowserGymObservation, BrowserGymState
    from webrl.openenv.protocol import EnvironmentMetadata, HealthResponse, SchemaResponse

    metadata = EnvironmentMetadata(
        name="browsergym_env",
        description="MiniWoB++ and other web pages in Chromium, as BrowserGym shows and rewards them",
        version=webrl.__version__,
    )
    schemas = SchemaResponse(
        action=BrowserGymAction.model_json_schema(),
        observation=BrowserGymObservation.model_json_schema(),
        state=BrowserGymState.model_json_schema(),
    )
    documents = {"/health": HealthResponse(), "/metadata": metadata, "/schema": schemas}

    def route(connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.partition("?")[0]
        if request.method != "GET":
            return connection.respond(405, "only GET is served\n")
        if path != "/health" and (status := refusal(request.headers, token)) is not None:
            text = "a token is needed\n" if status == 401 else "web pages may not connect\n"
            response = connection.respond(status, text)
            response.headers["WWW-Authenticate"] = "Bearer"
            return response
        if path in documents:
            response = connection.respond(200, documents[path].model_dump_json())
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "application/json"
            return response
        return None if path == "/ws" else connection.respond(404, "sessions are at /ws\n")

    return route


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --host or --port"
        ) from None
    return listener
