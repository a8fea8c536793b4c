"""Run a command and end its whole process group with it, or when its starter is gone.

`python guard.py COMMAND ARG…`, started with a pipe on standard input and as the leader of a new session. The pipe
closes when the starter dies, by any signal: a server and its workers never outlive it, nor does the folder that
`WEBRL_GUARD_FOLDER` names. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

_CHILD_GRACE_S = 10.0
_GROUP_GRACE_S = 1.0


def main(command: list[str]) -> None:
    """Run the command until it ends or standard input closes, then end the group, this process included."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the group gets it; this process stays to clean up
    folder = os.environ.pop("WEBRL_GUARD_FOLDER", "")  # not for guards that the command starts
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=_end_with_starter, args=(child,), daemon=True).start()
    child.wait()
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GROUP_GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _end_with_starter(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGTERM)
    time.sleep(_CHILD_GRACE_S)
    child.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
