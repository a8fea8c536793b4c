"""Files that are whole or absent, after a kill and after a power failure: write, sync, rename, sync the folder.

A rename can reach the disk before the content of what it names, and a new file's content before the file's name;
so each is synced in turn (`fsync`).
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psutil

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write that found no room: on the disk, in a quota, in the largest file that may be."""
_LIBRARY_FULL = re.compile(
    rf"\(os error ({'|'.join(map(str, DISK_FULL))})\)|{os.strerror(errno.ENOSPC)}|database or disk is full"
)
"""What other libraries' errors say then: Rust's, C++'s, SQLite's."""
_LONGEST_NAME = 120
"""Characters of a name that is made of an id."""
_UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP)
"""Error numbers of file systems that cannot sync a folder."""


def file_name(text: str) -> str:
    """A file name for any text: what a name cannot hold is percent-encoded, a long one ends in its digest instead.
    Never a path, `.` or `..`, and with an ending at most 255 bytes with the marks of `atomic_path` around it.
    """
    name = quote(text, safe=" ", errors="replace")
    if not name.strip("."):
        name = name.replace(".", "%2E") or "%"
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name[:_LONGEST_NAME]}~{digest}"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of `path`; rename it (file or folder) onto `path` when the block succeeds.

    Afterwards the content is on the disk under that name. What killed processes left behind of the same target is
    removed. A device or pipe (`/dev/stdout`) is given as it is; a link to a file is written through.
    """
    with full_disk_named(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            yield path
            return
        if path.is_symlink() and path.is_file():
            path = path.resolve()
        make_folder(path.parent)
        temporary = path.with_name(_name(path, "tmp"))
        remove(temporary)
        _remove_stale(path, "tmp")
        try:
            yield temporary
            sync_tree(temporary)
            replace(temporary, path)
            _remove_stale(path, "old")
        finally:
            remove(temporary)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Name the file that found no room: the system's error for a full disk does not, or names a temporary one.

    Libraries that write files themselves (safetensors, torch, SQLite) raise their own errors, which become the system's
    OSError; torch's does not tell the cause, so a test write checks the disk.
    """
    try:
        yield
    except OSError as error:
        if (error.errno in DISK_FULL and error.filename is None) or f"/.{path.name}.tmp" in str(error.filename):
            error.filename = str(path)
        raise
    except BaseException as error:  # of a sharded checkpoint, torch's is no Exception
        found = _LIBRARY_FULL.search(str(error))
        number = int(found[1] or errno.ENOSPC) if found else 0
        if not number and not isinstance(error, KeyboardInterrupt | SystemExit):
            try:
                with tempfile.TemporaryFile(dir=path.parent) as probe:
                    probe.write(bytes(1 << 16))
            except OSError as refused:
                number = refused.errno if refused.errno in DISK_FULL else 0
        if not number:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def make_folder(path: Path) -> None:
    """Create a folder and its parents, so that the new names are on the disk too."""
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to the disk: new files, renames, removals."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _UNSYNCABLE:
            raise
    finally:
        os.close(descriptor)


def sync_tree(path: Path) -> None:
    """Bring a file, or everything in a folder, to the disk."""
    is_folder = path.is_dir()
    for folder, _, names in os.walk(path) if is_folder else [(str(path.parent), [], [path.name])]:
        for file in (Path(folder, name) for name in names):
            if not file.is_symlink():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        if is_folder:
            sync_folder(Path(folder))


def replace(temporary: Path, path: Path) -> None:
    """Rename a synced file or folder onto `path`, which may exist."""
    if path.is_dir():
        old = path.with_name(_name(path, "old"))
        path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
        remove(old)
    else:
        temporary.replace(path)
        sync_folder(path.parent)


def _name(path: Path, kind: str) -> str:
    return f".{path.name}.{kind}{os.getpid()}@{socket.gethostname()}"


def _remove_stale(path: Path, kind: str) -> None:
    """Remove the temporary siblings that processes of this machine which are no more left of this target."""
    here = re.escape(f"@{socket.gethostname()}")
    pattern = re.compile(rf"{re.escape(f'.{path.name}.{kind}')}(\d+)(?:{here})?")
    for sibling in path.parent.iterdir():
        if (match := pattern.fullmatch(sibling.name)) and not psutil.pid_exists(int(match[1])):
            remove(sibling)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder; a missing one is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
