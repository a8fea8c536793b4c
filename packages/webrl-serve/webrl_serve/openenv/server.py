"""Serves a pool of environments over OpenEnv's WebSocket protocol and its older HTTP one.

API: `await serve(config, options, on_ready)` runs until SIGINT or SIGTERM; `await host(hub, listener, on_ready, stop)`
is its second half, on a pool that is open. `read_variables(environ)` reads the environment
variables of OpenEnv's own BrowserGym server (its Dockerfile sets them); options of the command line come before them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import socket
from collections.abc import Callable, Mapping
from typing import Any

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.net import ENV_TOKEN, address_of, check_address, listen, run_app, stop_on_signals
from webrl.rollouts.collect import open_pool
from webrl.rollouts.sites import site_name
from webrl.rollouts.suite import find_suite, suite_of
from webrl_serve.openenv.hub import MAX_SIDE, MIN_SIDE, Hub, ServerOptions

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 512
"""Open connections in addition to one for each environment; further ones are closed at once."""
MAX_SESSIONS = 4096
"""Each holds a page, tens of megabytes."""
_PREFIX = "BROWSERGYM_"
_READ = ("BENCHMARK", "TASK_NAME", "HEADLESS", "VIEWPORT_WIDTH", "VIEWPORT_HEIGHT", "PORT")


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
            # pydantic's models take a while to build: after what can be refused at once.
            from webrl_serve.openenv.messages import ResetOptions
            from webrl_serve.openenv.session import task_of

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
    from webrl_serve.openenv.app import HttpSessions, make_app

    sessions = HttpSessions(hub)
    on_ready(address_of(listener), hub.size)
    try:
        await run_app(make_app(hub, sessions), listener, MAX_CONNECTIONS + hub.size, stop, websockets=True)
    finally:
        await sessions.close()


def read_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ServerOptions that `BROWSERGYM_*` and `MAX_CONCURRENT_ENVS` set; warns of other variables.

    Raises:
        UsageError: a value that is not a number, a benchmark that is not served, or a browser with a window.
    """
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in _READ:
            logger.warning("%s is not read (those that are: %s)", name, ", ".join(_PREFIX + known for known in _READ))
    headless = environ.get(_PREFIX + "HEADLESS") or "true"
    if headless.lower() != "true":
        raise UsageError(f"{_PREFIX}HEADLESS={headless}: browsers are always headless here; unset it")
    sides = {name: _number(environ, f"{_PREFIX}VIEWPORT_{name}") for name in ("WIDTH", "HEIGHT")}
    for name, side in sides.items():
        if side is not None and not MIN_SIDE <= side <= MAX_SIDE:
            raise UsageError(f"{_PREFIX}VIEWPORT_{name}={side}: expected {MIN_SIDE} to {MAX_SIDE} pixels")
    benchmark, task = environ.get(_PREFIX + "BENCHMARK") or "miniwob", environ.get(_PREFIX + "TASK_NAME")
    try:
        reason = find_suite(benchmark).not_served
    except UsageError as error:
        reason = str(error)
    if reason:
        raise UsageError(f"{_PREFIX}BENCHMARK={benchmark} is not served: {reason}")
    said = {
        "default_site": site_name(task, benchmark) if task else None,
        "viewport": (sides["WIDTH"] or 1280, sides["HEIGHT"] or 720) if any(sides.values()) else None,
        "port": _number(environ, _PREFIX + "PORT"),
        "num_sessions": _number(environ, "MAX_CONCURRENT_ENVS"),
    }
    return {name: value for name, value in said.items() if value is not None}


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{name}={text}: expected a number above 0")
    return int(text)
