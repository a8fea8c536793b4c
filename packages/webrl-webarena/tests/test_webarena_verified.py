"""WebArena-Verified's task format, and what an episode leaves for its program, on the stand-ins.

The scorer is a stand-in too (`standins/scorer.py`); `benchmarks/webarena_verified.py` does it with the real one.
"""

import json
import sys
from pathlib import Path

import pytest
from browsers import run, shared_browser
from standins.play import play

from webrl.config import load_config
from webrl.errors import DataError, UsageError
from webrl.suites import eval_tasks, held_out, open_sites
from webrl_webarena import report
from webrl_webarena.tasks import instruction_of, is_scored, sites_of, writes
from webrl_webarena.verified import verified_tasks

SCORER = [sys.executable, str(Path(__file__).parent / "standins" / "scorer.py")]
ANSWER = json.dumps({"task_type": "NAVIGATE", "status": "SUCCESS", "retrieved_data": None})
TODOS = (("click", "link", "To-Do List"), ("say", ANSWER))


def entry(number=44, site="gitlab", kind="navigate", **changes):
    """A task as its file has it (the texts are our own)."""
    placeholder = f"__{site.upper()}__"
    response = {
        "evaluator": "AgentResponseEvaluator",
        "results_schema": {"type": "null"},
        "expected": {"task_type": kind, "status": "SUCCESS", "retrieved_data": None},
    }
    network = {"evaluator": "NetworkEventEvaluator", "expected": {"url": f"{placeholder}/somewhere"}}
    return {
        "sites": [site],
        "task_id": number,
        "intent_template_id": 1,
        "start_urls": [placeholder],
        "intent": f"Show what task {number} is about.",
        "intent_template": "Show it.",
        "instantiation_dict": {},
        "eval": [response, network],
        "revision": 2,
    } | changes


def without(data, key):
    return {name: value for name, value in data.items() if name != key}


@pytest.fixture
def settings(world, tmp_path):
    """The stand-ins' config with a task file of these entries."""

    def make(*entries, command=SCORER):
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps(entries))
        verified = {"tasks": str(path), "command": command, "folder": str(tmp_path / "kept")}
        return world.config({"verified": verified}, max_steps=5)

    return make


def played(world, config, script):
    (task,) = verified_tasks(config)
    number = task.extra["webarena"]["task_id"]
    return run(play(world, {number: task}, script, config, open_browser=shared_browser))[number]


def test_a_task_keeps_its_number_sites_starts_and_what_it_asks(settings):
    pages = ["__SHOPPING__/a", "__REDDIT__/b"]
    tasks = verified_tasks(
        settings(entry(), entry(7, "map", "retrieve"), entry(9, sites=["shopping", "reddit"], start_urls=pages, eval=[
            {"evaluator": "AgentResponseEvaluator", "expected": {"task_type": "mutate"}},
        ]))
    )  # fmt: skip
    assert [t.task_id for t in tasks] == [f"webarena_verified.{n}" for n in (44, 7, 9)]
    assert instruction_of(tasks[0]) == "Show what task 44 is about."
    assert (sites_of(tasks[2]), tasks[2].start_url) == (("shopping", "reddit"), "__SHOPPING__/a |AND| __REDDIT__/b")
    assert [writes(t) for t in tasks] == [False, False, True]
    assert all(map(is_scored, tasks))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (lambda e: without(e, "revision"), ["task 0", "missing or unknown revision"]),
        (lambda e: e | {"start_url": "x"}, ["task 0", "missing or unknown start_url"]),
        (lambda e: e | {"sites": ["bank"]}, ["task_id 44", "unknown site 'bank'"]),
        (lambda e: e | {"eval": [{"evaluator": "PixelEvaluator"}]}, ["task_id 44", "PixelEvaluator", "known: Agent"]),
        (lambda e: e | {"eval": []}, ["task_id 44", "evaluator []"]),
        (lambda e: e | {"start_urls": ["__SHOPPING__"]}, ["task_id 44", "do not list shopping"]),
        (lambda e: e | {"start_urls": "__GITLAB__"}, ["task_id 44", "list of addresses"]),
        (lambda e: e | {"start_urls": [44]}, ["task_id 44", "list of addresses, found [44]"]),
        (lambda e: e | {"intent": " "}, ["task_id 44", "`intent` a text"]),
        (lambda e: [e], ["task 0", "not a task"]),
    ],
)
def test_what_is_not_understood_in_its_task_file_is_refused_by_name(settings, changes, words):
    with pytest.raises(DataError) as error:
        verified_tasks(settings(changes(entry())))
    assert all(word in str(error.value) for word in ["tasks.json", *words]), error.value


def test_a_suite_without_its_task_file_is_refused(settings):
    with pytest.raises(UsageError, match=r"rollout\.webarena\.verified\.tasks=FILE"):
        eval_tasks(load_config(None, ["tasks.suite=webarena_verified"]))


def test_the_suite_is_evaluated_interleaved_by_site_and_held_out_whole(settings, tmp_path):
    settings(entry(1), entry(2), entry(3, "map"))
    config = load_config(
        None,
        [
            "tasks.suite=webarena_verified",
            "tasks.num_eval_tasks=2",
            f"rollout.webarena.verified.tasks={tmp_path}/tasks.json",
        ],
    )
    assert [t.task_id.rpartition(".")[2] for t in eval_tasks(config)] == ["1", "3"]
    assert len(held_out(config)) == 3


def test_a_scorer_that_is_not_there_is_refused_before_any_episode(settings, world):
    config = settings(entry(), command=["no-such-scorer"])
    run_config = load_config(None, []).model_copy(update={"rollout": config})

    async def work():
        async with open_sites(run_config, verified_tasks(config)):
            raise AssertionError("no episode is worth starting")

    with pytest.raises(UsageError, match=r"no program 'no-such-scorer'.*uvx"):
        run(work())


@pytest.mark.browser
def test_the_scorer_judges_the_answer_and_the_traffic_of_an_episode(settings, world, tmp_path):
    config = settings(entry())
    solved = played(world, config, TODOS)
    assert (solved.status.finished, solved.env_reward, solved.env_error) == (True, 1.0, "")
    assert "answer with one JSON object" in solved.instruction
    kept = tmp_path / "kept"
    assert sorted(p.name for p in kept.iterdir()) == ["44"]
    har = json.loads((kept / "44" / "network.har").read_text())
    asked = [e["request"]["url"] for e in har["log"]["entries"]]
    assert f"{world.gitlab.url}/dashboard/todos" in asked
    assert (kept / "44" / "agent_response.json").read_text() == ANSWER
    assert kept.stat().st_mode & 0o077 == 0

    idle = played(world, config, (("say", ANSWER),))
    assert (idle.env_reward, idle.env_error.split(":")[0]) == (0.0, "NetworkEventEvaluator")
    plain = played(world, config, (*TODOS[:1], ("say", "Done.")))
    assert (plain.env_reward, plain.env_error) == (0.0, "AgentResponseEvaluator: Expected NAVIGATE")


@pytest.mark.browser
def test_an_episode_without_a_verdict_has_no_reward_and_one_without_an_answer_has_failed(settings, world, tmp_path):
    config = settings(entry())
    broken = played(world, config, (("say", "BROKEN"),))
    assert (broken.env_reward, "out of order" in broken.env_error) == (None, True)
    assert report.is_unjudged(broken)
    garbled = played(world, config, (("say", "GARBLED"),))
    assert (garbled.env_reward, "eval_result.json" in garbled.env_error) == (None, True)
    assert (tmp_path / "kept" / "44" / "agent_response.json").read_text() == "GARBLED"
    stopped = played(world, config, (("click", "link", "To-Do List"),) * 5)
    assert (stopped.env_reward, stopped.env_error) == (0.0, "the agent gave no answer")
    assert list((tmp_path / "kept").iterdir()) == []  # nor what the attempt before has left
    assert report.summarize([stopped, broken])["by_evaluator"].keys() == {"verified_navigate"}
