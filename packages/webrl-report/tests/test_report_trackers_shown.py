"""Charts with hostile names, and what the trackers' own packages have written."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_builders import build_run

from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.types import Trajectory
from webrl_report.page.charts import Figure, Point, interval_chart

SECRET = "PLANTED-in-a-url-7"
HOSTILE = f"Open https://ann:{SECRET}@shop.test/?token={SECRET} | <script>alert(1)</script>\x1b[2J\nand go"
PACKAGES = Path(f"{sys.prefix}-trackers")


def hostile_run(path: Path) -> RunFolder:
    """A finished run of two phases whose tasks, pages, actions and names hold a secret and markup."""
    run = build_run(path, num_phases=1, models={"actor": f"https://ann:{SECRET}@models.test/x"})
    for phase in (0, 1):
        folder = run.phase(phase)
        tried = list(read_records(folder.trajectories, Trajectory))
        step = dataclasses.replace(tried[0].steps[0], action=HOSTILE, response=HOSTILE)
        tried[0] = dataclasses.replace(tried[0], instruction=HOSTILE, steps=(step,), final_observation=HOSTILE)
        write_records(folder.trajectories, tried)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_hosted_trackers_get_numbers_and_no_secret(tmp_path: Path, kind: str):
    if not (PACKAGES / kind).is_dir():
        pytest.skip(f"{kind} is not in {PACKAGES}: make engines")
    run = hostile_run(tmp_path / "run")
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


def test_a_drawing_is_in_the_pages_colours():
    figure = interval_chart("Success", "", [("a", [Point(0, 0.2, 0.1, 0.3, ""), Point(1, 0.5, 0.4, 0.6, "")])])
    drawn = figure.svg("f7")
    assert 'stroke="var(--c1)"' in drawn
    assert "style=" not in drawn
    assert "#1a66a8" not in drawn  # a colour that a dark page could not change
    assert set(re.findall(r'\bid="([^-"]*)', drawn)) == {"f7"}
    assert set(re.findall(r'href="#([^-"]*)', drawn)) <= {"f7"}


def test_names_from_outside_break_no_drawing_and_keep_no_secret(recwarn: pytest.WarningsRecorder):
    def chart(name: str) -> Figure:
        points = [Point(0, 0.2, 0.1, 0.3, "")]
        return interval_chart(name, name, [(name, points), ("漢字 $x^2$ \x00", points)], x_label=name)

    drawn = chart(HOSTILE).svg("f0").partition("</desc>")[2]
    assert SECRET not in drawn
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    assert not recwarn.list
