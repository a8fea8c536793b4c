"""Ports and folders of episodes' servers: who may have them, who listens there, what killed processes have left.

API: `remove_orphans()`, `claim() -> Claim` (`.port`, `.folder`, `.lock`, `.release()`),
`listens(session, port) -> bool`.

A claim is a `flock` on a directory named for the port, in which the server's folder lies: the kernel drops it when
nobody has the directory open any more. Whoever ends a server holds it too (`Claim.lock`), so neither port nor folder
is another's before the server has ended, however webrl did. There is no lock file that a cleaner of temporary files
could remove, and the server may do with its folder what it likes.
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

from webrl.suites.web.sites import SiteError

_FOLDER = "folder"


@dataclass(frozen=True)
class Claim:
    """A port of 127.0.0.1 that no other environment of this user takes meanwhile."""

    port: int
    folder: Path
    """Its own and empty; removed with `release`, or by a later `remove_orphans`."""
    lock: int
    """File descriptor that holds it while it is open in any process."""

    def release(self) -> None:
        """Let others have the port; remove the folder. Only once."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)
        os.close(self.lock)


def claim() -> Claim:
    """A free port and an empty folder.

    Raises:
        SiteError: others could write where claims are kept.
    """
    kept = _kept()
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        claimed = kept / str(port)
        with contextlib.suppress(FileExistsError):  # another's, or what cannot be removed
            claimed.mkdir(mode=0o700)
            if (lock := _locked(claimed)) is not None:
                folder = claimed / _FOLDER
                folder.mkdir(mode=0o700)
                return Claim(port, folder, lock)


def remove_orphans() -> None:
    """Remove the folders that nobody holds any more.

    Raises:
        SiteError: others could write where claims are kept.
    """
    for claimed in _kept().iterdir():
        if (lock := _locked(claimed)) is not None:
            shutil.rmtree(claimed, ignore_errors=True)
            os.close(lock)


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


def _locked(claimed: Path) -> int | None:
    """The directory, open and locked; None if another has it, or removed it just now."""
    try:
        lock = os.open(claimed, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, or not a directory
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), claimed.lstat()):  # and not one removed before it was locked
            return lock
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(lock)
    return None
