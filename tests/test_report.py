"""What a run prints, from hand-made summaries."""

import io
from itertools import pairwise
from typing import Any

from report_builders import evaluate, trajectory
from rich.console import Console

from webrl import stages
from webrl.config import RunConfig
from webrl.evaluate import rate_of, wilson_interval
from webrl.reports.run import overview_table, phase_metrics, phase_rows, phase_table, rate_text, standing_text
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
    assert standing_text(changed["eval"]) == (
        "96/240 = 40.0 % [34.0, 46.3]; over the start -11.1 points [-16.1, -6.0], paired"
    )


def test_a_phase_shows_counts_reasons_interval_and_seconds():
    rows = dict(phase_rows(phase(1, 96)))
    assert rows["kept"] == "80 (dropped: duplicate 30, infeasible 10)"
    assert rows["labelled success"] == "60 of 200 (30.0 %)"
    assert rows["labels"] == (
        "right by the environment's reward: 45 of 50 (90.0 %), balanced 90.0 %, "
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
    monkeypatch.setattr("webrl.suites.miniwob.suite.MiniWoB.eval_tasks", lambda self, config: tasks)
    for phase in outcomes:
        stages.evaluate(stages.Context(RunConfig(), folder, phase))
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["phase 2 is worse than the supervised start: held-out seeds, -46.7 points [-61.9, -25.3], paired"]
