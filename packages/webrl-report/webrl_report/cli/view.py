"""`webrl view`."""

from __future__ import annotations

import argparse
from pathlib import Path

from webrl_serve.net import is_loopback

_PORT = 8765


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="run folders, or other folders with trajectories.jsonl (default: the newest below runs/)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    parser.add_argument("--port", type=int, default=_PORT, help=f"port; 0: a free one (default: {_PORT})")
    parser.epilog = (
        "The address that it prints contains a token; anyone with it can see the runs and set labels by hand. These\n"
        "go to RUN/hand_labels.jsonl, for `webrl train-orm --data`; nothing else in a run is written but its lock.\n"
        f"From another machine: ssh -L {_PORT}:127.0.0.1:{_PORT} HOST."
    )


def main(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from webrl.runs.folder import require_newest
    from webrl_report.view.app import serve

    runs = args.runs or [require_newest("view")]
    if not is_loopback(args.host):
        print(f"webrl: --host {args.host}: what is shown, and the token, cross the network unencrypted", flush=True)
    serve(runs, args.host, args.port, lambda url: print(f"open {url}\nCtrl-C ends it", flush=True))
    return 0
