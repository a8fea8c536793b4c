"""GRPO in the loop: groups of attempts, what of them counts, when a phase stops; a real phase, killed in mid-group."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from replay_builders import select_replay
from rollouts_builders import ClickNamedButton, miniwob

from webrl import stages
from webrl.config import ReplayConfig, RunConfig, load_config
from webrl.config.resources import find_config
from webrl.errors import DataError, UsageError
from webrl.preflight import check_settings
from webrl.reports.run import phase_rows
from webrl.reward.orm import group_counts
from webrl.reward.train import read_judged
from webrl.rollouts.collect import collect
from webrl.runs.folder import open_run
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records, write_records
from webrl.stages import Context
from webrl.types import Label, Status, StepRecord, Task, Trajectory

GRPO = ("actor.objective=grpo", "rollout.num_generations=4", "replay.strategy=none")


def settings(*overrides: str) -> RunConfig:
    config = load_config(find_config("demo"), [*GRPO, *overrides])
    check_settings(config, "demo.yaml")
    return config


def test_all_that_stands_in_the_way_is_named_at_once_and_other_objectives_may_play_groups_and_replay() -> None:
    with pytest.raises(UsageError, match=r"demo\.yaml: actor\.objective=grpo .*num_generations=1.*; replay\.strategy="):
        check_settings(load_config(find_config("demo"), ["actor.objective=grpo"]), "demo.yaml")
    check_settings(load_config(find_config("demo"), ["rollout.num_generations=4"]), "demo.yaml")
    start = ["actor.objective=grpo", "num_phases=0"]  # of a study: phase 0 trains no actor
    check_settings(load_config(find_config("demo"), start), "demo.yaml")


def test_what_a_config_sets_and_nothing_would_use_is_named(caplog):
    urls = ["engine.urls=[http://127.0.0.1:9]", "rollout.urls=[http://127.0.0.1:9]"]
    check_settings(load_config(find_config("demo"), [*urls, "replay.strategy=none", "actor.imitation=0"]), "demo.yaml")
    (said,) = caplog.messages
    for part in ("generate.engine.urls: kind=transf", "rollout.urls: env=browser", "replay.demos: nothing learns"):
        assert part in said
    check_settings(load_config(find_config("demo"), [*urls[:1], "label.engine.kind=openai"]), "demo.yaml")
    assert len(caplog.messages) == 1  # a server that one section asks


def test_a_critic_is_trained_where_somebody_reads_it() -> None:
    assert load_config(find_config("demo")).trains_critic
    assert settings().trains_critic, "the curriculum's filter reads it"
    assert not settings("filter.critic_band=false").trains_critic
    assert not settings("tasks.source=fresh").trains_critic
    assert load_config(find_config("demo"), ["tasks.source=fresh"]).trains_critic, "webrl_scaled's advantages read it"


def test_a_phases_budget_is_tasks_times_attempts(webrl) -> None:
    assert settings("generate.num_tasks=30").max_phase_tasks == 30
    assert settings("generate.num_tasks=30", "filter.max_tasks=8").max_phase_tasks == 8
    assert settings("tasks.source=fresh", "tasks.num_seed_tasks=12").max_phase_tasks == 12
    assert "a phase after 0 plays at most 48 tasks x 4 = 192 episodes" in webrl(0, "run", "demo_grpo", "--dry-run").out


def attempt(task: str, number: int, status: Status = Status.PAGE_ENDED) -> Trajectory:
    name = f"p01-{task}" + (f"-r{number}" if number else "")
    return Trajectory(name, Task(task, "miniwob.click-button"), "Go.", 1, (), "", status, message=f"{name} said so")


def judged(trajectory: Trajectory, reward: int | None) -> Label:
    return Label(trajectory.trajectory_id, None, reward)


def test_groups_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    outcomes = {"a": (1, 0, 1), "b": (1, 1, 1), "c": (0, 0, None), "d": (1, None, None), "e": (0, 1, None)}
    played = {
        (task, i): attempt(task, i, Status.PAGE_ENDED if reward is not None else Status.ENV_ERROR)
        for task, rewards in outcomes.items()
        for i, reward in enumerate(rewards)
    }
    write_records(tmp_path / "t.jsonl", played.values())
    labels = [judged(t, outcomes[task][i]) for (task, i), t in played.items() if t.status.finished]
    write_records(tmp_path / "l.jsonl", labels)
    counts = group_counts(tmp_path / "t.jsonl", tmp_path / "l.jsonl")
    passed = counts.pop("passed")
    assert counts == {
        "num": 5, "num_mixed": 2, "num_succeeded": 1, "num_failed": 1, "num_single": 1, "num_masked": 4,
        "no_signal": 0.6,
    }  # fmt: skip
    # Successes of judged attempts: 2/3, 3/3, 0/2, 1/1, 1/2.
    # Of two attempts at a, one succeeds surely (1 - C(1,2)/C(3,2)), both in 1/3 (C(2,2)/C(3,2)).
    assert passed == {
        "1": {"any": pytest.approx(19 / 30), "all": pytest.approx(19 / 30), "tasks": 5},
        "2": {"any": pytest.approx(3 / 4), "all": pytest.approx((1 / 3 + 1) / 4), "tasks": 4},
        "3": {"any": 1.0, "all": 0.5, "tasks": 2},
    }
    rows = dict(phase_rows({"phase": 1, "label": {"groups": counts | {"passed": passed}}}))
    assert rows["groups"] == (
        "5 (mixed 2, succeeded 1, failed 1, single 1); 4 attempts without outcome; without signal 60.0 %; "
        "pass@3 100.0 %, pass^3 50.0 % of 2"
    )
    write_records(tmp_path / "t.jsonl", [t for (_, i), t in played.items() if i == 0])
    assert group_counts(tmp_path / "t.jsonl", tmp_path / "l.jsonl") == {}, "nothing was attempted twice"


def test_two_tasks_whose_episodes_would_have_one_name_are_refused(tmp_path: Path) -> None:
    first = miniwob("click-button")
    other = replace(first, task_id=f"{first.task_id}-r1")
    with pytest.raises(DataError, match=r"two episodes would be named 'p01-miniwob\.click-button\.0-r1'"):
        asyncio.run(
            collect([first, first, other], settings(), ClickNamedButton(), tmp_path / "t", phase=1, prefix="p01")
        )


SMALL = (
    "name=small", "num_phases=2", "tasks.source=fresh", "label.judge=environment", "tasks.num_eval_tasks=0",
    "tasks.train_sites=[miniwob.focus-text-2,miniwob.form-sequence-3]", "tasks.num_heldout_tasks=0",
    "tasks.num_seed_tasks=6", "rollout.num_generations=3", "rollout.envs_per_worker=6", "rollout.max_steps=4",
    "rollout.max_new_tokens=24", "actor.epochs=1", "accept.tasks=4",
)  # fmt: skip


@pytest.mark.browser
@pytest.mark.usefixtures("kept_browsers")
def test_a_phase_of_groups_goes_on_in_mid_group_and_trains_on_their_differences(tmp_path: Path) -> None:
    config = settings(*SMALL, f"runs_dir={tmp_path}")
    run = open_run(config)
    start, context = Context(config, run, 0), Context(config, run, 1)
    folder = context.folder
    write_records(start.folder.train, [])
    stages.copy_model(config.models.actor, start.folder.actor)
    stages.filter_generated(context)
    stages.rollout(context)
    lines = folder.trajectories.read_bytes().splitlines(keepends=True)
    before = b"".join(lines[:4])  # of six groups of three: one at least is begun and not ended
    folder.trajectories.write_bytes(before + lines[4][:100])
    assert stages.rollout(context)["num_rollouts"] == 18
    assert folder.trajectories.read_bytes().startswith(before), "what was there stays as it was"

    tasks = [task.task_id for task in read_records(folder.tasks, Task)]
    played = list(read_records(folder.trajectories, Trajectory))
    ids = [f"p01-{task}{end}" for task in tasks for end in ("", "-r1", "-r2")]
    assert sorted(t.trajectory_id for t in played) == sorted(ids), "none is lost, none is doubled"
    groups = [[t for t in played if t.task.task_id == task] for task in tasks]
    for group in groups:
        assert len({(t.instruction, t.steps[0].prompt_ids) for t in group}) == 1, "attempts start from the same page"
    answers = [{tuple(step.response for step in t.steps) for t in group} for group in groups]
    assert max(map(len, answers)) > 1, "attempts are sampled apart"

    counts = stages.label(context)["groups"]
    outcomes = {label.trajectory_id: label.reward for label in read_records(folder.labels, Label)}
    mixed = {group[0].task.task_id for group in groups if len({outcomes[t.trajectory_id] for t in group}) > 1}
    assert (counts["num"], counts["num_mixed"]) == (6, len(mixed))
    stages.replay(context)
    records = list(read_records(folder.train_filter, StepRecord))
    assert {r.group for r in records} == set(tasks)
    assert {r.source for r in records} == {"current"}
    losses = stages.train(context)
    assert losses["actor_active"] == sum(r.group in mixed for r in records) > 0
    assert losses["actor_steps"] > 0
    assert not [name for name in losses if name.startswith("critic")]
    assert not (folder.path / "critic").exists()
    assert not (folder.path / "train_scored.jsonl").exists()
    assert (folder.actor / "model.safetensors").is_file()

    # What groups leave behind feeds the rest: of each task's successes replay takes the first, a judge all.
    won = [r for r in records if r.outcome == 1]
    again = select_replay(records, len(records), ReplayConfig(strategy="all"), random.Random(0), ())
    first = {(r.instruction, r.prompt_ids): r.trajectory_id for r in reversed(won) if r.index == 0}
    assert {r.trajectory_id for r in again.records} == set(first.values())
    assert again.counts["repeated_task"] == sum(r.trajectory_id not in first.values() for r in won)
    assert len(list(read_judged(folder.path, ProblemLog()))) == 18
