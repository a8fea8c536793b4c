"""`webrl serve-env`."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from dataclasses import fields
from typing import Any

import yaml

from webrl.cli.options import add_config_arguments, resolve_config
from webrl.net import ENV_TOKEN
from webrl.rollouts.suite import find_suite
from webrl_serve.openenv.hub import MAX_SIDE, MIN_SIDE, ServerOptions
from webrl_serve.openenv.server import check_options, read_variables, serve

_DEFAULTS = ServerOptions()
_VIEWPORT = (1280, 720)
"""OpenEnv's own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_config_arguments(parser, prefer_newest=False, sections=("rollout",))
    parser.add_argument("--host", default=_DEFAULTS.host, help=f"address to listen on (default: {_DEFAULTS.host})")
    parser.add_argument("--port", type=int, help=f"0: a free one (default: {_DEFAULTS.port})")
    parser.add_argument(
        "--sessions",
        dest="num_sessions",
        type=int,
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
        metavar="WxH",
        help="page size for clients that do not choose one; `task`: the task's own (default: 1280x720)",
    )
    parser.add_argument(
        "--idle-timeout",
        dest="idle_timeout_s",
        type=float,
        default=_DEFAULTS.idle_timeout_s,
        metavar="S",
        help="sessions that are silent for longer lose their place to clients that wait for one"
        f" (default: {_DEFAULTS.idle_timeout_s:g})",
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
        "as for OpenEnv's own BrowserGym server; the options above come before them.\n"
        f"{ENV_TOKEN} in the environment: token that clients must show; needed where others can connect."
    )


def main(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = resolve_config(args, prefer_newest=False)
    options: dict[str, Any] = {
        "default_site": find_suite(config.tasks.suites[0]).first_task,
        "viewport": config.rollout.viewport or _VIEWPORT,
        "token": os.environ.get(ENV_TOKEN) or None,
        **read_variables(os.environ),
    }
    given = {field.name: getattr(args, field.name, None) for field in fields(ServerOptions)}
    options |= {name: value for name, value in given.items() if value is not None}
    told = ServerOptions(**options | {"viewport": options["viewport"] or None})
    check_options(config, told)
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
