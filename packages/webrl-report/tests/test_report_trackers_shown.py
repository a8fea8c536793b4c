"""Charts and example episodes in the trackers, read back from what the trackers' own packages wrote."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from report_builders import build_run, task, trajectory

from webrl.config import load_config
from webrl.reports.trackers import open_trackers
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.types import Trajectory
from webrl_report.page.charts import Figure, Point, interval_chart
from webrl_report.page.facts import read_run
from webrl_report.page.sections import replay, success
from webrl_report.page.showcase import Showcase, examples

SECRET = "PLANTED-in-a-url-7"
HOSTILE = f"Open https://ann:{SECRET}@shop.test/?token={SECRET} | <script>alert(1)</script>\x1b[2J\nand go"
PACKAGES = Path(f"{sys.prefix}-trackers")
CHARTS = {
    f"report/{name}"
    for name in ("success-by-phase", "perplexity", "calibration", "actor-loss", "critic-loss", "stages-over-time")
}


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


def test_tensorboard_gets_the_reports_charts_and_examples_of_each_phase(tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = hostile_run(tmp_path / "run")
    config = load_config(run.config).model_copy(
        update={"runs_dir": tmp_path, "name": "run", "trackers": ("tensorboard",)}
    )
    showcase = Showcase(run.path)
    with open_trackers(config) as trackers:
        trackers.show(showcase, 0)
        trackers.show(showcase, 1)
    events = EventAccumulator(str(run.path / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
    events.Reload()
    assert set(events.Tags()["images"]) >= CHARTS
    assert [event.step for event in events.Images("report/success-by-phase")] == [0, 1]
    shown = Image.open(io.BytesIO(events.Images("report/success-by-phase")[1].encoded_image_string))
    expected = success(read_run(run.path)).figures[0].pixels()
    assert np.array_equal(np.asarray(shown.convert("RGB")), expected)
    first, last = (e.tensor_proto.string_val[0].decode() for e in events.Tensors("report/examples/text_summary"))
    assert first.count("\n") == 11  # head, ruler, and two episodes of each of five kinds
    assert "judged wrongly" in first
    assert "phase_01/trajectories.jsonl" in last
    stars = "&#42;" * 3
    assert f"https://{stars}@shop.test/?token={stars} &#124; &lt;script&gt;alert(1)&lt;/script&gt;␛&#91;2J and" in last
    written = b"".join(path.read_bytes() for path in (run.path / "tensorboard").iterdir())
    assert SECRET.encode() not in written


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wandb", "trackio"])
def test_hosted_trackers_get_pictures_and_tables_and_no_secret(tmp_path: Path, kind: str):
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
    media = run.path / "wandb" / "latest-run" / "files" if kind == "wandb" else written / "trackio" / "media"
    last = [line for line in history if line.get("report/step") == 1][-1]
    assert set(last) >= CHARTS
    chart = last["report/success-by-phase"]
    shown = np.asarray(Image.open(media / chart["path" if kind == "wandb" else "file_path"]).convert("RGB"))
    assert np.array_equal(shown, success(read_run(run.path)).figures[0].pixels())
    table = last["report/examples"]
    if kind == "wandb":
        data = json.loads((media / table["path"]).read_text("utf-8"))
        rows = [dict(zip(data["columns"], row, strict=True)) for row in data["data"]]
    else:
        rows = table["_value"]
    stars = "***" if kind == "wandb" else "&#42;" * 3
    assert f"https://{stars}@shop.test/?token={stars}" in [row["task"].split()[1] for row in rows]
    assert {row["kind"] for row in rows} == {"judged solved", "judged failed", "held-out, solved", "held-out, failed"}
    for path in (*run.path.glob("wandb/**/*"), *written.rglob("*")):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_examples_are_a_few_of_each_kind_wrong_labels_first(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=0)
    broken = trajectory(task("x"), 0, None)
    tried = [*read_records(run.phase(0).trajectories, Trajectory), broken]
    write_records(run.phase(0).trajectories, tried)
    rows = examples(read_run(run.path).phases[0])
    assert [row[0] for row in rows] == [
        "judged wrongly", "judged wrongly", "judged solved", "judged solved", "judged failed", "judged failed",
        "not judged", "held-out, solved", "held-out, solved", "held-out, failed", "held-out, failed",
    ]  # fmt: skip
    assert rows[0] == (
        "judged wrongly", "Do g00-0.", "miniwob.click-button", "failed", "1 (P(YES) 0.900)", "page_ended", 1,
        "click('7')", "p00-g00-0", "phase_00/trajectories.jsonl",
    )  # fmt: skip


def test_page_and_tracker_show_the_same_drawing_in_the_pages_colours():
    figure = interval_chart("Success", "", [("a", [Point(0, 0.2, 0.1, 0.3, ""), Point(1, 0.5, 0.4, 0.6, "")])])
    drawn = figure.svg("f7")
    assert 'stroke="var(--c1)"' in drawn
    assert "style=" not in drawn
    assert "#1a66a8" not in drawn  # a colour that a dark page could not change
    assert set(re.findall(r'\bid="([^-"]*)', drawn)) == {"f7"}
    assert set(re.findall(r'href="#([^-"]*)', drawn)) <= {"f7"}
    pixels = figure.pixels()
    assert pixels.shape == (2 * (17 + 260), 2 * 440, 3)
    assert (pixels == (0x1A, 0x66, 0xA8)).all(axis=2).sum() > 500
    assert np.array_equal(figure.pixels(), pixels)


def test_names_from_outside_break_no_drawing_and_keep_no_secret(recwarn: pytest.WarningsRecorder):
    def chart(name: str) -> Figure:
        points = [Point(0, 0.2, 0.1, 0.3, "")]
        return interval_chart(name, name, [(name, points), ("漢字 $x^2$ \x00", points)], x_label=name)

    hostile, masked = chart(HOSTILE), chart(HOSTILE.replace(f"ann:{SECRET}", "***").replace(SECRET, "***"))
    assert np.array_equal(hostile.pixels(), masked.pixels())
    drawn = hostile.svg("f0").partition("</desc>")[2]
    assert SECRET not in drawn
    assert "<script" not in drawn
    assert "\x1b" not in drawn
    assert not recwarn.list


def test_the_picture_of_a_phase_is_that_phases_own(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=1)
    showcase = Showcase(run.path)
    showcase.phase(0)
    last = showcase.phase(1).pictures["perplexity"]
    assert np.array_equal(last, replay(read_run(run.path)).figures[1].pixels())


def test_pictures_that_cannot_be_made_warn_and_stop_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = build_run(tmp_path / "run", num_phases=0)
    run.config.write_text("a: [", encoding="utf-8")
    config = load_config("demo").model_copy(update={"runs_dir": tmp_path, "name": "run", "trackers": ("tensorboard",)})
    with open_trackers(config) as trackers:
        trackers.show(Showcase(run.path), 0)
        trackers.log("phase", {"eval.rate": 0.5}, 0)
    assert caplog.messages[0].startswith("phase 0: no charts and examples for the trackers: ")
    assert len(caplog.messages) == 1
