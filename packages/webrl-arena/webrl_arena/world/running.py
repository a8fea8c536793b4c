"""The arena as this machine runs it: `start`, `find`, `stop`. Nothing here imports Django."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from webrl.config.extras import require
from webrl.errors import StageError, UsageError
from webrl.runs.machine import own_environment, own_python
from webrl_arena.world.sites import CONTENT
from webrl_serve.net import listen

STATE, LOCK, LOG, SESSIONS = "arena.json", "arena.lock", "arena.log", "sessions"
COOKIE = "arena_session"
_MADE_BY = {
    "shop": (
        ("django", "django-oscar", "django-machina", "django-postman"),
        ("shop/load.py", "shop/settings.py", "shop/settings.yaml"),
    ),
    "tracker": (("trac",), ("shop/tracker/load.py",)),
}
"""What a site's first database depends on, in addition to the content: packages and sources."""
_SESSION = re.compile(r"\.?[0-9a-f]{16}")
"""The name of a session's folder, with a dot while it is being made."""
HOST = "127.0.0.1"
_HERE = Path(__file__).parent
_START_S = 300.0
_END_S = 60.0
_POLL_S = 0.05
_LOG_CHARS = 1500
_CLOCK_STEP_S = 5.0
"""By how much a process's start time may differ: it follows the machine's clock, which is adjusted now and then."""


@dataclass(frozen=True)
class State:
    """A running arena, as its file says (mode 0600: who reads the key can make sessions)."""

    url: str
    key: str
    pid: int
    started: float
    """When the process started, in seconds since the epoch: its number may belong to another by now."""
    content: str = ""
    """`content_digest` of what it shows."""

    def write(self, folder: Path) -> None:
        """Write it, in one step."""
        making = folder / f".{STATE}"
        making.unlink(missing_ok=True)
        with os.fdopen(os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(dataclasses.asdict(self), file)
        making.rename(folder / STATE)

    @property
    def alive(self) -> bool:
        """Whether that process still runs."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < _CLOCK_STEP_S
            return same and process.status() != psutil.STATUS_ZOMBIE
        return False


def default_folder() -> Path:
    """`~/.cache/webrl/arena`."""
    return Path.home() / ".cache" / "webrl" / "arena"


def find(folder: Path) -> State | None:
    """Find the arena that runs in this folder; None if none does."""
    try:
        record = json.loads((folder / STATE).read_text(encoding="utf-8"))
        known = {field.name for field in dataclasses.fields(State)}
        state = State(**{name: value for name, value in record.items() if name in known})
        return state if state.alive else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def start(folder: Path, port: int, workers: int) -> State:
    """Start an arena in the background and wait until it answers; sessions of one that was killed are dropped.

    Raises:
        ExtraMissing: the packages are not installed.
        UsageError: the port is taken, or the folder holds what no arena has put there.
        StageError: one runs there already, or it does not start (the end of its log is quoted).
    """
    require("arena", "webrl arena")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(
            f"--folder {str(folder)!r} is a file, or inside one; an arena needs a new or empty folder"
        ) from None
    if not (folder / LOCK).exists() and any(folder.iterdir()):
        raise UsageError(f"--folder {str(folder)!r} holds other files; an arena needs a new or empty folder")
    if state := find(folder):
        raise StageError(f"an arena is already running: {state.url} (process {state.pid}); `webrl arena down` stops it")
    _wait_for_the_dead(folder)
    with listen(HOST, port) as listener, (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            own_python("webrl_arena.world.shop.serve", str(folder.absolute()), str(listener.fileno()), str(workers)),
            env=own_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    import httpx

    deadline = time.monotonic() + _START_S
    try:
        while time.monotonic() < deadline and process.poll() is None:
            if (state := find(folder)) and state.pid == process.pid:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{state.url}/arena/health", timeout=5, trust_env=False).status_code == 200:
                        return state
            time.sleep(_POLL_S)
    except BaseException:
        process.terminate()
        raise
    ended = process.poll() is not None
    process.kill()
    tail = (folder / LOG).read_text(encoding="utf-8", errors="replace")[-_LOG_CHARS:]
    raise StageError(
        f"the arena {'ended while it started' if ended else f'did not answer in {_START_S:g} s'}; "
        f"its log {folder / LOG} says:\n{tail}"
    )


def stop(folder: Path) -> bool:
    """End the arena of this folder and drop its sessions; False if there was none."""
    state = find(folder)
    if state:
        deadline = time.monotonic() + _END_S
        with contextlib.suppress(ProcessLookupError):
            os.kill(state.pid, signal.SIGTERM)
            while state.alive and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            if state.alive:
                os.kill(state.pid, signal.SIGKILL)
    if (folder / LOCK).is_file():
        _wait_for_the_dead(folder)
        (folder / STATE).unlink(missing_ok=True)
        drop_sessions(folder)
    return state is not None


def drop_sessions(folder: Path) -> None:
    """Remove the sessions' files, and leave an empty folder for new ones."""
    sessions = folder / SESSIONS
    sessions.mkdir(mode=0o700, exist_ok=True)
    for path in sessions.iterdir():
        if _SESSION.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def num_sessions(folder: Path) -> int:
    """Count the sessions."""
    with contextlib.suppress(FileNotFoundError):
        return sum(not path.name.startswith(".") for path in (folder / SESSIONS).iterdir())
    return 0


def content_digest() -> str:
    """Hash what the sites' content is made from: tasks are about the content of this version."""
    return _digest(*CONTENT)


def template_path(folder: Path, site: str) -> Path:
    """Return the path of a site's first database, if it has one, which differs for every version of what makes it."""
    packages, sources = _MADE_BY[site]
    versions = "-".join(importlib.metadata.version(package) for package in packages)
    return folder / "templates" / f"{site}-{versions}-{_digest(*CONTENT, *sources)}.sqlite3"


def _digest(*sources: str) -> str:
    return hashlib.sha256(b"".join((_HERE / source).read_bytes() for source in sources)).hexdigest()[:16]


def _wait_for_the_dead(folder: Path) -> None:
    """Wait for the workers of a killed server to end by themselves; until then they hold the lock."""
    try:
        FileLock(folder / LOCK).acquire(timeout=_END_S).lock.release()
    except Timeout:
        raise StageError(f"another process is starting or stopping an arena in {str(folder)!r}; wait for it") from None
