"""`make chaos` in small: a power failure, and a kill of each process that a run leans on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.browser
@pytest.mark.slow
def test_a_kill_of_each_kind_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/chaos.py", "--kills", "4", "--kinds", "power,worker,browser,judge"]
    done = subprocess.run(
        [*command, "--no-others", "--scratch", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    assert totals["kills"] >= 3
    assert not any(totals[name] for name in ("lost", "doubled", "hung", "left_running", "left_files", "differing"))
