"""Serves a pool of environments over OpenEnv's WebSocket protocol and its older HTTP one.

API: `await serve(config, options, on_ready)` runs until SIGINT or SIGTERM; `await host(hub, listener, on_ready, stop)`
is its second half, on a pool that is open.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
from collections.abc import Callable

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.net import ENV_TOKEN, address_of, check_address, listen, run_app, stop_on_signals
from webrl.rollouts.collect import open_pool
from webrl.rollouts.suite import find_suite, suite_of
from webrl_serve.openenv.app import HttpSessions, make_app
from webrl_serve.openenv.messages import ResetOptions
from webrl_serve.openenv.session import Hub, ServerOptions, task_of

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Open connections in addition to one for each environment; further ones are closed at once."""
MAX_SESSIONS = 4096
"""Each holds a page, tens of megabytes."""


async def serve(config: RunConfig, options: ServerOptions, on_ready: Callable[[str, int], None]) -> None:
    """Serve sessions; pages are opened as they are needed.

    Args:
        on_ready: called with the server's URL and number of sessions once a first page has been opened.

    Raises:
        UsageError: no token although others can connect, an address that cannot be used, no such default task, or
            a config that has no browsers of its own.
        BrowserMissing, BrowserError: the first page does not open.
    """
    check_options(config, options)
    listener = listen(options.host, options.port)
    with listener:
        rollout = config.rollout
        if options.num_sessions is not None:
            per_worker = -(-options.num_sessions // rollout.num_workers)
            rollout = rollout.model_copy(update={"envs_per_worker": per_worker})
        for name in config.tasks.suites:
            rollout = find_suite(name).with_step_rewards(rollout)
        async with open_pool(rollout) as pool:
            benchmarks = tuple(dict.fromkeys(("miniwob", *config.tasks.suites)))
            size = options.num_sessions or pool.size
            hub = Hub(pool, rollout, size, options, benchmarks, random.Random(config.seed))
            try:
                first = task_of(options.default_site, 0, ResetOptions(), benchmarks)
                async with pool.env() as env:
                    await env.reset(first)
                    if not suite_of(first).is_stateless:
                        await env.close()
            except DataError as error:
                raise UsageError(str(error)) from None
            await host(hub, listener, on_ready, stop_on_signals())


def check_options(config: RunConfig, options: ServerOptions) -> None:
    """Raises UsageError; see `serve`."""
    if config.rollout.env != "browser":
        raise UsageError(f"rollout.env={config.rollout.env}: serve-env needs browsers of its own, rollout.env=browser")
    for suite in map(find_suite, config.tasks.suites):
        if suite.not_served:
            raise UsageError(f"tasks.suite={suite.name}: {suite.not_served}")
    if config.rollout.random_ids:
        raise UsageError(
            "rollout.random_ids=true is for training, and serve-env is not told which episodes are; leave it out"
        )
    check_address(options.host, options.port, options.token, ENV_TOKEN)
    if not 0 < options.idle_timeout_s < math.inf:
        raise UsageError(f"--idle-timeout {options.idle_timeout_s}: expected a number of seconds above 0")
    if options.num_sessions is not None and not 1 <= options.num_sessions <= MAX_SESSIONS:
        raise UsageError(f"--sessions {options.num_sessions}: expected 1 to {MAX_SESSIONS}")


async def host(hub: Hub, listener: socket.socket, on_ready: Callable[[str, int], None], stop: asyncio.Event) -> None:
    """Serve a hub's sessions until `stop` is set.

    Args:
        on_ready: called with the server's URL and number of sessions once clients can connect.
    """
    sessions = HttpSessions(hub)
    on_ready(address_of(listener), hub.size)
    try:
        await run_app(make_app(hub, sessions), listener, MAX_CONNECTIONS + hub.size, stop, websockets=True)
    finally:
        await sessions.close()
