"""What a run prints, from hand-made summaries; trackers with real TensorBoard files."""

import io
import json
import logging
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_builders import evaluate, trajectory
from rich.console import Console

from webrl import stages
from webrl.config import RunConfig
from webrl.evaluate import rate_of, wilson_interval
from webrl.reports.run import overview_table, phase_metrics, phase_rows, phase_table, rate_text
from webrl.reports.trackers import Trackers, open_trackers
from webrl.runs.clock import PlainProgress, pace, progress, time_left
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.types import Trajectory


def rate(successes: int, episodes: int) -> dict[str, Any]:
    interval = wilson_interval(successes, episodes)
    return {"successes": successes, "episodes": episodes, "rate": successes / episodes, "ci95": interval, "errors": 0}


def phase(number: int, successes: int) -> dict[str, Any]:
    sites = {"blind": (2, 8), "seeing": (2, 9), "easy": (10, 10)}
    by_site = {site: {"num": 10, "num_success": won, "num_agree": right} for site, (won, right) in sites.items()}
    agreement = {"num": 50, "true_positive": 25, "true_negative": 20, "balanced_accuracy": {"value": 0.9}}
    return {
        "phase": number,
        "num_generated": 120,
        "num_kept": 80,
        "dropped": {"duplicate": 30, "infeasible": 10, "malformed": 0},
        "num_rollouts": 240,
        "rollout_status": {"page_ended": 200, "step_limit": 40},
        "num_labelled_success": 60,
        "num_replayed": 300,
        "label": {"num_labelled": 200, "agreement": agreement | {"by_site": by_site}},
        "losses": {"critic_loss": 0.25, "critic_lr": 1e-6, "critic_accuracy": 0.75, "actor_loss": 0.125},
        "eval": rate(successes, 240) | {"by_task": {"click": rate(successes // 10, 24)}, "heldout_types": rate(3, 60)},
        "seconds": {"rollout": 50.2, "train": 69.8},
        "peak_mib": {"rollout": 1024.0, "train": 2048.0},
    }


def render(renderable: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_phase_says_how_it_stands_against_the_start():
    changed = phase(1, 96)
    changed["eval"]["over_start"] = {"difference": -0.111, "ci95": [-0.161, -0.06], "tasks": 240}
    rows = phase_rows(changed)
    after = [text for (name, _), (_, text) in pairwise(rows) if name == "held-out seeds"]
    assert after == ["-11.1 points [-16.1, -6.0], paired"]


def test_a_phase_shows_counts_reasons_interval_and_seconds():
    rows = dict(phase_rows(phase(1, 96)))
    assert rows["kept"] == "80 (dropped: duplicate 30, infeasible 10)"
    assert rows["labelled success"] == "60 of 200 (30.0 %)"
    assert rows["labels"] == (
        "agree with the environment's reward: 45 of 50 (90.0 %), balanced accuracy 90.0 %, "
        "no better than a constant on 1 of 3 sites"
    )
    assert rows["critic"] == "loss 0.25, accuracy 0.75"
    assert rows["actor"] == "loss 0.125"
    assert rows["held-out seeds"] == "96/240 = 40.0 % [34.0, 46.3]"
    assert rows["seconds"] == "rollout 50, train 70"
    assert rows["peak memory"] == "2.00 GiB (train)"


def test_a_phase_says_in_one_line_of_which_task_types_steps_are_replayed():
    by_type = {f"miniwob.t{i}": 20 - i for i in range(11)}
    rows = dict(phase_rows(phase(1, 96) | {"num_replayed": 165, "replay": {"by_type": by_type}}))
    named = ", ".join(f"miniwob.t{i} {20 - i}" for i in range(8))
    assert rows["replayed steps"] == f"165 ({named}, 3 other types 33)"
    assert dict(phase_rows({"phase": 1, "num_replayed": 7}))["replayed steps"] == "7"


def test_a_phase_that_has_only_begun_shows_what_there_is():
    empty = {"phase": 0, "num_generated": 0, "num_kept": 240, "dropped": {}, "eval": {}, "seconds": {}, "peak_mib": {}}
    assert phase_rows(empty) == [("kept", "240")]
    assert "supervised start" in render(phase_table(empty))


def test_a_rate_names_crashed_episodes_and_rounds_its_interval_once():
    assert rate_text(rate(1, 2) | {"errors": 1}).endswith(", 1 crashed")
    assert rate_text({}) == ""
    for successes in range(235):
        low, high = wilson_interval(successes, 234)
        assert f"[{100 * low:.1f}, {100 * high:.1f}]" in rate_text(rate_of(successes, 234).to_json())


def test_the_overview_has_a_line_per_phase():
    shown = render(overview_table([phase(0, 80), phase(1, 120)]))
    assert "80/240 = 33.3 %" in shown
    assert "120/240 = 50.0 %" in shown
    assert "2.0" in shown


def test_metrics_for_trackers_are_flat_numbers_without_task_types():
    metrics = phase_metrics(phase(1, 96))
    assert metrics["eval.rate"] == 0.4
    assert metrics["dropped.duplicate"] == 30
    assert metrics["eval.heldout_types.successes"] == 3
    assert not any("by_task" in name or "ci95" in name for name in metrics)


def test_a_phase_that_is_worse_than_the_start_is_warned_of(tmp_path, monkeypatch, caplog):
    folder = RunFolder(tmp_path / "run")
    (folder.path).mkdir()
    evaluate(folder.phase(0), [True] * 20 + [False] * 10)
    tasks = [t.task for t in read_records(folder.phase(0).eval, Trajectory)]

    def play(config, tasks, actor, path, *, phase, **_):
        rewards = outcomes[phase]
        write_records(path, [trajectory(t, phase, float(r), prefix="e") for t, r in zip(tasks, rewards, strict=True)])

    outcomes = {1: [True] * 19 + [False] * 11, 2: [True] * 6 + [False] * 24}
    monkeypatch.setattr("webrl.stages.play", play)
    monkeypatch.setattr("webrl.suites.miniwob.MiniWoB.eval_tasks", lambda self, config: tasks)
    for phase in outcomes:
        stages.evaluate(stages.Context(RunConfig(), folder, phase))
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["phase 2 is worse than the supervised start: held-out seeds, -46.7 points [-61.9, -25.3], paired"]


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
    assert scalars(tmp_path / "r" / "tensorboard") == {"actor/loss": [(3, 0.5)], "phase/eval.rate": [(1, 0.25)]}


def test_a_failing_log_call_warns_once_and_the_others_go_on(tmp_path, caplog):
    broken, listing = Broken(), Listing()
    with caplog.at_level(logging.WARNING), Trackers(tmp_path, {"broken": broken, "listing": listing}) as trackers:
        trackers.log("actor", {"loss": 1.0}, 1)
        trackers.log("actor", {"loss": 2.0}, 2)
    assert broken.calls == 1
    assert listing.seen == [("actor", {"loss": 1.0}, 1), ("actor", {"loss": 2.0}, 2), "closed"]
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_new_whole_lines_only_are_forwarded_also_of_a_file_that_a_resumed_trainer_shortened(tmp_path):
    path, listing = tmp_path / "phase_01" / "metrics.jsonl", Listing()
    path.parent.mkdir()
    path.write_text(json.dumps({"name": "critic", "step": 1, "critic/loss": 9.0}) + "\n" * 99, encoding="utf-8")
    with Trackers(tmp_path, {"listing": listing}) as trackers:
        line = {"name": "actor", "step": 2, "actor/loss": 0.5, "actor/advantages": [1, 2.0], "actor/note": "text"}
        for step in (2, 1):
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | {"step": step}) + "\n" + "not json\n" + '{"name": "torn", "st')
            trackers._forward()
            path.write_text("", encoding="utf-8")
            trackers._forward()
    assert listing.seen == [*(("phase_01/actor", {"loss": 0.5}, step) for step in (2, 1)), "closed"]


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


def test_a_line_of_progress_has_count_rate_time_left_and_success():
    bar = PlainProgress(215, "rollout p01", "episodes", initial=15)
    bar.update(100)
    bar.set_postfix_str("success 50/100 = 50 % [40, 60]")
    assert bar.line(10.0) == (
        "rollout p01: 115 of 215 episodes, 10.0 a second, about 10.0 s left, success 50/100 = 50 % [40, 60]"
    )
    assert PlainProgress(None, "label", "trajectories").line(3.0) == "label: 0 trajectories"
    assert (pace(1, 40.0), pace(0, 9.0), time_left(4, 8.0, 0)) == ("1.5 a minute", "", "")


def test_progress_is_a_bar_on_a_terminal_and_lines_of_the_log_elsewhere(caplog, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with monkeypatch.context() as on_terminal:
        on_terminal.setattr(sys, "stderr", Terminal())
        with progress(3, "rollout p01", "episodes") as bar:
            bar.set_postfix_str("success 1/2")
            bar.update(2)
            assert "success 1/2" in str(bar)
    with caplog.at_level(logging.INFO, "webrl"):
        with progress(3, "quick", "steps") as bar:
            bar.update(3)
        assert caplog.messages == []
        monkeypatch.setattr("webrl.runs.clock.LINE_S", 0)
        with progress(3, "slow", "steps") as bar:
            bar.update()
            bar.update(2)
    assert [message.split(",")[0] for message in caplog.messages] == ["slow: 1 of 3 steps", "slow: 3 of 3 steps"]
