"""Labels set by hand: `RUN/hand_labels.jsonl`, which `webrl train-orm --data` reads.

A first label of a trajectory is appended; one that is changed or taken back is written anew, with all other lines as
they were. Neither is ever half there. The file has a lock of its own, so that two viewers do not lose each other's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from webrl.errors import DataError
from webrl.reward.data import JudgedExample, judged
from webrl.runs.disk import atomic_path, full_disk_named, sync_folder
from webrl.runs.store import dump_line
from webrl.types import Trajectory
from webrl.view.files import HAND_LABELS
from webrl.view.index import parse

_PATIENCE_S = 10.0


def set_label(run: Path, trajectory: Trajectory, success: int | None) -> None:
    """Record a judgement, 1 or 0; None takes back the one that was set.

    Raises:
        DataError: the trajectory is no whole attempt, or the folder cannot be written.
        OSError: the disk is full.
    """
    if success is not None and not trajectory.status.finished:
        raise DataError(
            f"{trajectory.trajectory_id}: ended by {trajectory.status.value}, which is no attempt to judge; "
            "an outcome model is not trained on it"
        )
    path = run / HAND_LABELS
    with _held(path), full_disk_named(path):
        lines = list(_lines(path))
        others = [line.rstrip(b"\n") + b"\n" for line in lines if _id_of(line) != trajectory.trajectory_id]
        own = [] if success is None else [dump_line(judged(trajectory, success).example)]
        if len(others) == len(lines):
            _append(path, own, after=lines[-1] if lines else b"\n")
        else:
            with atomic_path(path) as temporary:
                temporary.write_bytes(b"".join([*others, *own]))


@contextmanager
def _held(path: Path) -> Iterator[None]:
    try:
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_PATIENCE_S):
            yield
    except Timeout:
        raise DataError(f"{path}: another viewer is writing it; try again") from None
    except OSError as error:
        if error.errno is None or error.filename is None:
            raise
        raise DataError(f"{path}: cannot be written: {error.strerror}") from None


def _lines(path: Path) -> Iterator[bytes]:
    if path.is_file():
        with path.open("rb") as file:
            yield from file


def _id_of(line: bytes) -> str | None:
    """Which trajectory a line is about; None for a line that is no example: it is kept as it is."""
    try:
        return parse(JudgedExample, line).trajectory_id
    except ValueError:
        return None


def _append(path: Path, lines: list[bytes], after: bytes) -> None:
    """Add lines; a last line that somebody left without its end stays a line of its own."""
    if not lines:
        return
    is_new = not path.exists()
    if not after.endswith(b"\n"):
        lines = [b"\n", *lines]
    with path.open("ab") as file:
        file.write(b"".join(lines))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        sync_folder(path.parent)
