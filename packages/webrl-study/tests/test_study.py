"""Studies of constructed run folders: plan, statistics by hand, missing, failed and refused cells; and a real one."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml
from processes import descendants, interrupt, living, python, wait_until

from webrl import cli
from webrl.config import load_config
from webrl.config.resources import shipped_configs
from webrl.errors import DataError, StageError
from webrl.phase import STAGES
from webrl.runs.folder import open_run
from webrl.runs.store import read_json, write_json, write_records
from webrl.types import Status, Task, Trajectory
from webrl_study.cells import FAILURES, check_config, find_reason, is_finished, link_start, num_finished, read_failures
from webrl_study.plan import Cell, Study, load_study
from webrl_study.report import (
    comparisons,
    csv_text,
    markdown_text,
    outcome_rows,
    phase_rows,
    record_machine,
    write_report,
)
from webrl_study.results import CellResult, read_results
from webrl_study.statistics import compare, estimate, rate_by_phase, spread, spread_interval

ROOT = Path(__file__).resolve().parents[3]
PLAN: dict[str, Any] = {
    "config": "demo", "name": "s", "seeds": [0, 1], "num_phases": 1, "overrides": {"actor": {"steps": 7}},
    "methods": {"default": {}, "awr": {"actor": {"objective": "awr"}}},
}  # fmt: skip


def study_of(folder: Path, **changes: Any) -> Study:
    path = folder / "study.yaml"
    path.write_text(
        yaml.safe_dump(PLAN | {"runs_dir": str(folder / "runs")} | changes, sort_keys=False), encoding="utf-8"
    )
    return load_study(path, {})


def episode(task_id: str, *, won: bool, split: str = "eval", policy: str = "pi0") -> Trajectory:
    task = Task(task_id=task_id, site="miniwob.click-button", split=split)
    status, reward = (Status.PAGE_ENDED, 1.0) if won else (Status.STEP_LIMIT, 0.0)
    return Trajectory(f"e-{task_id}", task, "Click.", 0, (), "", status, env_reward=reward, policy=policy)


def write_phase(cell: Cell, phase: int, seen: str, heldout: str = "", policy: str = "pi0", episodes: int = 3) -> None:
    """A finished phase; `seen` and `heldout` have a 1 for each task that was solved and a 0 for each other."""
    folder = cell.config.run_dir / f"phase_{phase:02d}"
    evaluated = [episode(f"t{i}", won=c == "1", policy=policy) for i, c in enumerate(seen)]
    evaluated += [episode(f"h{i}", won=c == "1", split="eval_heldout", policy=policy) for i, c in enumerate(heldout)]
    write_records(folder / "eval.jsonl", evaluated)
    write_records(folder / "tasks.jsonl", [Task(task_id=f"a{i}", site="x") for i in range(episodes)])
    write_records(folder / "trajectories.jsonl", [episode(f"a{i}", won=True) for i in range(episodes)])
    counts = {"train": {"critic_steps": 5, "actor_steps": 7, "actor_samples": 10, "actor_active": 4}}
    for stage in STAGES:
        data = {"counts": counts.get(stage, {}), "seconds": 60.0, "peak_mib": 1.0}
        write_json(folder / "stages" / f"{stage}.json", data)


def write_cells(study: Study, outcomes: Mapping[str, Sequence[str]]) -> None:
    """Start and cells; of each cell, the outcomes of the phases after the start, whose own are 0110."""
    for start in study.starts:
        write_phase(start, 0, "0110", "10")
    for cell in study.cells:
        if cell.name in outcomes:
            write_phase(cell, 0, "0110", "10")
            for phase, seen in enumerate(outcomes[cell.name], 1):
                write_phase(cell, phase, seen, "11", policy=f"pi{phase}")


def by_name(results: Sequence[CellResult]) -> dict[str, CellResult]:
    return {result.cell.name: result for result in results}


@pytest.mark.quick
def test_a_cell_is_an_ordinary_run_whose_command_gives_its_config(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert [cell.name for cell in study.starts] == ["start-seed0", "start-seed1"]
    assert [cell.name for cell in study.cells] == ["default-seed0", "awr-seed0", "default-seed1", "awr-seed1"]
    assert [cell.config.num_phases for cell in (study.starts[0], study.cells[0])] == [0, 1]
    for cell in (*study.starts, *study.cells):
        assert load_config(Path(cell.settings[0]), list(cell.settings[1:])) == cell.config
        assert cell.config.run_dir == tmp_path / "runs" / "s" / cell.name
        assert cell.config.actor.steps == 7


def test_a_method_of_which_nothing_is_written_is_the_run_config(tmp_path: Path) -> None:
    study = study_of(tmp_path, methods={"default": None, "webrl": {"actor": {"objective": "webrl"}}})
    assert study.config.methods["default"] == {}
    assert study.cells[0].settings == study_of(tmp_path, methods={"default": {}}).cells[0].settings


def test_switches_that_act_after_phase_0_may_differ_between_methods(tmp_path: Path) -> None:
    later = {"rollout": {"num_generations": 4}, "tasks": {"source": "fixed"}, "models": {"orm": "o"}}
    later["label"] = {"threshold": 0.3}
    assert study_of(tmp_path, methods={"default": {}, "a": later}).cells[1].config.rollout.num_generations == 4


def test_every_shipped_study_is_valid_and_its_cells_have_equal_budgets(webrl) -> None:
    assert {path.stem for path in shipped_configs("study")} >= {"study_demo"}
    for path in shipped_configs("study"):
        study = load_study(path, {})
        runs = [cell.config.model_dump_json(exclude={"name"}) for cell in study.cells]
        assert len(set(runs)) == len(runs), f"{path}: two methods are the same"
        for cell in study.cells:
            run = cell.config
            tasks = run.filter.max_tasks if run.tasks.source == "curriculum" else run.tasks.num_seed_tasks
            assert tasks, cell.name
            if study.config.name != "study_never_worse":  # each method is held against its own start
                assert tasks * run.rollout.num_generations == study.starts[0].config.tasks.num_seed_tasks, cell.name
            assert run.actor.steps, cell.name
            assert run.critic.steps or run.critic.epochs, cell.name
        lacks_demos = not all(demos.exists() for demos in study.config.demos)  # recorded by the commands at its top
        shown = webrl(2 * lacks_demos, "study", path.stem, "--dry-run")
        assert "demos: 'runs/demos' does not exist" in shown.err if lacks_demos else "webrl run" in shown.out


def test_an_estimate_is_the_mean_over_seeds_and_its_interval_is_the_bootstraps() -> None:
    rng = np.random.default_rng(0)
    same = estimate([[1.0, 1.0], [1.0, 1.0, 1.0]], rng)
    assert (same.value, same.low, same.high, same.seeds) == (1.0, 1.0, 1.0, 2)
    # Seeds weigh alike, however many tasks they have: (1/2 + 1/4) / 2.
    assert estimate([[0.0, 1.0], [0.0, 0.0, 0.0, 1.0]], rng).value == 0.375
    # One seed of 400 tasks: the bootstrap's deviation is sqrt(p (1 - p) / n) = 0.02.
    one = estimate([[1.0] * 80 + [0.0] * 320], rng)
    assert one.low == pytest.approx(0.2 - 1.96 * 0.02, abs=0.004)
    assert one.high == pytest.approx(0.2 + 1.96 * 0.02, abs=0.004)
    # Two seeds that are certain but differ: the draws of two seeds are 0, 1/2 and 1.
    two = estimate([[0.0] * 9, [1.0] * 9], rng)
    assert (two.value, two.low, two.high) == (0.5, 0.0, 1.0)
    with pytest.raises(ValueError, match="at least one seed"):
        estimate([[]], rng)


def test_differences_are_paired_by_seed_and_task() -> None:
    first = [{"a": True, "b": True, "c": False, "d": False}, {"a": True, "b": False}]
    second = [{"d": False, "c": True, "b": False, "a": True}, {"b": False, "a": True}]
    found = compare(first, second, np.random.default_rng(0))
    assert found.difference.value == 0.0  # +1, 0, −1, 0 and 0, 0
    assert (found.won, found.lost) == (1, 1)
    # All tasks alike in both: no interval, although both rates are uncertain.
    same = compare(second, second, np.random.default_rng(0)).difference
    assert (same.low, same.high) == (0.0, 0.0)
    with pytest.raises(ValueError, match="differ, such as b"):
        compare([{"a": True}], [{"a": True, "b": True}], np.random.default_rng(0))


def test_the_tables_hold_hand_computed_numbers(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    ended = {"default-seed0": ["1110"], "default-seed1": ["1100"], "awr-seed0": ["1111"], "awr-seed1": ["1111"]}
    write_cells(study, ended)
    results = read_results(study, {})
    assert all(result.state == "finished" for result in results)
    awr = [r for r in results if r.cell.method == "awr"]
    rates = [rate.value for rate in rate_by_phase(awr, "eval", np.random.default_rng(0)) if rate]
    assert rates == [0.5, 1.0]
    against = comparisons(study, results)
    found = against["awr"]
    assert found["eval"].difference.value == pytest.approx((0.25 + 0.5) / 2)
    assert (found["eval"].won, found["eval"].lost) == (3, 0)
    assert found["eval_heldout"].difference.value == 0.0
    rows = list(csv.DictReader(io.StringIO(csv_text(phase_rows, results))))
    assert len(rows) == 8
    last = next(r for r in rows if (r["method"], r["seed"], r["phase"]) == ("default", "1", "1"))
    assert (last["held_out_seeds_successes"], last["held_out_seeds_episodes"]) == ("2", "4")
    assert (last["held_out_types_successes"], last["held_out_types_episodes"]) == ("2", "2")
    assert (last["training_episodes"], last["actor_steps"], last["critic_steps"]) == ("3", "7", "5")
    text = markdown_text(study, results, against)
    assert "| awr | 2 | 50.0 [" in text
    assert " +50.0 [" in text  # over the start
    assert "Not equal" not in text
    write_phase(study.cells[1], 1, "1111", "11", episodes=2)
    results = read_results(study, {})
    text = markdown_text(study, results, comparisons(study, results))
    assert "Not equal: training episodes, from 2 (awr-seed0) to 3 (default-seed0)." in text


def test_a_difference_survives_if_zero_lies_outside_of_both_intervals(tmp_path: Path) -> None:
    # Differences of 2, 4 and 6 points: SD 2, t of two degrees of freedom 4.3027, so 4 ± 4.3027 * 2 / √3.
    assert spread_interval([0.02, 0.04, 0.06]) == pytest.approx((0.04 - 0.049683, 0.04 + 0.049683), abs=1e-6)
    assert spread_interval([0.02, 0.06]) is None

    def seeds(*solved: int) -> list[dict[str, bool]]:
        return [{str(i): i < n for i in range(100)} for n in solved]

    def verdict(first: list[dict[str, bool]], second: list[dict[str, bool]]) -> bool | None:
        return compare(first, second, np.random.default_rng(0)).survives

    assert verdict(seeds(70, 72, 71), seeds(50, 50, 50)) is True
    assert verdict(seeds(50, 50, 50), seeds(70, 72, 71)) is True
    assert verdict(seeds(90, 51, 55), seeds(50, 50, 50)) is False, "one run of three makes the difference"
    assert verdict(seeds(51, 51, 51), seeds(50, 50, 50)) is False, "one page of 100"
    assert verdict(seeds(90, 90), seeds(10, 10)) is None

    study = study_of(tmp_path, seeds=[0, 1, 2], overrides={"evaluate": {"temperature": [1, 0]}})
    outcomes = {"default": ["1000", "1100", "1110"], "awr": ["1111", "1111", "1111"]}
    write_cells(
        study, {f"{method}-seed{seed}": [row] for method in outcomes for seed, row in enumerate(outcomes[method])}
    )
    for cell in (*study.starts, *study.cells):
        for phase in cell.config.run_dir.glob("phase_*"):
            write_records(phase / "eval_t0.jsonl", [episode("t0", won=phase.name == "phase_01")])
    results = read_results(study, {})
    default = [r for r in results if r.cell.method == "default"]
    assert spread(default, "eval", 1) == pytest.approx(0.25)
    assert spread(default[:2], "eval", 1) is None
    text = markdown_text(study, results, comparisons(study, results))
    # 75, 50 and 25 points: 50 ± 4.3027 * 25 / √3.
    assert " | [-12.1, +112.1] | within the spread | " in text
    assert "| 25.0 | +0.0 [" in text
    assert "All seeds begin with one model" in text
    rows = list(csv.DictReader(io.StringIO(csv_text(outcome_rows, results))))
    assert len(rows) == 6 * 2 * (6 + 1)
    assert list(rows[0]) == ["method", "seed", "phase", "split", "page", "temperature", "outcome"]
    assert list(rows[0].values()) == ["default", "0", "0", "eval", "t0", "1", "0"]
    greedy = [(r["phase"], r["page"], r["outcome"]) for r in rows if r["temperature"] == "0"]
    assert greedy == [("0", "t0", "0"), ("1", "t0", "1")] * 6


def test_missing_failed_and_unfinished_cells_are_shown_and_left_out_of_the_pairs(tmp_path: Path) -> None:
    study = study_of(tmp_path, num_phases=2)
    write_cells(study, {"default-seed0": ["1110", "1110"], "awr-seed0": ["1111"], "default-seed1": ["1110"]})
    results = by_name(read_results(study, {"awr-seed0": "loss is nan"}))
    assert {name: result.state for name, result in results.items()} == {
        "default-seed0": "finished", "awr-seed0": "failed: loss is nan", "default-seed1": "1 of 2 phases",
        "awr-seed1": "missing",
    }  # fmt: skip
    assert comparisons(study, list(results.values())) == {}  # awr has no seed at the phase of the reference
    text = markdown_text(study, list(results.values()), {})
    assert "| awr-seed1 | missing |" in text
    assert "| awr-seed0 | failed: loss is nan |" in text
    assert "1 of 4 cells finished" in text
    assert {row["state"] for row in csv.DictReader(io.StringIO(csv_text(phase_rows, list(results.values()))))} >= {
        "missing"
    }


def test_a_cell_of_another_task_set_or_actor_is_refused(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds=[0])
    write_cells(study, {"default-seed0": ["1110"], "awr-seed0": ["1111"]})
    write_phase(study.cells[1], 0, "0110", "10", policy="another")
    with pytest.raises(StageError, match=r"awr-seed0 had a different starting point.*remove .*awr-seed0"):
        read_results(study, {})
    write_phase(study.cells[1], 0, "01101", "10")
    with pytest.raises(StageError, match=r"awr-seed0.phase_00.eval\.jsonl is not .*start-seed0"):
        read_results(study, {})
    write_phase(study.cells[1], 0, "0110", "10")
    write_phase(study.cells[1], 1, "011", "10")
    with pytest.raises(StageError, match=r"phase 1 was evaluated on other tasks than phase 0 \(1 differ, such as t3\)"):
        read_results(study, {})


def test_numbers_of_other_settings_are_not_taken_for_the_studys(tmp_path, webrl):
    study = study_of(tmp_path, seeds=[0])
    write_cells(study, {"default-seed0": ["1110"], "awr-seed0": ["1111"]})
    for cell in (*study.starts, *study.cells):
        open_run(cell.config)
    assert [result.state for result in read_results(study, {})] == ["finished"] * 2
    assert len(read_results(study_of(tmp_path, seeds=[0], num_phases=2), {})) == 2
    (tmp_path / "moved").mkdir()
    study.folder.rename(tmp_path / "moved" / "s")
    study_of(tmp_path, seeds=[0], runs_dir=str(tmp_path / "moved"))
    for options in (["--report"], []):
        error = webrl(1, "study", tmp_path / "study.yaml", "actor.lr=0.5", *options).err.splitlines()[-1]
        assert "start-seed0 was made with other settings (actor.lr: was 0.0001, now 0.5)" in error
    assert not (tmp_path / "moved" / "s" / "study.md").exists()


def test_a_study_that_has_nothing_left_to_run_keeps_the_machine_and_date_of_its_cells(tmp_path: Path) -> None:
    study = study_of(tmp_path, seeds=[0])
    write_cells(study, {"default-seed0": ["1110"], "awr-seed0": ["1111"]})
    record_machine(study, 3)
    machine = json.loads((study.folder / "study.json").read_text(encoding="utf-8")) | {"git_commit": "then"}
    write_json(study.folder / "study.json", machine)
    assert cli.main(["study", str(tmp_path / "study.yaml")]) == 0
    assert "commit then;" in (study.folder / "study.md").read_text(encoding="utf-8")


def test_the_start_is_linked_into_its_cells_but_what_they_judge_otherwise_is_left_out(tmp_path: Path) -> None:
    methods = {"default": {}, "awr": {"actor": {"objective": "awr"}}, "strict": {"label": {"threshold": 0.9}}}
    study = study_of(tmp_path, seeds=[0], methods=methods, overrides={"actor": {"objective": "webrl"}})
    start = study.starts[0]
    write_phase(start, 0, "0110", "10")
    assert is_finished(start)
    folder = start.config.run_dir / "phase_00"
    (folder / "labels.jsonl").write_text("{}\n", encoding="utf-8")
    (start.config.run_dir / "scores.sqlite").write_bytes(b"scores")
    awr, strict = study.cells[1:]
    for cell in (awr, strict):
        link_start(start, cell)
        assert (cell.config.run_dir / "phase_00" / "eval.jsonl").samefile(folder / "eval.jsonl")
        assert not (cell.config.run_dir / "scores.sqlite").samefile(start.config.run_dir / "scores.sqlite")
        link_start(start, cell)  # there already, and the same
    assert num_finished(awr) == 1
    assert (awr.config.run_dir / "phase_00" / "labels.jsonl").exists()
    assert num_finished(strict) == 0
    assert not (strict.config.run_dir / "phase_00" / "labels.jsonl").exists()
    assert (folder / "labels.jsonl").exists()
    left = {path.stem for path in (strict.config.run_dir / "phase_00" / "stages").iterdir()}
    assert left == {"gen-tasks", "filter-tasks", "rollout", "eval"}


def test_a_cell_whose_objective_needs_a_critic_trains_the_starts_anew_where_that_had_none(tmp_path: Path) -> None:
    methods = {"default": {}, "webrl": {"actor": {"objective": "webrl"}}}
    overrides = {"actor": {"objective": "filtered_bc"}, "filter": {"critic_band": False}}
    study = study_of(tmp_path, seeds=[0], methods=methods, overrides=overrides)
    start = study.starts[0]
    write_phase(start, 0, "0110", "10")
    for cell in study.cells:
        link_start(start, cell)
    assert [num_finished(cell) for cell in study.cells] == [1, 0]


def test_differences_are_drawn_once_cells_have_run(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert write_report(study, read_results(study, {})) == ["study.csv", "outcomes.csv", "study.md"]
    assert "0 of 4 cells finished" in (study.folder / "study.md").read_text(encoding="utf-8")
    write_cells(study, {"default-seed0": ["1110"], "awr-seed0": ["1111"]})
    names = write_report(study, read_results(study, {}))
    assert names == ["study.csv", "outcomes.csv", "study.md", "comparison.png", "comparison.svg"]
    assert (study.folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (study.folder / "comparison.svg").read_bytes()


def test_a_study_with_demonstrations_trains_a_start_of_its_own_for_each_seed(tmp_path, webrl):
    demos = str(ROOT / "data" / "tiny" / "demos.jsonl")
    study = study_of(tmp_path, demos=[demos], overrides={"sft": {"steps": 1}})
    assert [job.name for job in study.jobs[:4]] == ["start_sft-seed0", "start_sft-seed1", "start-seed0", "start-seed1"]
    sft, start, cell = study.sfts[1], study.starts[1], study.cells[-1]
    assert (study.needs(sft), study.needs(start), study.needs(cell)) == ([], [sft], [start])
    trained = tmp_path / "runs" / "s" / "start-seed1" / "sft"
    assert sft.arguments[0] == "sft"
    assert sft.arguments[-4:] == ["--data", demos, "--out", str(trained)]
    base = load_config("demo").models.actor
    assert (sft.config.models.actor, sft.config.seed) == (base, 1)
    assert start.config.models.actor == cell.config.models.actor == str(trained)
    for job in (start, cell):
        assert load_config(Path(job.settings[0]), list(job.settings[1:])) == job.config
    assert not is_finished(sft)
    made = {"command": ["webrl", *sft.arguments], "config": sft.config.model_dump(mode="json")}
    write_json(trained.with_name("sft_report") / "report.json", made)
    assert is_finished(sft)
    check_config(sft)
    command = ["study", str(tmp_path / "study.yaml")]
    assert "was made with other settings (sft.steps: was 1, now 2)" in webrl(1, *command, "sft.steps=2").err
    other = study_of(tmp_path, demos=[demos, demos], overrides={"sft": {"steps": 1}})
    with pytest.raises(StageError, match=r"demos: was \['.*demos\.jsonl'\], now \['.*', '"):
        check_config(other.sfts[1])
    study_of(tmp_path, demos=["nosuch.jsonl"], name="t")
    for more in ([], ["--dry-run"]):
        assert "demos: 'nosuch.jsonl' does not exist" in webrl(2, *command, *more).err
    study_of(tmp_path, overrides={"replay": {"demos": ["nosuch.jsonl"]}}, name="t")
    assert "replay.demos: nosuch.jsonl: No such file" in webrl(2, *command, "--dry-run").err


@pytest.mark.parametrize("content", ["[]", '{"default-seed0": 1}'])
def test_failures_that_are_none_are_refused_by_name(content: str, tmp_path: Path) -> None:
    (tmp_path / FAILURES).write_text(content)
    with pytest.raises(DataError, match=r"failures\.json: not the reason of each failed cell; remove it"):
        read_failures(tmp_path)


def test_the_reason_of_a_failure_is_the_runs_own_error_line(tmp_path: Path) -> None:
    log = tmp_path / "cell.log"
    log.write_text("phase 1: train\nwebrl: loss is nan at step 3\n", encoding="utf-8")
    assert find_reason(log) == "loss is nan at step 3"
    log.write_text("phase 1: train\n", encoding="utf-8")
    assert find_reason(log) == f"ended in mid-run (phase 1: train); see {log}"


@pytest.mark.slow
def test_a_study_with_a_judge_that_cannot_be_loaded_is_refused_before_a_cell_starts(tmp_path: Path) -> None:
    empty = tmp_path / "no_model"
    empty.mkdir()
    (empty / "config.json").write_text("{}", encoding="utf-8")
    methods = {"default": {}, "broken": {"models": {"orm": str(empty)}}}
    study = study_of(tmp_path, seeds=[0], methods=methods)
    write_cells(study, {"default-seed0": ["1110"]})
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise SystemExit('the working folder was searched')")
    command = ["-P", "-m", "webrl.cli", "study", tmp_path / "study.yaml", "--parallel", "2"]
    assert "no_model" in python(*command, code=1, cwd=here, PYTHONPATH=str(ROOT)).stderr
    assert not (study.folder / "failures.json").exists()
    assert not (study.folder / "broken-seed0" / "phase_01").exists()


SMALL = {
    "tasks": {
        "train_sites": ["miniwob.click-button", "miniwob.enter-text"], "num_seed_tasks": 8, "num_eval_tasks": 4,
        "num_heldout_tasks": 2,
    },
    "generate": {"num_tasks": 8}, "filter": {"critic_band": False, "max_tasks": 4},
    "rollout": {"envs_per_worker": 2, "max_steps": 3}, "critic": {"steps": 1}, "actor": {"steps": 2},
    "accept": {"tasks": 4},
}  # fmt: skip


def test_ctrl_c_ends_the_cells_too(tmp_path: Path) -> None:
    study_of(tmp_path, seeds=[0], overrides=SMALL)
    log = tmp_path / "runs" / "s" / "logs" / "start-seed0.log"
    code, said = interrupt(
        ["study", str(tmp_path / "study.yaml")],
        lambda pid: log.is_file() and log.stat().st_size > 0 and len(descendants(pid)) >= 2,  # the guard and the run
    )
    assert (code, said[-1]) == (130, "webrl: interrupted; the same command resumes from here")
    assert any("start-seed0: started" in line for line in said)


@pytest.mark.browser
@pytest.mark.slow
def test_a_study_that_is_killed_goes_on_and_shares_its_start(tmp_path: Path) -> None:
    grpo = {"actor": {"objective": "grpo"}, "rollout": {"num_generations": 2}, "filter": {"max_tasks": 2}}
    grpo["replay"] = {"strategy": "none"}
    shown = {
        "actor": {"objective": "sft"},
        "rollout": {"policy": "expert"},
        "tasks": {"source": "fresh", "num_seed_tasks": 4},
    }
    methods = {"default": {}, "grpo": grpo, "shown": shown | {"filter": {"max_tasks": None}}}
    overrides = SMALL | {"sft": {"steps": 1, "batch_size": 8, "max_tokens": 2048}}
    demos = [str(ROOT / "data" / "tiny" / "demos.jsonl")]
    study = study_of(tmp_path, seeds=[0], overrides=overrides, methods=methods, demos=demos)
    command = [sys.executable, "-m", "webrl.cli", "study", str(tmp_path / "study.yaml"), "--parallel", "2"]
    killed = study.cells[0].config.run_dir / "phase_01" / "stages" / "gen-tasks.json"
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: killed.exists() or process.poll() is not None, 600)
    assert process.poll() is None, "ended before it could be killed"
    children = descendants(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    psutil.wait_procs(children, timeout=40)
    assert living(children) == []
    collected = (study.starts[0].config.run_dir / "phase_00" / "trajectories.jsonl").stat()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = read_results(study, {})
    assert [result.state for result in results] == ["finished"] * 3
    folders = (
        study.sfts[0].model,
        study.starts[0].config.run_dir / "phase_00" / "actor",
        ROOT / "data" / "tiny" / "actor",
    )
    trained, begun_with, base = ((folder or tmp_path).joinpath("model.safetensors").read_bytes() for folder in folders)
    assert trained == begun_with != base
    for result in results:
        begun = result.cell.config.run_dir / "phase_00" / "trajectories.jsonl"
        assert begun.stat().st_ino == collected.st_ino, "the start was played again"
        assert result.phases[1].actor_steps in (0, 2)  # 0: no group had a mixed outcome
        reads_values = result.cell.method == "default"  # and nobody's filter reads a critic
        assert result.phases[1].critic_steps == int(reads_values)
        assert result.phases[1].episodes == 4
    counts = read_json(results[2].cell.config.run_dir / "phase_01" / "stages" / "train.json")["counts"]
    assert counts["actor_active"] == counts["actor_samples"], "an expert failed"
    assert "3 of 3 cells finished" in (study.folder / "study.md").read_text(encoding="utf-8")
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0
    assert "phase" not in again.stderr, "a finished cell was started again"
