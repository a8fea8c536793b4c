"""One writer a run folder: who works in it is named, and one that died is never in the way.

Two locks, because neither is enough on every disk:

- a `flock`, which the kernel drops with the process, however that dies. On one machine, and on shared disks that pass
  it on (NFS 4, Lustre and others mounted so), it is all that is needed.
- a lease, for shared disks on which a `flock` is seen by one machine only, or refused: a file that its holder touches.
  A holder of this machine is known to be dead by its process number; one of another machine when the file has not been
  touched for `LEASE_S`, which a start after such a death therefore waits for once.

Library: filelock, whose lease is not a proof: a machine that was suspended for longer than `LEASE_S` has lost it, and
ends its run when it finds out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, SoftFileLease, Timeout

from webrl.errors import StageError
from webrl.runs.disk import full_disk_named, make_folder, sync_tree

logger = logging.getLogger(__name__)

LEASE_S = 90.0
"""Seconds without a sign of life after which a process of another machine is taken to be dead. NFS may show a file's
time up to 60 s late."""
_PATIENCE_S = 3.0
"""How long to try: a process that was just killed holds its locks until its memory is freed."""
_DYING_S = 60.0
"""The same for one that is known to be dead (tens of GiB, a GPU)."""
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
"""Error numbers of file systems without `flock`."""


@contextlib.contextmanager
def hold_run(run_dir: Path) -> Iterator[None]:
    """Keep other processes from writing into a run folder while the block runs; nests in the thread that holds it.

    Raises:
        StageError: another process has it; host, process, command and time are named. Or the folder is not writable.
    """
    with _hold(run_dir / ".lock", f"run folder {str(run_dir)!r}"):
        yield


@contextlib.contextmanager
def hold_output(path: Path) -> Iterator[None]:
    """The same for an output file or folder: the whole run folder if it lies in one, else this output alone."""
    run = next((folder for folder in path.absolute().parents if (folder / "config.yaml").is_file()), None)
    with hold_run(run) if run else _hold(path.with_name(f".{path.name}.lock"), f"output {str(path)!r}"):
        yield


@contextlib.contextmanager
def _hold(folder: Path, what: str, lease_s: float = LEASE_S) -> Iterator[None]:
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError):
        raise StageError(f"cannot write {what}: a part of its path exists and is a file, not a folder") from None
    except OSError as error:
        raise StageError(f"cannot write {what}: {error.strerror or error}") from None
    lock = FileLock(folder / "flock", is_singleton=True, fallback_to_soft=False)
    lease = SoftFileLease(folder / "lease", is_singleton=True, lease_duration=lease_s, on_compromise=_stop)
    if lease.is_locked:
        yield
        return
    with contextlib.ExitStack() as stack:
        with full_disk_named(folder):
            _take_flock(lock, folder, what)
            stack.callback(lock.release, force=True)
            _take_lease(lease, folder, what)
            stack.callback(lease.release, force=True)
            stack.callback((folder / "holder.json").unlink, missing_ok=True)
            (folder / "holder.json").write_text(json.dumps(_own_record()) + "\n", encoding="utf-8")
            sync_tree(folder)  # after a loss of power it must still say that its holder was one of this machine
        yield


def _take_flock(lock: Any, folder: Path, what: str) -> None:
    try:
        try:
            lock.acquire(timeout=_PATIENCE_S)
        except Timeout:
            if not _is_dead(_read_holder(folder)):
                raise
            lock.acquire(timeout=_DYING_S)
    except Timeout:
        raise _busy(folder, what) from None
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise StageError(f"cannot lock {what}: {error.strerror or error}") from None
        logger.warning("%s is on a disk without flock; a lease file alone keeps other processes out", what)


def _take_lease(lease: SoftFileLease, folder: Path, what: str) -> None:
    """Take the lease, waiting for one that nobody renews; one that is renewed meanwhile has a living holder."""
    marker = folder / "lease"
    with contextlib.suppress(Timeout):
        lease.acquire(timeout=_PATIENCE_S)
        return
    seen = _touched(marker)
    logger.warning(
        "%s was left by %s without being given back; waiting up to %.0f s for a sign of life",
        what, _describe(_read_holder(folder)), lease.lease_duration,
    )  # fmt: skip
    blank = _is_blank(marker)
    try:
        lease.acquire(
            timeout=(1 if blank else 2) * lease.lease_duration,
            poll_interval=0.2,
            cancel_check=lambda: _touched(marker) != seen,
        )
    except Timeout:
        if blank and _touched(marker) == seen:
            # The power failed between its making and its writing; filelock never takes such a one.
            marker.unlink(missing_ok=True)
            with contextlib.suppress(Timeout):
                lease.acquire(timeout=_PATIENCE_S)
                return
        raise _busy(folder, what) from None


def _is_blank(marker: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return marker.stat().st_size == 0
    return False


def _touched(marker: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return marker.stat().st_mtime_ns
    return None


def _stop(compromise: Any) -> None:
    """End this run: it was out for so long that another machine may have taken the folder."""
    logger.error("lost %s (%s): another process may work there now; stopping", compromise.lock_file, compromise.reason)
    # A job that a script has put into the background ignores Ctrl-C.
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    os.kill(os.getpid(), signal.SIGTERM if ignored else signal.SIGINT)


def _own_record() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": psutil.Process().create_time(),
        "since": time.time(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:300],
    }


def _read_holder(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "holder.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_dead(record: dict[str, Any]) -> bool:
    """Whether the recorded process was one of this machine and has ended (or is ending)."""
    if record.get("host") != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(record["pid"]))
        return process.create_time() != record["started"] or process.status() in ("zombie", "dead")
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, KeyError, ValueError):
        return False


def who_works_in(run_dir: Path) -> tuple[str, float] | None:
    """(command, process, host and time in words; seconds since the epoch when it began) of who works in a run folder.

    None where nobody does, or who did has ended without saying so: on another machine, when its lease has run out.
    """
    folder = run_dir / ".lock"
    record = _read_holder(folder)
    if not record or _is_dead(record):
        return None
    touched = _touched(folder / "lease")
    if record.get("host") != socket.gethostname() and (touched is None or time.time() - touched / 1e9 > LEASE_S):
        return None
    since = record.get("since")
    return _describe(record), float(since) if isinstance(since, int | float) else 0.0


def process_in(run_dir: Path) -> int | None:
    """Process id of who works in a run folder on this machine; None where nobody does, or only on another one."""
    record = _read_holder(run_dir / ".lock")
    if not record or _is_dead(record) or record.get("host") != socket.gethostname():
        return None
    pid = record.get("pid")
    return pid if isinstance(pid, int) else None


def _describe(record: dict[str, Any]) -> str:
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["since"]))
        return f"`{record['command']}` (process {record['pid']} on {record['host']}, since {since})"
    except (KeyError, TypeError, ValueError, OverflowError):
        return "a process that does not say who it is"


def _busy(folder: Path, what: str) -> StageError:
    return StageError(
        f"{what} is in use by {_describe(_read_holder(folder))}; wait for it, end it, or choose another name"
    )
