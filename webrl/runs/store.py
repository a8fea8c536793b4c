"""JSON and JSONL in and out: whole files atomically, files that grow episode by episode line by line.

A torn last line (a kill in mid-write) is cut off when a growing file is opened again. All that was appended is on the
disk when the file is closed, and whole files when they are renamed; a stage's marker is written after both.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

import orjson

from webrl.errors import DataError
from webrl.runs.disk import atomic_path, full_disk_named, make_folder, sync_folder
from webrl.runs.text import dump_json, valid_text
from webrl.types import Record

R = TypeVar("R", bound=Record)

MAX_JSON_BYTES = 256 << 20
"""Bytes of one JSON text, a line of JSONL or a whole file: a hundred times the longest trajectory of an 8B model."""
_TO_UTF8 = "text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW"
ZIP = rb"PK\x03\x04"
_OTHER = {
    rb"\x1f\x8b": "gzip; unpack it: gzip -dc FILE > NEW",
    rb"BZh": "bzip2; unpack it: bzip2 -dc FILE > NEW",
    rb"\xfd7zXZ\x00": "xz; unpack it: xz -dc FILE > NEW",
    rb"\x28\xb5\x2f\xfd": "Zstandard; unpack it: zstd -dc FILE > NEW",
    ZIP: "zip; unpack it: unzip FILE",
    rb"7z\xbc\xaf\x27\x1c": "7z; unpack it: 7z x FILE",
    rb"(?s).{256}\x00ustar": "tar; unpack it: tar -xf FILE",
    rb"version https://git-lfs": "a Git LFS pointer instead of its content; run `git lfs pull` there",
    rb"PAR1": "Parquet; convert it: pandas.read_parquet('FILE').to_json('NEW', orient='records', lines=True)",
    codecs.BOM_UTF16_LE: _TO_UTF8,
    codecs.BOM_UTF16_BE: _TO_UTF8,
}
"""What files begin with (patterns) that nothing here reads, though what is in them may be; and what makes it so."""


def write_text(path: Path, text: str) -> None:
    """Write a whole file atomically and durably."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(valid_text(text))


def write_json(path: Path, data: Any) -> None:
    """Write indented JSON atomically."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n")


def open_input(path: Path, admitted: bytes = rb"(?!)") -> BufferedReader:
    """Open a file for reading: text, or what begins with the pattern `admitted`. Raises DataError: missing, of a kind
    that nothing here reads, or not a regular file (opening a pipe without a writer would block forever).
    """
    try:
        if not path.is_file() and path.exists():
            raise DataError(
                f"{path}: {'a folder' if path.is_dir() else 'a pipe, socket or device'}, not a regular file"
            )
        file = path.open("rb")
        start = file.peek()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        missing = error if isinstance(error, FileNotFoundError) else None
        where = f" (looked in {Path.cwd()})" if missing and not path.is_absolute() else ""
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}{where}") from missing
    if (what := next((_OTHER[kind] for kind in _OTHER if re.match(kind, start)), "")) and not re.match(admitted, start):
        file.close()
        raise DataError(f"{path} is {what}")
    return file


def read_json(path: Path) -> Any:
    """Parse a JSON file. Raises DataError: missing or malformed."""
    with open_input(path) as file:
        try:
            data = file.read(MAX_JSON_BYTES + 1)
            if len(data) > MAX_JSON_BYTES:
                raise DataError(f"{path}: {path.stat().st_size} bytes; a JSON file has at most {MAX_JSON_BYTES}")
            return parse_line(data)
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: {error}") from None


def read_record(path: Path, cls: type[R]) -> R:
    """Return the record that a JSON file holds; errors as in `read_json`, and for what is no such record."""
    try:
        return cls.from_json(read_json(path))
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write_records(path: Path, records: Iterable[Record | dict[str, Any]]) -> int:
    """Write records, or other objects, as JSONL atomically; gives their number."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for record in records:
            file.write(dump_line(record))
            count += 1
    return count


def read_records(
    path: Path,
    cls: type[R],
    on_error: Callable[[str], None] | None = None,
    on_bytes: Callable[[int], Any] | None = None,
) -> Iterator[R]:
    """Stream records from JSONL. Raises DataError: missing file, or a malformed line (path and line number are quoted).

    Args:
        on_error: called with "path:line: reason" for a bad line, which is then skipped; None raises.
        on_bytes: called with the size of each line, for progress.
    """
    for number, data in read_lines(path, on_error, on_bytes):
        try:
            yield cls.from_json(data)
        except ValueError as error:
            _report(f"{path}:{number}: {error}", on_error)


def read_lines(
    path: Path, on_error: Callable[[str], None] | None = None, on_bytes: Callable[[int], Any] | None = None
) -> Iterator[tuple[int, Any]]:
    """Stream (line number, parsed JSON) from JSONL; blank lines are skipped. Arguments as in `read_records`."""
    with open_input(path) as file:
        if re.match(rb"(\xef\xbb\xbf)?\[\s*\{", file.peek()):
            raise DataError(f"{path} is one JSON array, not one object per line; convert it: jq -c '.[]' FILE > NEW")
        for number, line in numbered_lines(file, path, on_error):
            if on_bytes is not None:
                on_bytes(len(line))
            if not line.strip():
                continue
            try:
                data = parse_line(line)
            except ValueError as error:
                cut = "" if line.endswith(b"\n") else "; the file ends within this line: is it still being written?"
                _report(f"{path}:{number}: {error}{cut}", on_error)
                continue
            yield number, data


def parse_line(line: bytes) -> Any:
    """Return the JSON of a line, or of a whole file. Raises ValueError, which quotes its start."""
    line = line.removeprefix(codecs.BOM_UTF8)
    try:
        value = orjson.loads(line)
        if orjson.dumps(value) != line.strip():  # not as we write it: orjson keeps the last of several of one name
            json.loads(line, object_pairs_hook=refuse_twice)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"malformed JSON ({error}): {line[:80]!r}") from None
    return value


def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's content. Raises ValueError for a name that it has twice: no one knows which one counts."""
    if len(found := dict(pairs)) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has {name!r:.80} twice: keep one")
    return found


def numbered_lines(
    file: IO[bytes], path: Path, on_error: Callable[[str], None] | None = None, before: int = 0
) -> Iterator[tuple[int, bytes]]:
    """Yield (number, line) of an open file, never more than `MAX_JSON_BYTES` in memory; a longer line is an error as in
    `read_records`. `before`: lines of the file before the place that it is read from.
    """
    number = before
    while line := file.readline(MAX_JSON_BYTES + 1):
        number += 1
        if len(line) > MAX_JSON_BYTES:
            size = len(line)
            while not line.endswith(b"\n") and (line := file.readline(1 << 20)):
                size += len(line)
            _report(f"{path}:{number}: a line of {size} bytes, more than {MAX_JSON_BYTES}; is it JSONL?", on_error)
            continue
        yield number, line


def dump_line(record: Record | dict[str, Any]) -> bytes:
    """Return one JSONL line of a record, as `to_json` has it."""
    return dump_json(record, option=orjson.OPT_APPEND_NEWLINE)


class Appender(AbstractContextManager["Appender"]):
    """A JSONL file that grows one record at a time.

    A line outlives this process once `append` has returned, and a power failure once it is synced: a thread does that
    as lines come, one sync for all that came during the sync before, so that rollouts do not wait for the disk.
    """

    def __init__(self, path: Path) -> None:
        make_folder(path.parent)
        cut_torn_line(path)
        is_new = not path.exists()
        self._path = path
        self._file: IO[bytes] = path.open("ab")
        if is_new:
            sync_folder(path.parent)
        self._due = threading.Event()
        self._closing = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._sync_lines, name=f"sync {path.name}", daemon=True)
        self._thread.start()

    def append(self, record: Record) -> None:
        """Add one line. Raises OSError: it, or an earlier one, could not be written."""
        with full_disk_named(self._path):
            if self._error:
                raise self._error
            self._file.write(dump_line(record))
            self._file.flush()
        self._due.set()

    def close(self) -> None:
        """Wait until all lines are on the disk, and close. Raises OSError: one could not be written."""
        if self._file.closed:
            return
        self._closing = True
        self._due.set()
        self._thread.join()
        with full_disk_named(self._path), self._file:
            if self._error:
                raise self._error
            os.fsync(self._file.fileno())

    def _sync_lines(self) -> None:
        while self._due.wait() and not self._closing:
            self._due.clear()
            try:
                os.fsync(self._file.fileno())
            except OSError as error:
                self._error = error  # the kernel reports a lost write once: a later sync would succeed
                return

    def __exit__(self, *exc: object) -> None:
        self.close()


def cut_torn_line(path: Path) -> None:
    """Cut off half a last line (its writer was killed), or end a whole one; a missing file is fine."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.seek(end)
            try:
                parse_line(file.read())
                file.write(b"\n")
            except ValueError:
                file.truncate(end)


def _report(message: str, on_error: Callable[[str], None] | None) -> None:
    if on_error is None:
        raise DataError(message)
    on_error(message)


def count_lines(path: Path) -> int:
    """Return the number of lines of a file; 0 if there is none."""
    if not path.exists():
        return 0
    with open_input(path) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
