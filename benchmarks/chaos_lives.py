"""Commands that live until they end or are killed, and what they leave running.

API: `Lives(shim, logs)` starts commands (`start`), `Life.kill()` is `kill -9`, `Lives.survivors()` waits for all
processes that a killed life had started and gives those that stay.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from webrl.runs.machine import cpu_environment

HERE = Path(__file__).parent
MARK = "WEBRL_CHAOS"
GRACE_S = 60.0
"""How long what a killed process had started may take to end: a worker's watchdog takes eleven seconds."""


@dataclass
class Life:
    """One started command."""

    pid: int
    log: Path
    mark: str
    poll: Callable[[], int | None]
    """Exit code, or None while it runs."""
    below: list[psutil.Process] = field(default_factory=list)
    """What ran below it when it was killed."""

    def kill(self) -> None:
        """`kill -9`, of this process alone."""
        self.below = descendants(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)

    def kill_below(self) -> None:
        """The same to all that it had started, and wait: nothing outlives a machine without power."""
        for process in self.below:
            kill_one(process)
        psutil.wait_procs(self.below, timeout=GRACE_S)

    def tail(self, lines: int = 12) -> str:
        """The end of its output."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Lives:
    """Commands of one kind of kill; a context manager.

    Args:
        shim: what the disk and the clock of a life go through that has `CHAOS_ROOT`.
        logs: folder of their outputs.
    """

    def __init__(self, shim: Path | None, logs: Path) -> None:
        self._shim, self._logs = shim, logs
        self._numbers = itertools.count()
        self._all: list[Life] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, argv: Sequence[str], *, module: str = "webrl.cli", env: dict[str, str] | None = None) -> Life:
        """Run `python -m module` with these arguments."""
        number = next(self._numbers)
        mark, log = f"{os.getpid()}-{self._logs.name}-{number}", self._logs / f"{number:04d}.log"
        log.touch()
        whole = base_environment() | (env or {}) | {MARK: mark}
        if "CHAOS_ROOT" in whole:
            whole["LD_PRELOAD"] = str(self._shim)
        with log.open("ab") as file:
            command = [sys.executable, "-m", module, *argv]
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=whole, start_new_session=True
            )
        return self.adopt(Life(process.pid, log, mark, process.poll))

    def adopt(self, life: Life) -> Life:
        """Look after a life that was started otherwise."""
        self._all.append(life)
        return life

    def survivors(self, grace_s: float = GRACE_S) -> list[str]:
        """Wait for all that the lives that have ended had started, and forget those lives; names of what still runs."""
        ended = [life for life in self._all if life.poll() is not None]
        self._all = [life for life in self._all if life not in ended]
        marks = {f"{MARK}={life.mark}".encode() for life in ended}
        known = {process for life in ended for process in life.below}
        deadline = time.monotonic() + grace_s
        while True:
            left = [p for p in {*known, *_marked(marks)} if _lives(p)]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.3)
        names = [_describe(process) for process in left]
        for process in left:
            kill_one(process)
        return names

    def __enter__(self) -> Lives:
        return self

    def __exit__(self, *exc: object) -> None:
        for life in self._all:
            if life.poll() is None:
                life.kill()
        self.survivors()


def base_environment() -> dict[str, str]:
    """Variables of every life: ours, those that make torch fast on a CPU, and byte code kept between lives."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CHAOS_", "LD_PRELOAD"))}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [str(HERE.parent), str(HERE), env.get("PYTHONPATH", "")]
    return env | cpu_environment() | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "HF_HUB_OFFLINE": "1"}


def descendants(pid: int) -> list[psutil.Process]:
    """Everything below a process; empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def kill_one(process: psutil.Process) -> bool:
    """`kill -9`; False if it had ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False


def _marked(marks: set[bytes]) -> set[psutil.Process]:
    found = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if marks.intersection((folder / "environ").read_bytes().split(b"\0")):
                found.add(psutil.Process(int(folder.name)))
    return found


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} {' '.join(process.cmdline())[:120]}"
    return str(process.pid)
