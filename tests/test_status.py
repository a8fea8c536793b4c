"""`webrl status`, from hand-made run folders."""

import os
import time
from pathlib import Path

from report_builders import build_run, task, trajectory

from webrl import cli
from webrl.cli.status import status
from webrl.phase import STAGES
from webrl.runs.folder import RunFolder, seconds_left
from webrl.runs.lock import hold_run, who_works_in
from webrl.runs.store import write_records

NAMES = list(STAGES)


def interrupted(path: Path, stage: str) -> RunFolder:
    """A run of three phases that stopped in a stage of phase 2."""
    run = build_run(path, num_phases=3, rollout={"num_generations": 2})
    for number, names in ((2, NAMES[NAMES.index(stage) :]), (3, NAMES)):
        for name in names:
            (run.phase(number).path / "stages" / f"{name}.json").unlink()
    return run


def test_a_finished_run_says_so_and_is_the_newest_where_none_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build_run(tmp_path / "runs" / "run", num_phases=1)
    assert cli.main(["status"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "run       runs/run, 1 phase after the supervised start",
        "state     finished",
        "phase 0   8/30 = 26.7 % [14.2, 44.4] of held-out seeds",
        "phase 1   10/30 = 33.3 % [19.2, 51.2] of held-out seeds",
    ]


def test_a_run_that_nobody_works_on_says_where_it_stands_and_what_is_left(tmp_path: Path):
    rows = dict(status(interrupted(tmp_path / "run", "rollout").path))
    assert rows["state"] == "not running; the same `webrl run` resumes from here"
    assert rows["phase"] == "2 of 3"
    assert rows["stage"] == "rollout, took 6.0 s in phase 1"
    assert rows["episodes"] == "10 of 20"  # ten tasks, two attempts at each
    # Phase 1 took six times 6 s and 30 s of training; of phase 2 four stages and training are left.
    assert rows["left"] == "about 54.0 s of this phase, 2 min 0 s of the run"
    assert "so far" not in rows  # a model's instructions have no reward of the environment's own


def test_a_run_at_work_tells_its_rate_and_its_success_so_far(tmp_path: Path):
    run = interrupted(tmp_path / "run", "eval")
    with hold_run(run.path):
        # As if training had ended, and the evaluation begun, in a minute.
        soon = time.time() + 60
        os.utime(run.phase(2).path / "stages" / "accept.json", (soon, soon))
        rows = dict(status(run.path))
        assert rows["state"].startswith("at work: `")
        assert rows["stage"].startswith("eval, for 0.0 s, took 6.0 s in phase 1")
        assert rows["so far"] == "15/30 = 50.0 % [33.2, 66.8], by the environment's reward"
    assert who_works_in(run.path) is None


def test_a_stage_that_an_earlier_process_began_has_no_rate(tmp_path: Path):
    run = interrupted(tmp_path / "run", "rollout")
    long_ago = time.time() - 3600
    os.utime(run.phase(2).path / "stages" / "filter-tasks.json", (long_ago, long_ago))
    with hold_run(run.path):
        rows = dict(status(run.path))
    assert rows["stage"] == "rollout, took 6.0 s in phase 1"
    assert rows["episodes"] == "10 of 20"


def test_training_tells_its_steps_and_labels_their_number(tmp_path: Path):
    assert dict(status(interrupted(tmp_path / "one", "train").path))["steps"] == "critic 8, actor 8"
    assert dict(status(interrupted(tmp_path / "two", "label").path))["labels"] == "10 of 10"


def test_the_first_phases_leave_the_time_unknown(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=2)
    for name in NAMES[1:]:
        (run.phase(0).path / "stages" / f"{name}.json").unlink()
    rows = dict(status(run.path))
    assert rows["left"] == "not known before a phase like this one has finished"
    assert seconds_left(run, NAMES, 0, 3) == (None, None)


def test_a_damaged_marker_and_torn_lines_are_no_obstacle(tmp_path: Path):
    run = interrupted(tmp_path / "run", "rollout")
    (run.phase(1).path / "stages" / "rollout.json").write_text("{}")
    with run.phase(2).trajectories.open("ab") as file:
        file.write(b'{"trajectory_id": "to')
    rows = dict(status(run.path))
    assert rows["stage"] == "rollout"
    assert rows["episodes"] == "10 of 20"
    assert rows["left"] == "not known before a phase like this one has finished"


def test_success_so_far_counts_the_episodes_that_have_a_reward(tmp_path: Path):
    run = interrupted(tmp_path / "run", "rollout")
    tried = [trajectory(task(f"t{n}"), 2, reward) for n, reward in enumerate((1.0, 0.0, None))]
    write_records(run.phase(2).trajectories, tried)
    assert dict(status(run.path))["so far"] == "1/2 = 50.0 % [9.5, 90.5], by the environment's reward"
