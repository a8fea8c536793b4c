"""Plays ahead of the training, in another process: the next generation batches, with a copy of the policy.

    with Collector(settings, out) as collector:
        collector.check(tasks)                           # its own vLLM or copy of the policy starts afterwards
        collector.wait()                                 # for that
        collector.hand_over("actor@step-0", module)      # a snapshot, for all later requests
        collector.ask(0, attempts)
        episodes, staleness = collector.take(1)          # the oldest requested; 1 batch trained meanwhile

Batches are played in the order of the requests, each with the weights handed over last before it, independently of the
speed of either side. Errors of the process are raised here: a WebRLError as it is in `Player`, others as RuntimeError.
The process and its browsers end with this one, even if it is killed.

The process is `python -m webrl_grpo.collector FD`, with one end of a pipe. The first message is (settings, output
folder, log level); the second, the tasks to check, is answered by None, and by another None once it can play; then come
("weights", fingerprint, safetensors or a folder) and ("play", attempts), which is answered by the episodes. An
exception that ends the process is its last answer. A closed pipe ends it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from webrl.config import plugins
from webrl.config.redaction import guard_output, revealed
from webrl.errors import StageError, WebRLError
from webrl.llm.eyes import Eyes
from webrl.runs.machine import own_environment, own_python, restore_python_path
from webrl.types import Task
from webrl_grpo.play import Attempt, Episode, Player
from webrl_grpo.settings import GrpoSettings

logger = logging.getLogger(__name__)

HANDOVER = ".handover"
"""Folder of the weights that vLLM reads, in the output folder."""
_PATIENCE_S = 30.0
"""Time for the process to end, before it is killed."""
_CLOSING_S = 20.0
"""Time for its browsers to close."""


class Collector:
    """Owns the process; `out` is where it keeps screenshots."""

    def __init__(self, settings: GrpoSettings, out: Path) -> None:
        self._settings = settings
        self._out = out
        self.asked: deque[tuple[int, str]] = deque()
        """Version and weights of each batch that is requested and not taken."""
        self._fingerprint = ""
        self._handover = out / HANDOVER
        self._num_folders = 0

    def __enter__(self) -> Self:
        shutil.rmtree(self._handover, ignore_errors=True)
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                own_python("webrl_grpo.collector", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the other
                env=own_environment(),
            )
        self.pid = self._process.pid
        self._send((revealed(self._settings), self._out, logging.getLogger("webrl").getEffectiveLevel()))
        return self

    def __exit__(self, *exc: object) -> None:
        self._connection.close()  # the process ends when its end of the pipe closes
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._handover, ignore_errors=True)

    def check(self, tasks: Sequence[Task]) -> None:
        """Check the tasks like `Player.check`: called once, before anything else."""
        self._send(list(tasks))
        self._receive()

    def wait(self) -> None:
        """Wait until it can play: vLLM needs its share of the GPU before the trainer takes its own.

        Raises:
            ModelError: vLLM does not start.
        """
        self._receive()

    def hand_over(self, fingerprint: str, module: Any) -> None:
        """Take a snapshot of the trained weights for all later requests."""
        from safetensors.torch import save

        from webrl_grpo.sampler import write_weights

        self._fingerprint = fingerprint
        if self._settings.use_vllm:
            self._num_folders += 1
            folder = self._handover / str(self._num_folders)
            write_weights(self._settings, module, folder)
            self._send(("weights", fingerprint, folder))
            return
        trained = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        self._send(("weights", fingerprint, save({name: weight.detach().contiguous() for name, weight in trained})))

    def ask(self, version: int, attempts: Sequence[Attempt]) -> None:
        """Request a batch, played with the weights that were handed over last.

        Args:
            version: number of batches that these weights have been trained on.
        """
        self.asked.append((version, self._fingerprint))
        self._send(("play", list(attempts)))

    def take(self, version: int) -> tuple[list[Episode], int]:
        """Wait for the oldest batch; return it and how many batches its weights are behind the current ones.

        Args:
            version: number of batches that the current weights have been trained on.

        Raises:
            StageError: more than `max_staleness` behind, of other weights than requested, or the process died.
            WebRLError: an error of `Player.play`.
        """
        episodes: list[Episode] = self._receive()
        asked, fingerprint = self.asked.popleft()
        others = {e.trajectory.policy for e in episodes} - {fingerprint}
        if others:
            raise StageError(f"episodes of {fingerprint!r} were played by {', '.join(sorted(others))}")
        staleness = version - asked
        if not 0 <= staleness <= self._settings.max_staleness:
            raise StageError(
                f"episodes of {fingerprint!r} are {staleness} generation batches behind the weights to be trained; "
                f"max_staleness={self._settings.max_staleness}"
            )
        return episodes, staleness

    def _send(self, message: Any) -> None:
        """Send a message; the process reads it at once, also while it plays."""
        with contextlib.suppress(OSError):  # it died: `_receive` says so
            self._connection.send(message)

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            raise StageError(f"the process that collects episodes ended with exit code {code}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _serve(connection: Connection, settings: GrpoSettings, out: Path, inbox: SimpleQueue[Any]) -> None:
    """Handle messages until the process ends."""
    from webrl_grpo.sampler import PolicyCopy, ServedCopy

    eyes = Eyes(settings.model_name) if settings.sees else None
    with Player(settings, eyes, out) as player, contextlib.ExitStack() as stack:
        player.check(inbox.get())  # at once: a page that cannot be opened is told without minutes of vLLM's start
        connection.send(None)
        copy: PolicyCopy | ServedCopy
        if settings.use_vllm:
            stack.callback(shutil.rmtree, out / HANDOVER, ignore_errors=True)  # the other process may be killed
            copy = ServedCopy(settings, out / HANDOVER / "0", player.run)
            stack.callback(copy.stop)
        else:
            copy = PolicyCopy(settings, eyes)
        connection.send(None)
        while True:
            match inbox.get():
                case ("weights", fingerprint, weights):
                    copy.take(fingerprint, weights)
                case ("play", attempts):
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
        time.sleep(_CLOSING_S)
        os._exit(1)


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
        _serve(connection, settings, out, inbox)
    except (KeyboardInterrupt, EOFError, ConnectionError):
        pass  # the other process has ended
    except Exception as error:  # the boundary of the process; of a defect, the traceback is sent
        own = isinstance(error, WebRLError)
        connection.send(error if own else RuntimeError("".join(traceback.format_exception(error))))


if __name__ == "__main__":
    guard_output()
    restore_python_path()
    main(int(sys.argv[1]))
