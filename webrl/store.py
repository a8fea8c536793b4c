"""The run folder: atomic writes, JSONL in and out, and what makes a finished stage recognisable.

Files are written to a temporary name and renamed, so that a reader sees a whole file or none. Files
that grow episode by episode are appended line by line; a torn last line (a kill in mid-write) is cut off
when the file is opened again.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson

from webrl.errors import DataError
from webrl.types import Record

R = TypeVar("R", bound=Record)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a write that found no room."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary sibling of `path`; rename it (file or folder) onto `path` when the block succeeds.

    What killed processes left behind of the same target is removed. A device or pipe (`/dev/stdout`) is given as
    it is; a link to a file is written through.
    """
    with _full_disk_named(path), _replacing(path) as temporary:
        yield temporary


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    """Say which file a full disk has hit: the system's error for a write does not."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    if _is_device(path):
        yield path
        return
    if path.is_symlink() and path.is_file():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    _remove(temporary)
    _remove_stale(path, "tmp")
    try:
        yield temporary
        if path.is_dir():
            old = path.with_name(f".{path.name}.old{os.getpid()}")
            path.rename(old)
            temporary.rename(path)
            _remove(old)
        else:
            temporary.replace(path)
        _remove_stale(path, "old")
    finally:
        _remove(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a whole file atomically and durably."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        _sync(file)


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file.

    Raises:
        DataError: missing or malformed file.
    """
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise DataError(f"{path}: {error}") from None


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write records as JSONL atomically; gives their number."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for record in records:
            file.write(dump_line(record))
            count += 1
        _sync(file)
    return count


def read_records(path: Path, cls: type[R], on_error: Callable[[str], None] | None = None) -> Iterator[R]:
    """Stream records from JSONL.

    Args:
        on_error: called with "path:line: reason" for a bad line, which is then skipped; None raises.

    Raises:
        DataError: missing file, or a malformed line (path and line number are quoted).
    """
    for number, data in read_lines(path, on_error):
        try:
            yield cls.from_json(data)
        except ValueError as error:
            _report(f"{path}:{number}: {error}", on_error)


def read_lines(path: Path, on_error: Callable[[str], None] | None = None) -> Iterator[tuple[int, Any]]:
    """Stream (line number, parsed JSON) from JSONL; blank lines are skipped. Errors as in `read_records`."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                data = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                _report(f"{path}:{number}: malformed JSON ({error}): {line[:80]!r}", on_error)
                continue
            yield number, data


def dump_line(record: Record) -> bytes:
    """One JSONL line of a record."""
    return orjson.dumps(record.to_json(), option=orjson.OPT_APPEND_NEWLINE)


class Appender:
    """A JSONL file that grows one record at a time; each line reaches the disk before `append` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(path)
        self._path = path
        self._file: IO[bytes] = path.open("ab")

    def append(self, record: Record) -> None:
        """Add one line."""
        with _full_disk_named(self._path):
            self._file.write(dump_line(record))
            self._file.flush()

    def close(self) -> None:
        """Flush to disk and close."""
        if not self._file.closed:
            with _full_disk_named(self._path):
                os.fsync(self._file.fileno())
                self._file.close()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def cut_torn_line(path: Path) -> None:
    """Cut a last line without a newline (its writer was killed); a missing file is fine."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            block = file.read(end - start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)


def _report(message: str, on_error: Callable[[str], None] | None) -> None:
    if on_error is None:
        raise DataError(message)
    on_error(message)


def _is_device(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _sync(file: IO[Any]) -> None:
    """Flush to the disk, if it is one."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def _remove_stale(path: Path, kind: str) -> None:
    """Remove the temporary siblings that processes which are no more left of this target."""
    prefix = f".{path.name}.{kind}"
    for sibling in path.parent.iterdir():
        pid = sibling.name.removeprefix(prefix)
        if sibling.name.startswith(prefix) and pid.isdecimal() and not _runs(int(pid)):
            _remove(sibling)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            _remove(child)
        path.rmdir()
    else:
        path.unlink(missing_ok=True)
