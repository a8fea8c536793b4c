"""Numbers in hosted trackers, read back from what the trackers' own packages wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_builders import build_run

SECRET = "PLANTED-in-a-url-7"
PACKAGES = Path(f"{sys.prefix}-trackers")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_hosted_trackers_get_numbers_and_no_secret(tmp_path: Path, kind: str):
    if not (PACKAGES / kind).is_dir():
        pytest.skip(f"{kind} is not in {PACKAGES}: make engines")
    run = build_run(tmp_path / "run", num_phases=1, models={"actor": f"https://ann:{SECRET}@models.test/x"})
    config = run.config.read_text("utf-8")
    run.config.write_text(config.replace("runs_dir: runs", f"runs_dir: {tmp_path}"), encoding="utf-8")
    written = tmp_path / "written"
    work = tmp_path / "work"
    work.mkdir()
    for command in (["init", "-q"], ["remote", "add", "origin", f"https://ann:{SECRET}@git.test/x.git"]):
        subprocess.run(["git", *command], cwd=work, check=True, timeout=60)
    environment = os.environ | {
        "PYTHONPATH": f"{PACKAGES}:{os.environ.get('PYTHONPATH', '')}", "WANDB_MODE": "offline", "WANDB_SILENT": "true",
        "WANDB_DATA_DIR": str(written / "data"), "WANDB_CACHE_DIR": str(written / "cache"),
        "WANDB_CONFIG_DIR": str(written / "config"), "TRACKIO_DIR": str(written / "trackio"), "HOME": str(written),
    }  # fmt: skip
    script = str(Path(__file__).with_name("tracker_scripts.py"))
    command = [sys.executable, script, kind, str(run.path), str(written / "trackio")]
    done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "is left out from now on" not in done.stderr, done.stderr
    history: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[0])

    assert [(line["phase/step"], line["phase/eval.rate"]) for line in history if "phase/step" in line] == [
        (0, 0.5), (1, 0.75),
    ]  # fmt: skip
    for path in (*run.path.glob("wandb/**/*"), *written.rglob("*")):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path
