"""Trackers and what feeds them, with real TensorBoard files."""

import json
import logging
from pathlib import Path

import pytest

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.reports.trackers import Trackers, open_trackers


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


def test_a_failing_log_call_warns_once_and_the_others_go_on(tmp_path, caplog):
    broken, listing = Broken(), Listing()
    with caplog.at_level(logging.WARNING), Trackers(tmp_path, {"broken": broken, "listing": listing}) as trackers:
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


def test_new_whole_lines_only_are_forwarded(tmp_path):
    path = tmp_path / "phase_01" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"name": "critic", "step": 1, "critic/loss": 9.0}) + "\n", encoding="utf-8")
    listing = Listing()
    with Trackers(tmp_path, {"listing": listing}), path.open("a", encoding="utf-8") as file:
        line = {"name": "actor", "step": 2, "actor/loss": 0.5, "actor/advantages": [1, 2.0], "actor/note": "text"}
        file.write(json.dumps(line) + "\n" + "not json\n" + '{"name": "torn", "st')
    assert listing.seen == [("phase_01/actor", {"loss": 0.5}, 2), "closed"]


def test_a_file_that_a_resumed_trainer_shortened_is_followed(tmp_path):
    path = tmp_path / "phase_01" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps({"name": "actor", "step": 1, "actor/loss": 9.0}) + "\n" * 50, encoding="utf-8")
    listing = Listing()
    with Trackers(tmp_path, {"listing": listing}) as trackers:
        path.write_text("", encoding="utf-8")
        trackers._forward()
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"name": "actor", "step": 1, "actor/loss": 8.0}) + "\n")
    assert listing.seen == [("phase_01/actor", {"loss": 8.0}, 1), "closed"]


@pytest.mark.parametrize("method", ["start", "join"])
def test_a_stop_as_the_reading_begins_or_ends_closes_the_trackers(tmp_path, monkeypatch, method):
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    listing = Listing()
    trackers = Trackers(tmp_path, {"listing": listing})
    monkeypatch.setattr(f"threading.Thread.{method}", stopped)
    with pytest.raises(KeyboardInterrupt), trackers:
        pass
    assert listing.seen == ["closed"]
