"""The evaluation report: counts by hand."""

import json

import pytest

from webrl.types import Status, Step, Task, Trajectory
from webrl_webarena.report import format_table, summarize, write_task_files
from webrl_webarena.tasks import load_suite

pytestmark = pytest.mark.webarena


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {task.task_id.rpartition(".")[2]: task for task in load_suite("webarena_lite")}


@pytest.fixture(scope="module")
def episodes(tasks) -> list[Trajectory]:
    def episode(number: str, reward: float | None, status: Status = Status.AGENT_DONE) -> Trajectory:
        step = Step(0, "page", "click('1')", "click('1')")
        return Trajectory(f"e-{number}", tasks[number], "do", 0, (step,), "end", status, "answer", env_reward=reward)

    return [
        episode("44", 1.0),
        episode("419", 0.0),
        episode("470", 1.0),
        episode("741", 1.0),
        episode("71", None),
        episode("488", None, Status.ENV_ERROR),
    ]


def test_crashes_count_as_failed_and_unjudged_episodes_count_nowhere_but_are_shown(episodes):
    summary = summarize(episodes)
    assert (summary["headline"]["successes"], summary["headline"]["episodes"], summary["headline"]["errors"]) == (
        3,
        5,
        1,
    )
    assert (summary["without_crashes"]["successes"], summary["without_crashes"]["episodes"]) == (3, 4)
    assert summary["unjudged"] == {"episodes": 1, "task_ids": ["webarenalite.71"]}
    assert summary["bounds"] == pytest.approx((0.5, 2 / 3))


def test_sites_are_counted_apart_and_cross_site_tasks_apart_from_them(episodes):
    summary = summarize(episodes)
    assert {site: (r["successes"], r["episodes"]) for site, r in summary["by_site"].items()} == {
        "gitlab": (1, 2),
        "shopping_admin": (1, 2),
    }
    assert (summary["cross_site"]["successes"], summary["cross_site"]["episodes"]) == (1, 1)
    assert list(summary["cross_site"]["by_sites"]) == ["map+wikipedia"]


def test_the_table_says_all_of_it(episodes):
    table = format_table(summarize(episodes))
    assert "all tasks                3/5" in table
    assert "unjudged: 1, in none of these rates; all tasks lie between 50.0% and 66.7%" in table


def test_every_task_has_a_file(episodes, tmp_path):
    write_task_files(episodes, tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    data = json.loads((tmp_path / "e-44.json").read_text())
    assert (data["task_id"], data["score"], data["status"]) == ("webarenalite.44", 1.0, "agent_done")
    assert data["intent"] == "Check out my todos"
    assert data["steps"][0]["action"] == "click('1')"
