"""Numbers in hosted trackers, read back from what the trackers' own packages wrote."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import python
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
    variables = {
        "PYTHONPATH": f"{PACKAGES}:{os.environ.get('PYTHONPATH', '')}", "WANDB_MODE": "offline", "WANDB_SILENT": "true",
        "WANDB_DATA_DIR": str(written / "data"), "WANDB_CACHE_DIR": str(written / "cache"),
        "WANDB_CONFIG_DIR": str(written / "config"), "TRACKIO_DIR": str(written / "trackio"), "HOME": str(written),
    }  # fmt: skip
    done = python(Path(__file__).with_name("tracker_scripts.py"), kind, run.path, cwd=work, **variables)
    assert "is disabled from now on" not in done.stderr, done.stderr

    def kept() -> bytes:
        paths = [*run.path.glob("wandb/**/*"), *written.rglob("*")]
        return b"".join(path.read_bytes() for path in paths if path.is_file())

    until = time.monotonic() + 300  # the last records reach the disk a little after the run has ended
    while b"0.75" not in kept() and time.monotonic() < until:
        time.sleep(0.2)
    assert all(text in kept() for text in (b"eval.rate", b"0.5", b"0.75"))
    assert SECRET.encode() not in kept()
