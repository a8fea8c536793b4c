"""The server: a pool of environments behind openenv-core's HTTP and WebSocket routes.

API: `await serve(config, options, on_ready)` runs until it is told to stop (SIGINT, SIGTERM).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.openenv.access import TOKEN_VARIABLE, Guarded, is_loopback
from webrl.rollouts.collect import open_pool
from webrl.types import Task

logger = logging.getLogger(__name__)

_PING_INTERVAL_S, _PING_TIMEOUT_S = 30.0, 120.0
"""A client whose machine has gone is noticed after these; generous, as a client may be busy training."""
_MAX_MESSAGE_BYTES = 1 << 24
_STOP_TIMEOUT_S = 5


@dataclass(frozen=True)
class ServerOptions:
    """What `webrl serve-env` takes beside the config."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """Port; 0 takes a free one."""
    idle_timeout_s: float = 900.0
    """A session that is silent for longer is closed, and its environment is free again."""
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

            hub = Hub(pool, config.rollout, options.default_site, random.Random(config.seed))
            check_default(hub)
            async with pool.env() as env:
                await env.reset(Task(task_id="default", site=options.default_site))
            await _run(hub, options, listener, on_ready)
            await asyncio.gather(*hub.closing, return_exceptions=True)


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


async def _run(
    hub: object, options: ServerOptions, listener: socket.socket, on_ready: Callable[[str, int], None]
) -> None:
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.types import ConcurrencyConfig

    from webrl.openenv.environment import Hub, WebEnvironment
    from webrl.openenv.models import BrowserGymAction, BrowserGymObservation

    assert isinstance(hub, Hub)
    app = create_app(
        functools.partial(WebEnvironment, hub),
        BrowserGymAction,
        BrowserGymObservation,
        env_name="browsergym_env",
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=hub.pool.size, session_timeout=options.idle_timeout_s),
    )
    settings = uvicorn.Config(
        Guarded(app, options.token),
        log_level="warning",
        lifespan="on",
        ws_per_message_deflate=False,  # costs more than the wire saves
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_ping_interval=_PING_INTERVAL_S,
        ws_ping_timeout=_PING_TIMEOUT_S,
        timeout_graceful_shutdown=_STOP_TIMEOUT_S,
    )
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    await _Server(settings, lambda: on_ready(url, hub.pool.size)).serve(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells when it has started."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Part of uvicorn."""
        await super().startup(sockets=sockets)
        if self.started:
            self._on_start()


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
