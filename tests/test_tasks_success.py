"""The success band: real trials of the tiny actor, judged by the tiny outcome model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from curriculum_builders import build_task

from webrl.config import FilterConfig, RunConfig, validate_config
from webrl.reward.labels import read_labels
from webrl.runs.store import read_records
from webrl.tasks.curriculum import success_rates
from webrl.tasks.filter import filter_tasks
from webrl.types import Trajectory

DATA = Path(__file__).parent.parent / "data" / "tiny"


@pytest.mark.browser
def test_each_task_s_rate_is_the_share_of_its_judged_trials(tmp_path: Path) -> None:
    config: RunConfig = validate_config(
        {
            "models": {"actor": str(DATA / "actor"), "orm": str(DATA / "orm")},
            "filter": {"num_trials": 2},
            "rollout": {"max_steps": 2, "envs_per_worker": 2, "max_new_tokens": 24},
        },
        "test",
    )
    tasks = [build_task(f'Click on the "{word}" button.', seed=seed) for seed, word in enumerate(("Yes", "No"))]

    def rates() -> list[float | None]:
        return asyncio.run(success_rates(config, tasks, actor=config.models.actor, folder=tmp_path, phase=1))

    found = rates()
    trials = list(read_records(tmp_path / "trials.jsonl", Trajectory))
    labels = read_labels(tmp_path / "trial_labels.jsonl")
    assert len(trials) == 4
    for task, rate in zip(tasks, found, strict=True):
        rewards = [labels[t.trajectory_id].reward for t in trials if t.task.task_id == task.task_id]
        assert rate == sum(map(bool, rewards)) / 2
    before = (tmp_path / "trials.jsonl").read_bytes()
    assert rates() == found
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_tasks_outside_the_success_band_are_dropped_and_those_without_a_rate_pass() -> None:
    config = FilterConfig(num_trials=4, success_low=0.25, success_high=0.75)
    tasks = [build_task(text, "shopping") for text in ("Open the cart", "Sort the mice", "Find a hat", "Buy a pen")]

    async def rates(left: object) -> list[float | None]:
        return [0.25, 0.0, 1.0, None]

    report = asyncio.run(filter_tasks(tasks, known=(), heldout=(), config=config, success_rates=rates))
    assert [task.instruction for task in report.kept] == ["Open the cart", "Buy a pen"]
    assert report.counts == {"success_low": 1, "success_high": 1}
    assert report.stages[-1].note == "not applied to 1 tasks: no trial was judged"
