"""Trackers and what they are fed, with real TensorBoard files."""

import logging
from pathlib import Path

import pytest

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.reports.trackers import Trackers, open_trackers
from webrl.training.metrics import MetricLog


class Broken:
    """A tracker whose disk is full."""

    def __init__(self) -> None:
        self.calls = 0

    def log(self, group, metrics, step):
        self.calls += 1
        raise OSError(28, "No space left on device")

    def close(self):
        raise AssertionError("a tracker that was left out is not closed")


class Listing:
    def __init__(self) -> None:
        self.seen = []

    def log(self, group, metrics, step):
        self.seen.append((group, dict(metrics), step))

    def close(self):
        self.seen.append("closed")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_gets_scalars_on_each_groups_own_axis(tmp_path):
    config = RunConfig(name="r", runs_dir=tmp_path, trackers=("tensorboard",))
    with open_trackers(config) as trackers:
        trackers.log("actor", {"loss": 0.5}, step=3)
        trackers.log("phase", {"eval.rate": 0.25}, step=1)
    found = scalars(tmp_path / "r" / "tensorboard")
    assert found == {"actor/loss": [(3, 0.5)], "phase/eval.rate": [(1, 0.25)]}


def test_a_failing_log_call_warns_once_and_the_others_go_on(caplog):
    broken, listing = Broken(), Listing()
    with caplog.at_level(logging.WARNING), Trackers({"broken": broken, "listing": listing}) as trackers:
        trackers.log("actor", {"loss": 1.0}, 1)
        trackers.log("actor", {"loss": 2.0}, 2)
    assert broken.calls == 1
    assert listing.seen == [("actor", {"loss": 1.0}, 1), ("actor", {"loss": 2.0}, 2), "closed"]
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_a_tracker_that_cannot_write_stops_the_run(tmp_path):
    (tmp_path / "r").write_text("not a folder", encoding="utf-8")
    with pytest.raises(UsageError, match="tracker 'tensorboard' cannot be set up"):
        open_trackers(RunConfig(name="r", runs_dir=tmp_path, trackers=("tensorboard",)))


def test_what_a_training_of_a_phase_writes_goes_to_the_trackers(tmp_path):
    listing = Listing()
    logs = {name: MetricLog(tmp_path / name / "metrics.jsonl", "actor") for name in ("phase_01", "orm_report")}
    logs["phase_01"].write(1, {"loss": 9.0})
    with Trackers({"listing": listing}):
        logs["orm_report"].write(1, {"loss": 9.0})
        logs["phase_01"].write(2, {"loss": 0.5, "advantages": [1, 2.0], "note": "text", "ended": True})
    logs["phase_01"].write(3, {"loss": 9.0})
    assert listing.seen == [("phase_01/actor", {"loss": 0.5}, 2), "closed"]
