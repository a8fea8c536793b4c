"""What webrl runs of a WebArena-Infinity app, each in a process of its own: its server, and a task's verifier.

`python -m webrl.suites.web.infinity_app serve FOLDER PORT`: its `server.py`, on loopback alone (by itself it listens on
all of a machine's addresses). `… verify FOLDER URL FILE`: prints `pass` or `fail: why`, as `rollout.web.verify` asks.
"""

from __future__ import annotations

import os
import runpy
import socketserver
import sys
from pathlib import Path


def serve(folder: Path, port: str) -> None:
    """Run the app's server; it serves the files of the folder that it is started in."""

    def bind(server: socketserver.TCPServer) -> None:
        server.server_address = ("127.0.0.1", server.server_address[1])
        to_server_address(server)

    to_server_address = socketserver.TCPServer.server_bind
    socketserver.TCPServer.server_bind = bind  # type: ignore[method-assign, assignment]
    os.chdir(folder)
    sys.argv = ["server.py", "--port", port]
    runpy.run_path("server.py", run_name="__main__")


def verify(folder: Path, url: str, name: str) -> None:
    """Print what the verifier `name` says of the server at `url`.

    An exception of its own is a failure, as in the app's harness; a server that does not answer is an exception here.
    """
    import requests

    file = (folder / name).resolve()
    if not file.is_relative_to(folder.resolve()):
        raise SystemExit(f"{name!r} is not in {folder}")
    check = runpy.run_path(str(file))["verify"]
    try:
        passed, why = check(url)
    except requests.RequestException:
        raise
    except Exception as error:
        passed, why = False, f"{type(error).__name__}: {error}"
    print("pass" if passed else f"fail: {' '.join(str(why).split())}")  # noqa: T201 (what the check reads)


if __name__ == "__main__":
    what, app, *rest = sys.argv[1:]
    if what == "serve":
        serve(Path(app), *rest)
    else:
        verify(Path(app), *rest)
