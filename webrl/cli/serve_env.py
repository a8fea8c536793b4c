"""`webrl serve-env`."""

from __future__ import annotations

import argparse
import asyncio
import os

import yaml

from webrl.cli.options import add_config_arguments, describe_sections, resolve_config
from webrl.openenv.access import TOKEN_VARIABLE
from webrl.openenv.server import ServerOptions, check_options, serve

_DEFAULTS = ServerOptions()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the subcommand."""
    add_config_arguments(parser, phased=False)
    parser.add_argument("--host", default=_DEFAULTS.host, help=f"address to listen on (default: {_DEFAULTS.host})")
    parser.add_argument("--port", type=int, default=_DEFAULTS.port, help=f"0: a free one (default: {_DEFAULTS.port})")
    parser.add_argument(
        "--idle-timeout",
        type=float,
        default=_DEFAULTS.idle_timeout_s,
        metavar="S",
        help=f"sessions that are silent for longer give their environment back (default: {_DEFAULTS.idle_timeout_s:g})",
    )
    parser.add_argument(
        "--task",
        default=_DEFAULTS.default_site,
        metavar="NAME",
        help=f"task of a reset that names none (default: {_DEFAULTS.default_site})",
    )
    parser.epilog = (
        "sessions: rollout.num_workers x rollout.envs_per_worker; pages may reach rollout.allowed_hosts only.\n"
        f"{TOKEN_VARIABLE} in the environment: token that clients must show; needed where others can connect.\n\n"
        + describe_sections(("rollout",))
    )


def main(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    config = resolve_config(args, prefer_newest=False)
    options = ServerOptions(
        host=args.host,
        port=args.port,
        idle_timeout_s=args.idle_timeout,
        default_site=args.task,
        token=os.environ.get(TOKEN_VARIABLE) or None,
    )
    check_options(config, options)
    if args.dry_run:
        print(yaml.safe_dump({"rollout": config.rollout.model_dump(mode="json")}, sort_keys=False), end="")
        return 0
    asyncio.run(serve(config, options, _announce))
    return 0


def _announce(url: str, num_sessions: int) -> None:
    print(f"serving {num_sessions} sessions on {url}", flush=True)
