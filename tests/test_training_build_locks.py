"""A build of torch extensions that was killed does not stop those after it."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from webrl.training.engines.deepspeed import drop_dead_locks

BUILDER = """
import sys
from torch.utils.file_baton import FileBaton
assert FileBaton(sys.argv[1]).try_acquire()
print("building", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "py311_cpu" / "op").mkdir(parents=True)
    return tmp_path / "py311_cpu" / "op" / "lock"


@pytest.mark.slow
def test_the_lock_of_a_living_builder_stays_and_that_of_a_killed_one_goes(
    lock: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = [sys.executable, "-c", BUILDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
        drop_dead_locks(grace_s=0)
        assert lock.exists()
        builder.kill()
        builder.wait()
    with caplog.at_level(logging.WARNING):
        drop_dead_locks(grace_s=1)
    assert not lock.exists()
    assert "a build that was killed" in caplog.text


def test_without_any_extensions_there_is_nothing_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "absent"))
    drop_dead_locks()
