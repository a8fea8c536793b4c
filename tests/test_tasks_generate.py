"""Generation: plan, prompts, lineage, cache, resume and failing endpoints, against a real server and a real model."""

import asyncio
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
from curriculum_builders import PAGE, ChatServer, build_failure, build_failures, build_task
from llm_builders import save_tiny_model

from webrl.config import EngineConfig, GenerateConfig, ModelsConfig, RunConfig
from webrl.errors import ModelError
from webrl.llm import open_model
from webrl.tasks.failures import Failure, FailureSet
from webrl.tasks.filter import load_rules, rules_for
from webrl.tasks.generate import generate_tasks, initial_page_texts, plan_requests, split_evenly
from webrl.tasks.prompts import in_breadth_prompt
from webrl.types import Lineage

CONFIG = GenerateConfig(num_tasks=6, num_seeds=2, engine=EngineConfig(max_batch=2))
WHOLE = RunConfig(generate=CONFIG)
ONE_BY_ONE = CONFIG.model_copy(update={"engine": EngineConfig(max_batch=1)})


def plan(failures=None, config=CONFIG, per_page=True, seed=0):
    """Requests, those on a page with one."""
    requests = plan_requests(failures or build_failures(), config, random.Random(seed), per_page=lambda _: per_page)
    return [
        r if r.target else replace(r, target=build_task(None, r.site, 100 + i), page=PAGE)
        for i, r in enumerate(requests)
    ]


def generate(server, requests, cache, config=CONFIG):
    async def work():
        async with server.running(), server.model() as model:
            whole, rng = RunConfig(generate=config), random.Random(0)
            return await generate_tasks(requests, model, whole, phase=2, rng=rng, cache=cache)

    return asyncio.run(work())


def test_the_prompt_for_one_page_is_the_format_the_tiny_generator_was_trained_on():
    prompt = in_breadth_prompt(
        "miniwob.click-button", ['Click on the "ok" button.', "Two\nlines"], "[13] button 'ok'\n"
    )
    assert prompt.user == (
        "Site: miniwob.click-button\nFailed:\n- Click on the \"ok\" button.\n- Two lines\nPage:\n[13] button 'ok'\n"
        "New instruction:"
    )


def test_a_task_s_initial_page_is_its_request_s_or_what_an_agent_saw_there():
    """On WebArena tasks share their sites' start pages, and requests are not made for a page."""

    def failed(start: str, page: str) -> Failure:
        return Failure(build_task(f"Open {start}", "gitlab", start_url=start), page)

    seen = FailureSet((failed("__GITLAB__", "dashboard"), failed("__GITLAB__/a", "project a"), failed("unseen", "")))
    config = CONFIG.model_copy(update={"num_seeds": 3, "tasks_per_prompt": 2})
    requests = plan_requests(seen, config, random.Random(0), per_page=lambda _: False)
    starts = ("__GITLAB__", "__GITLAB__/a", "unseen", "__GITLAB__/b")
    asked = [build_task("New", "gitlab", start_url=start) for start in starts]
    assert initial_page_texts(requests, asked) == ["dashboard", "project a", "", ""]
    (request,) = plan(build_failures(1), CONFIG.model_copy(update={"num_tasks": 1}))
    assert initial_page_texts([request], [request.target]) == [request.page]


def test_sites_share_the_number_of_tasks_by_their_failures():
    assert split_evenly(10, {"a": 3, "b": 3, "c": 1}) == {"a": 4, "b": 4, "c": 2}
    assert split_evenly(0, {"a": 3}) == {"a": 0}
    failures = FailureSet((*build_failures(3).failures, build_failure("Open the cart", "shopping")))
    requests = plan(failures, GenerateConfig(num_tasks=8))
    assert [r.site for r in requests] == ["miniwob.click-button"] * 6 + ["shopping"] * 2


def test_pages_get_one_request_a_task_and_other_sites_many_tasks_a_request():
    assert [r.num_tasks for r in plan()] == [1] * 6
    requests = plan(config=GenerateConfig(num_tasks=25, num_seeds=2), per_page=False)
    assert [r.num_tasks for r in requests] == [10, 10, 5]
    assert all(len({f.task.instruction for f in r.failures}) == 2 for r in requests)


def test_tasks_carry_their_lineage_and_the_initial_state_they_were_written_for(tmp_path):
    server = ChatServer(lambda user, number: f'1. `Click on the "new{number}" button.`')
    requests = plan()
    tasks, counts = generate(server, requests, tmp_path / "answers.jsonl")
    assert len(tasks) == counts["num_requests"] == 6
    assert [task.seed for task in tasks] == [100, 101, 102, 103, 104, 105]
    assert len({task.task_id for task in tasks}) == 6
    assert re.fullmatch(r'Click on the "new\d" button\.', tasks[0].instruction)
    parents = tuple(f.task.task_id for f in requests[0].failures)
    digest = requests[0].prompt(rules_for(load_rules(), "miniwob.click-button")).digest
    assert tasks[0].lineage == Lineage("in_breadth", parents, "writer", digest, phase=2)
    assert counts["prompt_tokens"] == 0, "a server that takes text tells no tokens"


def test_a_second_call_asks_nothing_and_gives_the_same_tasks_but_for_a_torn_last_line_of_the_cache(tmp_path):
    server, cache = ChatServer(lambda user, number: f"Do thing {number}"), tmp_path / "answers.jsonl"

    async def work():
        async with server.running(), server.model() as model:

            async def once():
                return await generate_tasks(plan(), model, WHOLE, phase=2, rng=random.Random(0), cache=cache)

            first, second = await once(), await once()
            cache.write_bytes(cache.read_bytes()[:-20])
            return first, second, await once()

    (tasks, first), (same, second), (_, third) = asyncio.run(work())
    assert len(server.prompts) == 7
    assert tasks == same
    assert [counts["num_cached"] for counts in (first, second, third)] == [0, 6, 5]
    assert len(cache.read_bytes().splitlines()) == 6


def test_an_endpoint_that_goes_down_midway_ends_the_stage_and_the_next_call_asks_only_the_rest(tmp_path):
    server = ChatServer(lambda user, number: "Do a thing" if number <= 10 else 503)
    config = RunConfig(generate=GenerateConfig(num_tasks=40, num_seeds=2, engine=EngineConfig(max_batch=1)))
    requests = plan(config=config.generate)

    async def work():
        async with server.running(), server.model() as model:
            arguments = {"phase": 1, "cache": tmp_path / "answers.jsonl"}
            with pytest.raises(ModelError, match=r"8 requests in a row failed.*10 answers are saved in"):
                await generate_tasks(requests, model, config, rng=random.Random(0), **arguments)
            server.answer, before = (lambda user, number: "Do a thing"), len(server.prompts)
            tasks, counts = await generate_tasks(requests, model, config, rng=random.Random(0), **arguments)
            return tasks, counts, len(server.prompts) - before

    tasks, counts, asked = asyncio.run(work())
    assert (counts["num_cached"], asked, len(tasks)) == (10, 30, 40)


def test_single_failed_requests_are_reported_and_the_others_go_on(tmp_path):
    server = ChatServer(lambda user, number: 400 if "label2" in user else "Do a thing")
    tasks, counts = generate(server, plan(), tmp_path / "answers.jsonl", ONE_BY_ONE)
    assert counts["num_failed"] == sum("label2" in p.prompt().user for p in plan())
    assert 0 < counts["num_failed"] < 6
    assert len(tasks) == 6 - counts["num_failed"]
    assert "400" in counts["errors"][0]


def test_bad_answers_are_counted_and_never_become_more_tasks_than_asked(tmp_path):
    answers = ["", "I'm sorry, I can't.", "\n".join(f"{i}. Do {i}" for i in range(10_000)), "Fine, do it", "x", "y z"]
    server = ChatServer(lambda user, number: answers[number - 1])
    tasks, counts = generate(server, plan(), tmp_path / "answers.jsonl", ONE_BY_ONE)
    assert counts["answer_problems"] == {"empty_answer": 1, "refusal": 1, "surplus": 9999}
    assert [task.instruction for task in tasks] == ["Do 0", "Fine, do it", "x", "y z"]


def test_a_request_without_an_initial_state_is_refused(tmp_path):
    request = plan_requests(build_failures(), CONFIG, random.Random(0), per_page=lambda _: True)[0]
    server = ChatServer(lambda user, number: "Do a thing")
    with pytest.raises(ValueError, match="has no initial state"):
        generate(server, [request], tmp_path / "answers.jsonl")


def test_a_model_in_process_writes_repeatably_and_pages_are_cut_to_its_prompt(tmp_path):
    folder = save_tiny_model(tmp_path / "model", positions=2048)
    config = GenerateConfig(num_tasks=3, num_seeds=1, max_new_tokens=8, engine=EngineConfig(max_batch=3))
    requests = [replace(r, page=PAGE * 200) for r in plan(config=config)]

    async def work(cache: Path):
        async with open_model(str(folder), EngineConfig(), ModelsConfig(dtype="float32", device="cpu")) as model:
            whole = RunConfig(generate=config, models=ModelsConfig(max_prompt_tokens=1500))
            return await generate_tasks(requests, model, whole, phase=1, rng=random.Random(3), cache=cache)

    one, two = asyncio.run(work(tmp_path / "a")), asyncio.run(work(tmp_path / "b"))
    assert one == two
    assert 0 < one[1]["prompt_tokens"] <= 3 * 1500
