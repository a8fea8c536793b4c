"""The server: a pool of environments behind OpenEnv's WebSocket protocol, its older HTTP one, and documents about it.

Of openenv-core only the message types are used: its own application also takes requests with bodies of any size, and
over HTTP plays every step on a page of its own.

API: `await serve(config, options, on_ready)` runs until it is told to stop (SIGINT, SIGTERM); `await host(hub,
listener, on_ready, stop)` is its second half, on a pool that is there.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import signal
import socket
from collections.abc import Callable, Mapping

import orjson
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response

from webrl.config import RolloutConfig, RunConfig
from webrl.errors import DataError, UsageError
from webrl.openenv.access import (
    MAX_REQUEST_BYTES,
    REQUEST_TIMEOUT_S,
    TOKEN_VARIABLE,
    address_of,
    check_host,
    check_port,
    listen,
    refusal,
)
from webrl.openenv.door import Doors
from webrl.openenv.hub import Hub, ServerOptions
from webrl.openenv.plain_http import HttpRequest, HttpResponse
from webrl.openenv.tools import answer_body
from webrl.rollouts.collect import open_pool
from webrl.rollouts.suite import WEB, World

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Open connections beside one for each environment; further ones are closed at once."""
MAX_SESSIONS = 4096
"""Each holds a page, tens of megabytes."""
_CLOSE_TIMEOUT_S = 2.0


async def serve(
    config: RunConfig, options: ServerOptions, on_ready: Callable[[str, int], None], world: World = WEB
) -> None:
    """Serve sessions; pages are opened as they are needed.

    Args:
        world: has the config's suite.
        on_ready: called with the server's URL and number of sessions once a first page has been opened.

    Raises:
        UsageError: no token although others can connect, an address that cannot be used, no such default task, or
            a config that has no browsers of its own.
        BrowserMissing, BrowserError: the first page does not open.
    """
    check_options(config, options)
    listener = listen(options.host, options.port)
    with listener:
        rollout = _with_room(_with_rewards(config.rollout), options.num_sessions)
        async with open_pool(rollout, world=world) as pool:
            # pydantic's models take a while to make: after what can be refused at once.
            from webrl.openenv.options import check_default

            benchmarks = tuple(dict.fromkeys(("miniwob", *config.tasks.suites)))
            size = options.num_sessions or pool.size
            hub = Hub(pool, rollout, size, options, benchmarks, random.Random(config.seed))
            first = check_default(hub)
            async with pool.env() as env:
                try:
                    await env.reset(first)
                except DataError as error:
                    raise UsageError(str(error)) from None
                if config.tasks.suite != "miniwob":  # whose page is kept warm
                    await env.close()
            stop = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, stop.set)
            await host(hub, listener, on_ready, stop)


def check_options(config: RunConfig, options: ServerOptions) -> None:
    """Raises UsageError; see `serve`."""
    if config.rollout.env != "browser":
        raise UsageError(f"rollout.env={config.rollout.env}: serve-env needs browsers of its own, rollout.env=browser")
    if "web" in config.tasks.suites:
        raise UsageError("tasks.suite=web: serve-env holds no site's log-in, checks and limits; use `webrl run`")
    if config.rollout.random_ids:
        raise UsageError(
            "rollout.random_ids=true is for training, and serve-env is not told which episodes are; leave it out"
        )
    check_port(options.port)
    if not 0 < options.idle_timeout_s < math.inf:
        raise UsageError(f"--idle-timeout {options.idle_timeout_s}: expected a number of seconds above 0")
    if options.num_sessions is not None and not 1 <= options.num_sessions <= MAX_SESSIONS:
        raise UsageError(f"--sessions {options.num_sessions}: expected 1 to {MAX_SESSIONS}")
    check_host(options.host, options.token, TOKEN_VARIABLE)


def _with_rewards(config: RolloutConfig) -> RolloutConfig:
    """The settings with a reward in every step: the protocol knows no other."""
    return config.model_copy(update={"arena": config.arena.model_copy(update={"score_steps": True})})


def _with_room(config: RolloutConfig, num_sessions: int | None) -> RolloutConfig:
    """The settings with as many environments as sessions, spread over the workers."""
    if num_sessions is None:
        return config
    return config.model_copy(update={"envs_per_worker": -(-num_sessions // config.num_workers)})


async def host(hub: Hub, listener: socket.socket, on_ready: Callable[[str, int], None], stop: asyncio.Event) -> None:
    """Serve a hub's sessions until `stop` is set.

    Args:
        on_ready: called with the server's URL and number of sessions once clients can connect.
    """
    from webrl.openenv.connection import converse

    handshakes = logging.getLogger("webrl.openenv.handshakes")
    handshakes.setLevel(logging.CRITICAL)  # what strangers send is no error of ours
    routes = _Routes(hub)
    doors = Doors(MAX_CONNECTIONS + hub.size, routes.refuse, routes.answer)
    server = serve_websockets(
        lambda connection: converse(connection, hub),
        sock=listener,
        backlog=1024,
        process_request=routes.admit,
        create_connection=doors.connection_class(),
        open_timeout=REQUEST_TIMEOUT_S,
        # Whether a client's machine has gone is asked of its kernel: the client itself may be busy training.
        ping_interval=None,
        close_timeout=_CLOSE_TIMEOUT_S,
        max_size=MAX_REQUEST_BYTES,
        max_queue=4,
        compression=None,  # costs more than the wire saves
        server_header=None,
        logger=handshakes,
    )
    async with server:
        on_ready(address_of(listener), hub.size)
        await stop.wait()
        doors.close()
        await routes.sessions.close()


class _Routes:
    """What is asked over HTTP: documents, episodes, and whether a WebSocket may be opened."""

    def __init__(self, hub: Hub) -> None:
        from webrl.openenv.documents import ROUTES, documents
        from webrl.openenv.http_sessions import HttpSessions

        self._token = hub.options.token
        self.sessions = HttpSessions(hub)
        self._documents = documents()
        self._methods = {route.path: route.method for route in ROUTES}

    def refuse(self, path: str, headers: Mapping[str, str]) -> HttpResponse | None:
        """The refusal of a request that is not for a WebSocket, or None."""
        status = None if path.rstrip("/") == "/health" else refusal(headers, self._token)
        if status is None:
            return None
        asked = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        return _plain(status, _REFUSALS[status], asked | {"Connection": "close"})

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Answer a request that is not refused."""
        path = request.path
        wanted = self._methods.get(path)
        if wanted is None and (known := path.rstrip("/")) in self._methods:
            return HttpResponse(307, b"", "text/plain", headers={"Location": known})
        if wanted is None:
            return _plain(
                404, "sessions are at /ws, episodes over HTTP at /reset, /step and /state; GET /docs lists all"
            )
        if request.method != wanted:
            return _plain(405, f"{path} takes {wanted} only", {"Allow": wanted})
        if path == "/mcp":
            return HttpResponse(200, answer_body(request.body))
        return self._documents.get(path) or await self.sessions.answer(request)

    def admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """The refusal of a WebSocket, or None."""
        status = refusal(request.headers, self._token)
        if status is None:
            return None
        response = connection.respond(status, f"{_REFUSALS[status]}\n")
        response.headers["WWW-Authenticate"] = "Bearer"
        return response


_REFUSALS = {401: "a token is needed", 403: "web pages may not connect"}


def _plain(status: int, text: str, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(status, orjson.dumps({"detail": text}), headers=headers or {})
