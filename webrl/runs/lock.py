"""One writer a run folder: who works in it is named, and one that died is never in the way.

A `flock`, which the kernel drops with the process, however that dies, also on shared disks that pass it on (NFS 4,
Lustre); `holder.json` next to it says who has it. A disk without `flock` is refused.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from webrl.errors import StageError
from webrl.runs.disk import full_disk_named, make_folder

logger = logging.getLogger(__name__)

_PATIENCE_S = 3.0
"""How long to try: a process that was just killed holds its lock until its memory is freed."""
_DYING_S = 60.0
"""The same for one that is known to be dead (tens of GiB, a GPU)."""
HOLDER = "WEBRL_RUN_HOLDER"
"""Environment variable with the process id of the run that holds the folder, for the training processes it starts."""
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP)
"""Error numbers of file systems without `flock`."""


def hold_run(run_dir: Path) -> AbstractContextManager[None]:
    """Keep other processes from writing into a run folder while the block runs; nests in the thread that holds it.
    Raises StageError: another process has it (host, process, command and time are named), or it is not writable.
    """
    return _hold(run_dir / ".lock", f"run folder {str(run_dir)!r}")


def hold_output(path: Path) -> AbstractContextManager[None]:
    """Keep others from an output file or folder: the whole run folder if it lies in one, else this output alone."""
    whole = path.absolute()  # `.` has no name
    run = next((folder for folder in whole.parents if (folder / "config.yaml").is_file()), None)
    return hold_run(run) if run else _hold(whole.parent / f".{whole.name}.lock", f"output {str(path)!r}")


@contextlib.contextmanager
def _hold(folder: Path, what: str) -> Iterator[None]:
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError):
        raise StageError(f"cannot write {what}: a part of its path exists and is a file, not a folder") from None
    except OSError as error:
        raise StageError(f"cannot write {what}: {error.strerror or error}") from None
    lock = FileLock(folder / "flock", is_singleton=True, fallback_to_soft=False)
    if lock.is_locked or os.environ.get(HOLDER) == str(_read_holder(folder).get("pid")):
        yield
        return
    with contextlib.ExitStack() as stack:
        with full_disk_named(folder):
            try:
                try:
                    lock.acquire(timeout=_PATIENCE_S)
                except Timeout:
                    if not _is_dead(_read_holder(folder)):
                        raise
                    lock.acquire(timeout=_DYING_S)
            except Timeout:
                who = _describe(_read_holder(folder))
                raise StageError(f"{what} is in use by {who}; wait for it, stop it, or choose another name") from None
            except OSError as error:
                fix = "; its disk has no flock: choose a `runs_dir` on another disk" if error.errno in _NO_FLOCK else ""
                raise StageError(f"cannot lock {what}: {error.strerror or error}{fix}") from None
            stack.callback(lock.release, force=True)
            stack.callback((folder / "holder.json").unlink, missing_ok=True)
            before = _read_holder(folder)
            if before.get("host", socket.gethostname()) != socket.gethostname():
                logger.warning(
                    "%s was not released by %s; if that still runs, stop one of the two: this disk may not share locks "
                    "between machines", what, _describe(before),
                )  # fmt: skip
            record = {
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "started": psutil.Process().create_time(),
                "since": time.time(),
                "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:300],
            }
            (folder / "holder.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        yield


def who_works_in(run_dir: Path) -> tuple[str, float] | None:
    """Return which process is using a run folder, in words, and when it began (epoch); None if no process is."""
    folder = run_dir / ".lock"
    record = _read_holder(folder)
    if not record or _is_dead(record):
        return None
    is_here = record.get("host") == socket.gethostname()
    lock = FileLock(folder / "flock", is_singleton=True, fallback_to_soft=False)
    if not lock.is_locked and not is_here:
        # another machine's process cannot be checked, but its lock can
        with contextlib.suppress(Timeout, OSError), lock.acquire(timeout=0):
            return None
    since = record.get("since")
    return _describe(record), float(since) if isinstance(since, int | float) else 0.0


def _read_holder(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / "holder.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _is_dead(record: dict[str, Any]) -> bool:
    """Return whether the recorded process was one of this machine and has ended (or is ending)."""
    if record.get("host") != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(record["pid"]))
        return process.create_time() != record["started"] or process.status() in ("zombie", "dead")
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, KeyError, ValueError):
        return False


def _describe(record: dict[str, Any]) -> str:
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["since"]))
        return f"`{record['command']}` (process {record['pid']} on {record['host']}, since {since})"
    except (KeyError, TypeError, ValueError, OverflowError):
        return "a process that does not say who it is"
