"""What a tracker has written, as JSON: `python tracker_scripts.py KIND RUN FOLDER`, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from webrl.config import load_config
from webrl.reports.trackers import open_trackers


def write(run: Path, kind: str) -> None:
    config = load_config(run / "config.yaml").model_copy(update={"trackers": (kind,)})
    with open_trackers(config) as trackers:
        for phase in (0, 1):
            trackers.log("phase", {"eval.rate": 0.5 + phase / 4}, phase)
            trackers.log(f"phase_{phase:02d}/actor", {"loss": 1.5, "advantages": [0.0, 1.0]}, 8)


def read_wandb(run: Path) -> list[dict[str, Any]]:
    """The lines of history of an offline run; its last records reach the disk a little after the run has ended."""
    from wandb.proto import wandb_internal_pb2

    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    found: list[Any] = []
    until = time.monotonic() + 300
    while not any(record.WhichOneof("record_type") == "exit" for record in found) and time.monotonic() < until:
        time.sleep(0.2)
        found = [wandb_internal_pb2.Record.FromString(data) for data in records(path.read_bytes())]
    return [_line(record.history) for record in found if record.WhichOneof("record_type") == "history"]


def _line(history: Any) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for item in history.item:
        name, *rest = item.nested_key or [item.key]
        value = json.loads(item.value_json)
        line[name] = line.get(name, {}) | {rest[0]: value} if rest else value
    return line


def records(data: bytes) -> Iterator[bytes]:
    """Records of a LevelDB log: blocks of 32 KiB, of parts with checksum, length and kind (1 whole, 4 last)."""
    block, at, parts = 32768, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        if not kind or at + 7 + size > len(data):  # not written yet
            return
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def read_trackio(folder: Path) -> list[dict[str, Any]]:
    with contextlib.closing(sqlite3.connect(folder / "webrl.db")) as database:
        return [json.loads(line) for (line,) in database.execute("SELECT metrics FROM metrics ORDER BY step, id")]


def main() -> None:
    kind, run, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    with contextlib.redirect_stdout(sys.stderr):
        write(run, kind)
        found = read_wandb(run) if kind == "wandb" else read_trackio(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
