"""A process that plays ahead of the training: the next generation batches, with a copy of the policy.

    with Collector(settings, out) as collector:
        collector.check(tasks)
        collector.hand_over("actor@step-0", module)      # a snapshot; neither side waits
        collector.ask(0, attempts)
        episodes, staleness = collector.take(1)          # the oldest requested; 1 batch trained meanwhile

Batches are played in the order of the requests, each with the weights handed over last before it, independently of the
speed of either side. Errors of the process are raised here, with the type and text that they have in `Player`. The
process (`collecting.py`) and its browsers end with this one, even if it is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from safetensors.torch import save

from webrl.config.redaction import revealed
from webrl.errors import StageError
from webrl.grpo.play import Attempt, Episode
from webrl.grpo.settings import GrpoSettings
from webrl.runs.own_python import own_environment, own_python
from webrl.types import Task

logger = logging.getLogger(__name__)

_PATIENCE_S = 30.0
"""For the process to close its browsers, before it is killed."""


class Collector:
    """Owns the process; `out` is where it keeps screenshots."""

    def __init__(self, settings: GrpoSettings, out: Path) -> None:
        self._settings = settings
        self._out = out
        self._asked: deque[tuple[int, str]] = deque()
        self._fingerprint = ""
        self._outbox: SimpleQueue[Any] = SimpleQueue()

    def __enter__(self) -> Self:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                own_python("webrl.grpo.collecting", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the other
                env=own_environment(),
            )
        self._sender = threading.Thread(target=self._send_all, name="webrl-handover", daemon=True)
        self._sender.start()
        settings = revealed(self._settings)
        self._outbox.put((settings, self._out, logging.getLogger("webrl").getEffectiveLevel()))
        return self

    def __exit__(self, *exc: object) -> None:
        self._outbox.put(None)
        self._sender.join(_PATIENCE_S)
        if self._sender.is_alive():  # nobody reads there any more
            self._process.kill()
            self._sender.join()
        self._connection.close()  # which ends it
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def check(self, tasks: Sequence[Task]) -> None:
        """Check the tasks like `Player.check`."""
        self._outbox.put(("check", list(tasks)))
        self._receive()

    def hand_over(self, fingerprint: str, module: Any) -> None:
        """Take a snapshot of the trained weights for all later requests."""
        tensors = {
            name: weight.detach().to("cpu", copy=True).contiguous()
            for name, weight in module.named_parameters()
            if weight.requires_grad
        }
        self._fingerprint = fingerprint
        self._outbox.put(("weights", fingerprint, tensors))

    def ask(self, version: int, attempts: Sequence[Attempt]) -> None:
        """Have a batch played with the weights that were handed over last.

        Args:
            version: number of batches that these weights have been trained on.
        """
        self._asked.append((version, self._fingerprint))
        self._outbox.put(("play", list(attempts)))

    @property
    def num_asked(self) -> int:
        """Batches asked for and not taken."""
        return len(self._asked)

    def take(self, version: int) -> tuple[list[Episode], int]:
        """Wait for the oldest batch; return it and how many batches its weights are behind the current ones.

        Args:
            version: number of batches that the current weights have been trained on.

        Raises:
            StageError: more than `max_staleness` behind, of other weights than requested, or the process died.
            WebRLError: an error of `Player.play`.
        """
        episodes: list[Episode] = self._receive()
        asked, fingerprint = self._asked.popleft()
        others = {e.trajectory.policy for e in episodes} - {fingerprint}
        if others:
            raise StageError(f"episodes asked of {fingerprint!r} were played by {', '.join(sorted(others))}")
        staleness = version - asked
        if not 0 <= staleness <= self._settings.max_staleness:
            raise StageError(
                f"episodes of {fingerprint!r} are {staleness} generation batches behind the weights to be trained; "
                f"max_staleness={self._settings.max_staleness}"
            )
        return episodes, staleness

    def _send_all(self) -> None:
        """The thread that hands over: what is sent waits neither for the training nor for the episodes."""
        try:
            for message in iter(self._outbox.get, None):
                match message:
                    case ("weights", fingerprint, tensors):
                        self._connection.send(("weights", fingerprint, save(tensors)))
                    case _:
                        self._connection.send(message)
        except OSError:
            pass  # it died: `_receive` says so
        except Exception:  # boundary of the thread: whoever waits for an answer must hear of it
            logger.exception("nothing can be handed over to the process that collects episodes")
            self._process.kill()

    def _receive(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            code = self._process.wait()
            raise StageError(f"the process that collects episodes ended with exit code {code}") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer
