"""A disk that fills up under a library that writes its files itself is the same one line as under our own writes."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from safetensors import SafetensorError

from webrl.runs.disk import full_disk_named


@pytest.mark.parametrize(
    "error",
    [
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_is_the_systems_error_whoever_writes(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left on device") as raised, full_disk_named(tmp_path / "model"):
        raise error
    assert raised.value.filename == str(tmp_path / "model")


def test_an_error_that_is_none_of_a_full_disk_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="file write failed"), full_disk_named(tmp_path / "model"):
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")
