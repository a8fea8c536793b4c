"""`webrl serve-env`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re

import yaml

from webrl.cli.options import add_config_arguments, resolve_config
from webrl.config.extras import warn_of_openenv_conflict
from webrl.errors import UsageError
from webrl.rollouts.sites import site_name
from webrl.rollouts.suite import find_suite
from webrl_serve.net import ENV_TOKEN
from webrl_serve.openenv.messages import MAX_SIDE, MIN_SIDE
from webrl_serve.openenv.server import check_options, serve
from webrl_serve.openenv.session import ServerOptions

logger = logging.getLogger(__name__)

_DEFAULTS = ServerOptions()
_PREFIX, _READ = "BROWSERGYM_", ("PORT", "VIEWPORT_WIDTH", "VIEWPORT_HEIGHT", "TASK_NAME", "BENCHMARK", "HEADLESS")
"""Variables that OpenEnv's own server reads."""
_VIEWPORT = (1280, 720)
"""OpenEnv's own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config_arguments(parser, prefer_newest=False, sections=("rollout",))
    port, width, height = (os.environ.get(_PREFIX + name) for name in _READ[:3])
    parser.add_argument("--host", default=_DEFAULTS.host, help=f"address to listen on (default: {_DEFAULTS.host})")
    parser.add_argument(
        "--port", type=int, default=port or _DEFAULTS.port, help=f"port; 0: a free one (default: {_DEFAULTS.port})"
    )
    parser.add_argument(
        "--sessions",
        dest="num_sessions",
        type=int,
        default=os.environ.get("MAX_CONCURRENT_ENVS") or None,
        metavar="N",
        help="episodes at once; further clients wait for a place (default: rollout.num_workers x envs_per_worker)",
    )
    parser.add_argument(
        "--screenshots",
        choices=("list", "png", "none"),
        default=_DEFAULTS.screenshots,
        help="screenshot format for clients that do not choose one: nested lists as in OpenEnv's own server, base64 PNG"
        f" (a hundred times smaller), or none (default: {_DEFAULTS.screenshots})",
    )
    parser.add_argument(
        "--viewport",
        type=_viewport,
        default=f"{width or _VIEWPORT[0]}x{height or _VIEWPORT[1]}" if width or height else None,
        metavar="WxH",
        help="page size for clients that do not choose one; `task`: the task's own (default: 1280x720)",
    )
    parser.add_argument(
        "--idle-timeout",
        dest="idle_timeout_s",
        type=float,
        default=_DEFAULTS.idle_timeout_s,
        metavar="S",
        help=f"sessions idle for longer lose their place to waiting clients (default: {_DEFAULTS.idle_timeout_s:g})",
    )
    parser.add_argument(
        "--task",
        dest="default_site",
        metavar="NAME",
        help=f"task of a reset that names none (default: {_DEFAULTS.default_site}, or the suite's own)",
    )
    parser.epilog = (
        "pages may reach rollout.allowed_hosts only.\n"
        "BROWSERGYM_TASK_NAME, _VIEWPORT_WIDTH, _VIEWPORT_HEIGHT, _PORT and MAX_CONCURRENT_ENVS in the environment:\n"
        "as for OpenEnv's own BrowserGym server, unless an option above is given.\n"
        f"{ENV_TOKEN} in the environment: token that clients must send; needed if others can connect."
    )


def main(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = resolve_config(args, prefer_newest=False)
    task, benchmark, headless = (os.environ.get(_PREFIX + name) for name in _READ[3:])
    if unread := sorted(n for n in os.environ if n.startswith(_PREFIX) and n.removeprefix(_PREFIX) not in _READ):
        logger.warning("not read: %s (read: %s with %s)", ", ".join(unread), _PREFIX, ", ".join(_READ))
    if headless and headless.lower() != "true":
        raise UsageError(f"BROWSERGYM_HEADLESS={headless}: browsers are always headless here; unset it")
    try:
        reason = find_suite(benchmark or "miniwob").not_served
    except UsageError as error:
        reason = str(error)
    if reason:
        raise UsageError(f"BROWSERGYM_BENCHMARK={benchmark} is not served: {reason}")
    named = site_name(task, benchmark or "miniwob") if task else find_suite(config.tasks.suite).first_task
    viewport = args.viewport if args.viewport is not None else config.rollout.viewport or _VIEWPORT
    told = ServerOptions(
        host=args.host,
        port=args.port,
        idle_timeout_s=args.idle_timeout_s,
        default_site=args.default_site or named,
        token=os.environ.get(ENV_TOKEN) or None,
        num_sessions=args.num_sessions,
        screenshots=args.screenshots,
        viewport=viewport or None,
    )
    check_options(config, told)
    warn_of_openenv_conflict()
    if args.dry_run:
        print(yaml.safe_dump({"rollout": config.rollout.model_dump(mode="json")}, sort_keys=False), end="")
        return 0
    asyncio.run(serve(config, told, lambda url, num: print(f"serving {num} sessions on {url}", flush=True)))
    return 0


def _viewport(text: str) -> tuple[int, ...]:
    """Width and height of `WxH`; () for `task`."""
    if text == "task":
        return ()
    found = re.fullmatch(r"([1-9][0-9]{1,3})x([1-9][0-9]{1,3})", text)
    if not found or not all(MIN_SIDE <= int(number) <= MAX_SIDE for number in found.groups()):
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected WxH in pixels from {MIN_SIDE} to {MAX_SIDE}, such as 1280x720, or task"
        )
    return int(found[1]), int(found[2])
