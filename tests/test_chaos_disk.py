"""What the harness's disk does: it keeps what was synced, and may lose everything else, in the order of a journal."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
# Slow, that is, run after `make engines`, which sees to a compiler.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or not (shutil.which("cc") or shutil.which("gcc")),
        reason="needs a C compiler",
    ),
]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("chaos_disk")


def run(shim: Path, folder: Path, script: str, env: dict[str, str], *how: str) -> subprocess.CompletedProcess[str]:
    (folder / "run").mkdir(exist_ok=True)
    script = f"import os, sys, time\nos.chdir({str(folder / 'run')!r})\n{script}"
    return subprocess.run(
        [sys.executable, *(how or ("-I", "-S", "-c")), script],
        env=os.environ | env | {"LD_PRELOAD": str(shim)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


WRITE = """
file = open("lines.jsonl", "w")
for number in range(3):
    file.write(f"{number}\\n")
    file.flush()
    os.fsync(file.fileno())
file.write("not synced\\n")
file.flush()
with open("old", "w") as kept:
    kept.write("old")
    kept.flush()
    os.fsync(kept.fileno())
with open(".new", "w") as unsynced:
    unsynced.write("new")
os.replace(".new", "old")
os.unlink("lines.jsonl")
"""


def states(disk: ModuleType, shim: Path, folder: Path) -> set[tuple[str | None, str | None]]:
    """What `lines.jsonl` and `old` may hold after a loss of power."""
    found = set()
    for seed in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        done = run(shim, folder, WRITE, disk.power_environment(folder / "run", folder / "power"))
        assert done.returncode == 0, done.stderr
        disk.lose_power(folder / "run", folder / "power", random.Random(seed))
        left = [folder / "run" / name for name in ("lines.jsonl", "old")]
        found.add(tuple(path.read_text() if path.exists() else None for path in left))
    return found


def test_power_loss_keeps_what_was_synced_and_loses_the_rest_in_order(disk: ModuleType, tmp_path: Path) -> None:
    found = states(disk, disk.build_shim(tmp_path), tmp_path / "disk")
    lines = {line for line, _ in found}
    assert all(line is None or line.startswith("0\n1\n2\n") for line in lines)
    assert {None, "0\n1\n2\n"} <= lines, "the removal, and what was not synced, may be lost or not"
    assert ("0\n1\n2\n", "old") in found, "the rename may be lost"
    assert any(old == "" for _, old in found), "a rename of what was not synced leaves an empty file"
    assert all(line is not None or old != "old" for line, old in found), "the later removal never without the rename"


def test_a_full_disk_says_so_and_a_jump_moves_the_wall_clock_alone(disk: ModuleType, tmp_path: Path) -> None:
    shim = disk.build_shim(tmp_path)
    script = "for name in 'ab':\n    with open(name, 'wb') as file:\n        file.write(b'x' * 900)"
    done = run(shim, tmp_path, script, disk.full_environment(tmp_path / "run", tmp_path / "room", 1000))
    assert "[Errno 28] No space left on device" in done.stderr
    assert [(tmp_path / "run" / name).stat().st_size for name in "ab"] == [900, 100]
    done = run(shim, tmp_path, "print(time.time(), time.monotonic())", {"CHAOS_JUMP_S": str(30 * 86400)})
    wall, steady = map(float, done.stdout.split())
    assert abs(wall - time.time()) > 29 * 86400
    assert abs(steady - time.monotonic()) < 86400


def test_a_run_folder_is_free_at_once_after_a_loss_of_power(disk: ModuleType, tmp_path: Path) -> None:
    shim, run_dir = disk.build_shim(tmp_path), tmp_path / "run"
    hold = "from pathlib import Path\nfrom webrl.runs.lock import hold_run\nwith hold_run(Path('.').absolute()):\n    "
    for seed in range(3):
        env = disk.power_environment(run_dir, tmp_path / "power")
        done = run(shim, tmp_path, hold + "os.kill(os.getpid(), 9)", env, "-c")
        assert done.returncode == -9, done.stderr
        disk.lose_power(run_dir, tmp_path / "power", random.Random(seed))
    done = run(shim, tmp_path, hold + "pass", {}, "-c")
    assert (done.returncode, done.stderr) == (0, ""), "neither waiting nor refused"
