"""The chaos harness: `make chaos` in small, and a run folder on its disk after losses of power."""

import importlib
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import python

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.browser
@pytest.mark.slow
def test_a_kill_of_each_kind_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    arguments = ["--kills", "4", "--kinds", "power,worker,browser,judge", "--no-others", "--scratch", tmp_path]
    done = python(BENCHMARKS / "chaos.py", *arguments, cwd=BENCHMARKS.parent, timeout=1500)
    totals = json.loads(done.stdout.splitlines()[-1])
    assert totals["kills"] >= 3
    assert not any(totals[name] for name in ("lost", "doubled", "hung", "left_running", "left_files", "differing"))


@pytest.mark.slow  # run after `make engines`, which sees to a compiler
@pytest.mark.skipif(
    not sys.platform.startswith("linux") or not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler"
)
def test_a_run_folder_is_free_at_once_after_a_loss_of_power(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was synced stays, all else may be gone."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    disk = importlib.import_module("chaos_disk")
    shim, run_dir = disk.build_shim(tmp_path), tmp_path / "run"
    run_dir.mkdir()

    def hold(then: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        code = "import os\nfrom pathlib import Path\nfrom webrl.runs.lock import hold_run\n"
        code += f"with hold_run(Path({str(run_dir)!r})):\n    {then}"
        return python("-c", code, code=None, LD_PRELOAD=str(shim), **variables)

    for seed in range(3):
        done = hold("os.kill(os.getpid(), 9)", disk.power_environment(run_dir, tmp_path / "power"))
        assert done.returncode == -9, done.stderr
        disk.lose_power(run_dir, tmp_path / "power", random.Random(seed))
    done = hold("pass", {})
    assert (done.returncode, done.stderr) == (0, ""), "neither waiting nor refused"
