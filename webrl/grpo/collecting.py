"""The process behind `Collector`: plays the requested batches one after the other, with a copy of the policy.

Run as `python -m webrl.grpo.collecting FD`, a pipe's end. The first message is (settings, output folder, log level);
then ("check", tasks), ("weights", fingerprint, safetensors) and ("play", attempts). "check" and "play" are answered:
with None, with the episodes, or with the exception that ended it. It ends when the pipe's other end closes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from webrl.config import plugins
from webrl.config.redaction import guard_output
from webrl.errors import WebRLError
from webrl.grpo.play import Player
from webrl.grpo.settings import GrpoSettings
from webrl.llm.eyes import Eyes
from webrl.runs.own_python import restore_python_path

if TYPE_CHECKING:
    from webrl.grpo.copies import PolicyCopy, ServedCopy

_PATIENCE_S = 20.0
"""Time for the browsers to close after the last request."""


def serve(connection: Connection, settings: GrpoSettings, out: Path, inbox: SimpleQueue[Any]) -> None:
    """Answer messages until the process ends."""
    eyes = Eyes(settings.model_name) if settings.sees else None
    with Player(settings, eyes, out) as player, contextlib.ExitStack() as stack:
        copy: PolicyCopy | ServedCopy | None = None

        def opened() -> PolicyCopy | ServedCopy:
            from webrl.grpo.copies import PolicyCopy, ServedCopy

            new = ServedCopy(settings, out, player.run) if settings.has_servers else PolicyCopy(settings, eyes)
            stack.callback(new.stop)
            return new

        while True:
            match inbox.get():
                case ("check", tasks):
                    player.check(tasks)
                    if settings.has_servers:  # its servers want their share of the GPU before the trainer takes its own
                        copy = copy or opened()
                    connection.send(None)
                    copy = copy or opened()  # while the trainer loads its own
                case ("weights", fingerprint, data):
                    copy = copy or opened()
                    copy.take(fingerprint, data)
                case ("play", attempts):
                    assert copy is not None
                    connection.send(player.play(attempts, copy.open))


def _read(connection: Connection, inbox: SimpleQueue[Any]) -> None:
    """Queue incoming messages so that senders do not wait; interrupt the main thread at the end."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, signal.SIGINT)
        time.sleep(_PATIENCE_S)
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error as the other process can raise it; of a defect, with the lines that led to it."""
    if not isinstance(error, WebRLError):
        error.add_note("in the process that collects episodes:\n" + "".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # boundary: an exception of any library, with whatever constructor
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def main(fd: int) -> None:
    """Serve the pipe's end `fd`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    connection, inbox = Connection(fd), SimpleQueue[Any]()
    try:
        data, out, level = connection.recv()
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        for name in plugins.PACKAGES:
            logging.getLogger(name).setLevel(level)
        settings = GrpoSettings.model_validate(data)
        threading.Thread(target=_read, args=(connection, inbox), daemon=True).start()
        serve(connection, settings, out, inbox)
    except (KeyboardInterrupt, EOFError, ConnectionError):
        pass  # nobody asks any more
    except Exception as error:  # the boundary of the process
        connection.send(_portable(error))


if __name__ == "__main__":
    guard_output()
    restore_python_path()
    main(int(sys.argv[1]))
