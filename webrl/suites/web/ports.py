"""Ports and folders of episodes' servers: who may have them, who listens there, what killed processes have left.

API: `claim() -> Claim` (`.port`, `.folder`, `.lock`, `.release()`), `listens(session, port) -> bool`.

A claim is a `flock`: the kernel drops it when nobody has the file open any more. Whoever ends a server holds it too
(`Claim.lock`), so neither port nor folder is another's before the server has ended, however webrl did.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from webrl.suites.webarena.sites import SiteError

_LOCK = ".lock"


@dataclass(frozen=True)
class Claim:
    """A port of 127.0.0.1 that no other environment of this user takes meanwhile."""

    port: int
    folder: Path
    """Its own and empty; removed with `release`, or by a later `claim`."""
    lock: IO[str]
    """What holds it while it is open in any process."""

    def release(self) -> None:
        """Let others have the port; remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.lock.close()


def claim() -> Claim:
    """A free port and an empty folder; folders that nobody holds any more are removed.

    Raises:
        SiteError: others could write where claims are kept.
    """
    kept = _kept()
    _remove_orphans(kept)
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if lock := _locked(kept / f"{port}{_LOCK}"):
            folder = kept / str(port)
            with contextlib.suppress(FileExistsError):  # what cannot be removed keeps its port from use
                folder.mkdir(mode=0o700)
                return Claim(port, folder, lock)
            lock.close()


def listens(session: int, port: int) -> bool:
    """Whether a process of this session (its leader's id) listens on that port of 127.0.0.1, or of all addresses."""
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(pid) == session and any(
                connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                for connection in psutil.Process(pid).net_connections("tcp")
            ):
                return True
    return False


def _kept() -> Path:
    folder = Path(tempfile.gettempdir()) / f"webrl-serve-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise SiteError(f"{folder} is not this user's own folder: others could have files emptied by it; remove it")
    return folder


def _remove_orphans(kept: Path) -> None:
    for folder in kept.iterdir():
        if folder.suffix != _LOCK and (lock := _locked(folder.with_suffix(_LOCK))):
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()


def _locked(path: Path) -> IO[str] | None:
    """The file, locked; None if another has it."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
