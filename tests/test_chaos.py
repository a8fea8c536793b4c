"""`make chaos` in small: every cheap kind once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.browser
@pytest.mark.slow
def test_a_kill_of_each_kind_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    kinds = "controller,power,full,worker,browser,renderer,judge"
    command = [sys.executable, "benchmarks/chaos.py", "--kills", "7", "--kinds", kinds, "--no-others"]
    done = subprocess.run(
        [*command, "--scratch", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    totals = json.loads(done.stdout.splitlines()[-1])
    assert totals["kills"] >= 6
    assert not any(totals[name] for name in ("lost", "doubled", "hung", "left_running", "left_files", "differing"))
