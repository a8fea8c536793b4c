"""What a disk and a clock can do to a run: loss of power, no room, slowness, jumps of time; by chaos_shim.c.

Loss of power follows a journalling file system (ext4, XFS): creations, renames and removals reach the disk in their
order, at the latest with the next fsync of anything; a file's content reaches it with an fsync of that file, and of
what was written since, some part or nothing. `lose_power` puts a folder into one of the states that this allows.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("chaos_shim.c")


def build_shim(folder: Path) -> Path | None:
    """Compile; None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = folder / "chaos_shim.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return target


def power_environment(run: Path, log: Path) -> dict[str, str]:
    """Variables of a life that may lose power; `log` is emptied."""
    shutil.rmtree(log, ignore_errors=True)
    log.mkdir(parents=True)
    return {"CHAOS_ROOT": str(run), "CHAOS_POWER": str(log)}


def full_environment(run: Path, counter: Path, room_bytes: int) -> dict[str, str]:
    """Variables of a life whose disk has so much room."""
    counter.write_bytes(struct.pack("=q", room_bytes))
    return {"CHAOS_ROOT": str(run), "CHAOS_BYTES": str(counter)}


def lose_power(run: Path, log: Path, rng: random.Random) -> None:
    """Take back what had not reached the disk, or some of it."""
    path = log / "log"
    operations = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
    dirty = {int(operation[1]) for operation in operations if operation[0] == "O"}
    last_sync = max((n for n, operation in enumerate(operations) if operation[0] == "S"), default=-1)
    cut = rng.randint(last_sync + 1, len(operations))
    # Contents first: what is known of them hangs on the inode, whatever its name becomes.
    for file in [*run.rglob("*"), *log.glob("grave.*")]:
        if file.is_file() and not file.is_symlink() and file.stat().st_ino in dirty:
            _fall_back(file, log / f"snap.{file.stat().st_ino}", rng)
    for operation in reversed(operations[cut:]):
        _undo(operation, log)


def _fall_back(file: Path, snapshot: Path, rng: random.Random) -> None:
    """Some state between the last sync and now."""
    now = file.read_bytes()
    synced = snapshot.read_bytes() if snapshot.exists() else b""
    if now.startswith(synced):
        kept = now[: rng.choice((len(synced), rng.randint(len(synced), len(now))))]
    else:
        kept = synced
    if kept != now:
        # In place: other names of this file must see it too.
        with file.open("rb+") as handle:
            handle.write(kept)
            handle.truncate()


def _undo(operation: list[str], log: Path) -> None:
    kind, *rest = operation
    with contextlib.suppress(FileNotFoundError):
        if kind == "R":
            old, new, grave = rest
            Path(old).parent.mkdir(parents=True, exist_ok=True)
            Path(new).rename(old)
            _bring_back(log / grave, Path(new), grave)
        elif kind == "U":
            _bring_back(log / rest[1], Path(rest[0]), rest[1])
        elif kind == "O" and rest[2] == "1":
            Path(rest[1]).unlink()
        elif kind == "M":
            shutil.rmtree(rest[0])
        elif kind == "X":
            Path(rest[0]).mkdir(parents=True, exist_ok=True)


def _bring_back(grave: Path, path: Path, name: str) -> None:
    if name != "-":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(grave, path)
