"""`webrl arena`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from webrl.errors import UsageError

_ACTIONS = ("up", "status", "open", "reset", "down")
_PORT = 7780
_WORKERS = min(os.cpu_count() or 1, 8)
_MAX_WORKERS = 256
_OF_ACTION = {"port": "up", "workers": "up", "user": "open"}
"""The action that each option applies to."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("action", choices=_ACTIONS, metavar="|".join(_ACTIONS))
    parser.add_argument("--folder", type=Path, help="folder of its files (default: ~/.cache/webrl/arena)")
    parser.add_argument("--port", type=int, help=f"port for `up`; 0: a free one (default: {_PORT})")
    parser.add_argument("--workers", type=int, help="worker processes for `up` (default: cores, up to 8)")
    parser.add_argument("--user", help="user that `open` logs in: staff, customer:E-MAIL (default: no one)")
    parser.epilog = (
        "up      start the sites in the background, on this machine only\n"
        "status  show the address and the number of sessions\n"
        "open    make a session and print the address that opens it in your browser\n"
        "reset   drop all sessions\n"
        "down    stop the sites and drop all sessions"
    )


def main(args: argparse.Namespace) -> int:
    """Carry out the action; returns the exit code, 1 if `status` finds no arena running."""
    from webrl_arena.world import running
    from webrl_arena.world.sites import addresses
    from webrl_serve.net import check_port

    for name, action in _OF_ACTION.items():
        if getattr(args, name) is not None and args.action != action:
            raise UsageError(f"--{name} belongs to `webrl arena {action}`; leave it out of `webrl arena {args.action}`")
    folder = (args.folder or running.default_folder()).absolute()
    match args.action:
        case "up":
            port = _PORT if args.port is None else args.port
            workers = _WORKERS if args.workers is None else args.workers
            if not 1 <= workers <= _MAX_WORKERS:
                raise UsageError(f"--workers {workers}: from 1 to {_MAX_WORKERS} processes")
            check_port(port)
            state = running.start(folder, port, workers)
            for name, address in addresses(state.url).items():
                print(f"{name.replace('_', ' '):<12}{address}/")
            print("Every visitor needs a session. One for your own browser: webrl arena open --user staff")
            return 0
        case "status":
            found = running.find(folder)
            if found is None:
                print("down (webrl arena up)")
                return 1
            print(f"up: {found.url}/, process {found.pid}, {running.num_sessions(folder)} sessions")
            return 0
        case "down":
            was_up = running.stop(folder)
            print("the arena is down, its sessions are dropped" if was_up else "no arena was up")
            return 0
    from webrl_arena.world.client import Arena

    arena = Arena.running(folder)
    if args.action == "reset":
        print(f"{arena.reset()} sessions dropped")
    else:
        print(arena.open(args.user).enter_url)
    return 0
