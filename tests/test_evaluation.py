"""Phases are evaluated with common draws, at several temperatures; two models are compared page by page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from webrl.config import RunConfig, load_config
from webrl.evaluate import named_rates, pass_all, pass_any
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.stages import Context, copy_model, evaluate
from webrl.types import Trajectory

pytestmark = pytest.mark.usefixtures("kept_browsers")
SMALL = (
    "tasks.train_sites=[miniwob.enter-date,miniwob.click-option,miniwob.choose-list]", "tasks.num_eval_tasks=9",
    "tasks.num_heldout_tasks=2", "rollout.envs_per_worker=6", "rollout.max_steps=4", "rollout.num_workers=1",
)  # fmt: skip


def config_in(folder: Path, *settings: str) -> RunConfig:
    return load_config("demo", [f"runs_dir={folder}", "name=run", *SMALL, *settings])


def answers(path: Path) -> dict[str, Any]:
    """What was answered on each page, step by step, and how it ended."""
    return {
        t.task.task_id: ([(s.response, s.action_ids) for s in t.steps], t.status, t.env_reward)
        for t in read_records(path, Trajectory)
    }


@pytest.mark.browser
def test_two_phases_of_the_same_weights_draw_the_same_episodes_and_greedy_is_counted_beside_them(tmp_path):
    config = config_in(tmp_path, "evaluate.temperature=[1,0]", "tasks.num_eval_tasks=3", "tasks.num_heldout_tasks=1")
    run = RunFolder(config.run_dir)
    start, later = Context(config, run, 0), Context(config, run, 1)
    evaluate(start)
    run.phase(0).mark_done("eval", {}, 0.0, 0.0, config)
    copy_model(config.models.actor, run.phase(1).actor)
    counts = evaluate(later)
    played = [list(read_records(run.phase(k).eval, Trajectory)) for k in (0, 1)]
    assert not {t.trajectory_id for t in played[0]} & {t.trajectory_id for t in played[1]}
    sampled = answers(run.phase(0).eval)
    assert len(sampled) == 4
    assert answers(run.phase(1).eval) == sampled
    greedy = [answers(run.phase(k).path / "eval_t0.jsonl") for k in (0, 1)]
    assert greedy[0] == greedy[1]
    assert greedy[0] != sampled, "the tiny start is not that sure of itself"
    names = {name: (rate["episodes"], rate["over_start"]["difference"]) for name, rate in named_rates(counts).items()}
    assert names == {
        "held-out seeds": (3, 0.0), "held-out types": (1, 0.0), "held-out seeds, greedy": (3, 0.0),
        "held-out types, greedy": (1, 0.0),
    }  # fmt: skip
    solved = sum(reward == 1 for _, _, reward in greedy[1].values())
    at_zero = counts["at_temperature"]["0"]
    assert at_zero["successes"] + at_zero["heldout_types"]["successes"] == solved


def test_a_temperature_needs_no_list() -> None:
    assert RunConfig().evaluate.temperature == (0.0,)
    assert load_config("demo", ["evaluate.temperature=0.5"]).evaluate.temperature == (0.5,)


def test_the_chance_that_one_of_k_or_all_k_attempts_succeed_is_counted_without_bias() -> None:
    # 5 attempts, 2 successes: of C(5,3) = 10 triples 1 has no success, none has three; of 10 pairs 3 have none, 1 two.
    assert (pass_any(5, 2, 3), pass_all(5, 2, 3)) == (pytest.approx(0.9), 0.0)
    assert (pass_any(5, 2, 2), pass_all(5, 2, 2)) == (pytest.approx(0.7), pytest.approx(0.1))
    assert (pass_any(5, 2, 1), pass_all(5, 2, 1)) == (pytest.approx(0.4), pytest.approx(0.4))
    assert (pass_any(5, 0, 5), pass_any(5, 5, 5), pass_all(5, 5, 5)) == (0.0, 1.0, 1.0)
    for attempts, successes, k in ((2, 1, 3), (2, 3, 1), (2, 1, 0)):
        with pytest.raises(ValueError, match=f"{successes} successes of {attempts} attempts, k = {k}"):
            pass_all(attempts, successes, k)


@pytest.mark.browser
def test_two_models_are_compared_page_by_page_and_an_evaluation_of_other_pages_is_refused(tmp_path, capsys, webrl):
    config = config_in(tmp_path)
    command = ["eval", "demo", f"runs_dir={tmp_path}", "name=run", *SMALL]
    for dry in ([], ["--dry-run"]):
        assert "--against small: no such folder" in webrl(2, *command, *dry, "--against", "small").err
    assert not config.run_dir.exists(), "nothing was played"
    copy_model(config.models.actor, tmp_path / "same")
    said = webrl(0, *command, "--against", tmp_path / "same")
    found = json.loads(said.out)["against"]
    assert found["held-out seeds"]["this"] == found["held-out seeds"]["other"]
    assert found["held-out seeds"]["difference"] == 0, "the same weights in another folder draw the same"
    assert "; +0.0 points [" in said.err
    assert "paired over 9 pages" in said.err
    other = config.run_dir.with_name("run-against-same") / "phase_00"
    played = list(read_records(other / "eval.jsonl", Trajectory))
    seeds = [t for t in played if t.task.split == "eval"]
    failed = [replace(t, env_reward=0.0) if t in seeds[:3] else replace(t, env_reward=1.0) for t in played]
    write_records(other / "eval.jsonl", failed)
    found = json.loads(webrl(0, *command, "--against", other.parent).out)["against"]
    mine = found["held-out seeds"]["this"]["successes"]
    assert found["held-out seeds"]["other"]["successes"] == 6
    assert found["held-out seeds"]["difference"] == pytest.approx((mine - 6) / 9)
    write_records(other / "eval.jsonl", [replace(t, task=replace(t.task, seed=t.task.seed + 1)) for t in failed])
    assert "22 pages are not in both, such as" in webrl(1, *command, "--against", other).err
    assert f"held-out seeds: {mine}/9 = " in webrl(0, *command).err
    changed = (*command, "rollout.max_steps=3", "--against")
    copy_model(config.models.actor, tmp_path / "new")
    assert "was made with another config (rollout.max_steps" in webrl(1, *changed, tmp_path / "new").err
    assert not config.run_dir.with_name("run-against-new").exists(), "the other model was not played first"
