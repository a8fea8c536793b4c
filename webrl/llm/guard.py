"""Runs a command and takes its whole process group down when whoever started it is gone. Standard library only.

`python guard.py COMMAND ARG…`, started with a pipe on standard input and as the leader of a new session. The pipe
closes when the starter dies, by whatever signal: a server and its workers never outlive it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

_GRACE_S = 10.0


def main(command: list[str]) -> int:
    """Run the command to its end; gives its exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # ours to outlive: the group gets the signal, we clean up after it
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    status = child.wait()
    os.killpg(0, signal.SIGTERM)
    return status if status >= 0 else 128 - status


def _end_with_starter(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_S
    while child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
