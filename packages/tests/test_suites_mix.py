"""Several suites in one curriculum: what is drawn, written, played and counted of each."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections import Counter
from dataclasses import replace

import pytest
import yaml
from arena_server import patient
from curriculum_builders import ChatServer, serving
from report_builders import mark, trajectory
from web_builders import notes_app

from webrl.cli import main
from webrl.config import FilterConfig, GenerateConfig, RunConfig, load_config
from webrl.demos.record import ExpertPolicy, expert_tasks
from webrl.errors import UsageError
from webrl.preflight import check_settings
from webrl.reports.run import overview_table, phase_rows
from webrl.reports.status import status
from webrl.rollouts.episode import run_episode
from webrl.rollouts.pool import EnvPool
from webrl.rollouts.suite import suite_at, suite_of
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records, write_records
from webrl.suites import eval_tasks, held_out, parts, seed_tasks, summarize
from webrl.tasks.failures import Failure, FailureSet
from webrl.tasks.filter import filter_tasks
from webrl.tasks.generate import plan_requests
from webrl.types import Task, Trajectory
from webrl_arena.world import running
from webrl_report.page.build import write_report
from webrl_study.plan import splits_of

BOTH = "tasks.suite=[miniwob,arena]"
TYPES = "tasks.train_sites=[miniwob.click-button,miniwob.enter-text,arena.shop.open-category]"
CONFIG = load_config(
    None, [BOTH, TYPES, "tasks.num_seed_tasks=5", "tasks.num_eval_tasks=4", "tasks.num_heldout_tasks=3"]
)


def writer(question, number):
    """An instruction that its site takes; every one is another."""
    shop = "Site: arena." in question
    return f"Open the category {number}." if shop else f'Click on the "{number}" button.'


def suites_of(tasks):
    return [task.site.partition(".")[0] for task in tasks]


def test_a_list_of_one_suite_is_that_suite_and_a_run_s_config_says_the_list_again():
    assert load_config(None, ["tasks.suite=[arena]"]) == load_config(None, ["tasks.suite=arena"])
    saved = yaml.safe_load(yaml.safe_dump(CONFIG.model_dump(mode="json")))
    assert saved["tasks"]["suite"] == ["miniwob", "arena"]
    assert RunConfig.model_validate(saved) == CONFIG


def test_the_suites_share_the_numbers_of_tasks_take_turns_and_draw_what_each_alone_would():
    seeds, evaluated = seed_tasks(CONFIG), eval_tasks(CONFIG)
    assert suites_of(seeds) == ["miniwob", "arena", "miniwob", "arena", "miniwob"]
    alone = load_config(
        None, ["tasks.suite=arena", "tasks.train_sites=[arena.shop.open-category]", "tasks.num_seed_tasks=2"]
    )
    assert [task for task in seeds if task.site.startswith("arena.")] == seed_tasks(alone)
    assert {task.site for task in seeds if task.seed} == {"miniwob.click-button", "miniwob.enter-text"}
    assert Counter(zip(suites_of(evaluated), (task.split for task in evaluated), strict=True)) == {
        ("miniwob", "eval"): 2, ("miniwob", "eval_heldout"): 2, ("arena", "eval"): 2, ("arena", "eval_heldout"): 1,
    }  # fmt: skip
    kept_apart = {task.task_id for task in held_out(CONFIG)}
    assert kept_apart >= {task.task_id for task in evaluated}
    assert not kept_apart & {task.task_id for task in seeds}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tasks.suite=[miniwob,webarena_lite]"], ["tasks.suite", "'webarena_lite'", "held and reset", "separate run"]),
        (["tasks.suite=[miniwob,miniwob]"], ["'miniwob' is listed twice"]),
        (["tasks.suite=[miniwob,moon]"], ["'moon'", "'miniwob'", "'arena'"]),
        (["tasks.suite=[]"], ["tasks.suite", "[miniwob, arena]"]),
        ([BOTH, "tasks.num_seed_tasks=1"], ["tasks.num_seed_tasks=1", "miniwob, arena"]),
        ([BOTH, "tasks.train_sites=[shop.price]"], ["tasks.train_sites", "'shop.price'", "miniwob, arena"]),
        ([BOTH, "tasks.train_sites=[miniwob.click-dialog]"], ["'miniwob.click-dialog'", "heldout_sites"]),
        (["tasks.suite=[web,miniwob]", "rollout.web.start_urls=[http://127.0.0.1:1/]"], ["rollout.web.train_files"]),
        (["tasks.suite=[web,miniwob]", "tasks.source=fresh"], ["source=fresh", "tasks.suite=web has none"]),
    ],
)
def test_what_cannot_be_mixed_is_refused_by_name_before_anything_starts(overrides, words):
    with pytest.raises(UsageError) as caught:
        check_settings(load_config(None, overrides), "here")
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_generator_is_asked_for_one_instruction_a_new_page_on_miniwob_and_for_many_at_a_start_page_of_the_arena():
    tasks = [Task("a", "miniwob.click-button", instruction="Click.", seed=3), *seed_tasks(CONFIG)[1:2]]
    failures = FailureSet(tuple(Failure(task, "a page") for task in tasks))
    requests = plan_requests(
        failures, GenerateConfig(num_tasks=6), random.Random(0), per_page=lambda site: suite_at(site).has_page_seeds
    )
    assert [(r.site, r.num_tasks, r.target and r.target.start_url) for r in requests] == [
        *[("miniwob.click-button", 1, None)] * 3,
        ("arena.shop.open-category", 3, "__SHOP__/"),
    ]


def test_the_same_words_at_one_start_page_of_the_arena_are_one_task_whatever_failure_they_were_written_from():
    """MiniWoB's types are pages of their own; each instruction may be attempted on another of them."""
    words, price = "Open the page of the teapot.", "arena.shop.price"
    seeded = Task("e", "miniwob.click-button", instruction=words, seed=5)
    tasks = [
        Task("a", price, instruction=words, start_url="__SHOP__/"),
        Task("b", "arena.shop.search", instruction=words, start_url="__SHOP__/"),
        Task("c", "arena.shop+tracker.wish-ticket", instruction=words, start_url="__SHOP__/"),
        Task("d", "arena.tracker.open", instruction=words, start_url="__TRACKER__/"),
        seeded,
        replace(seeded, task_id="f", site="miniwob.click-link"),
    ]
    report = asyncio.run(filter_tasks(tasks, known=(), heldout=(), config=FilterConfig()))
    assert [(drop.task.task_id, drop.task.site, drop.reason) for drop in report.dropped] == [
        ("b", "arena.shop.search", "exact_duplicate"),
        ("c", "arena.shop+tracker.wish-ticket", "exact_duplicate"),
    ]
    assert tasks[0] in report.kept


def test_experts_of_all_suites_record_and_a_suite_without_any_is_refused():
    assert sorted({task.site for task in expert_tasks(CONFIG, 1)}) == [
        "arena.shop.open-category", "miniwob.click-button", "miniwob.enter-text",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="web has no scripted experts"):
        expert_tasks(load_config(None, ["tasks.suite=[miniwob,web]"]), 1)


def test_an_evaluation_is_counted_shown_and_compared_suite_by_suite_and_never_over_both(tmp_path):
    folder = RunFolder(tmp_path / "mixed")
    folder.path.mkdir()
    folder.config.write_text(yaml.safe_dump(CONFIG.model_dump(mode="json")))
    for number, solved in enumerate(("", "arena.shop.open-category")):
        phase = folder.phase(number)
        tried = [
            trajectory(task, number, float(task.site in ("miniwob.click-button", solved)), prefix="e")
            for task in eval_tasks(CONFIG)
        ]
        write_records(phase.eval, tried)
        counts = summarize(CONFIG, tried, phase.path)
        assert counts.keys() == {"by_suite"}
        mark(phase, "eval", counts)
    miniwob, shop = counts["by_suite"]["miniwob"], counts["by_suite"]["arena"]
    assert [(rate["successes"], rate["episodes"]) for rate in (miniwob, shop)] == [(1, 2), (2, 2)]
    assert (shop["heldout_types"]["episodes"], miniwob["heldout_types"]["episodes"]) == (1, 2)
    shown = dict(phase_rows({"phase": 1, "eval": counts}))
    assert shown["miniwob: held-out seeds"].startswith("1/2 = 50.0 % [")
    assert shown["arena: held-out seeds"].startswith("2/2 = 100.0 % [")
    phases = [{"phase": n, "eval": folder.phase(n).read_stage("eval")["counts"]} for n in (0, 1)]
    heads = [str(column.header) for column in overview_table(phases).columns]
    assert [head for head in heads if "held-out" in head] == list(splits_of(CONFIG).values())
    half = folder.phase(2)
    write_records(half.eval, [trajectory(task, 2, 1.0, prefix="e") for task in eval_tasks(CONFIG)[:1]])
    other = shutil.copytree(folder.path, tmp_path / "other")
    write_report([folder.path, other], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "arena: success after phase 1" in page
    assert "so far miniwob: 1/1 = 100.0 % [20.7, 100.0]." in page
    assert "3/4" not in page
    assert ("phase 1", "2/2 = 100.0 % [34.2, 100.0] of arena: held-out seeds") in status(folder.path)


@pytest.mark.browser
@pytest.mark.arena
def test_one_environment_plays_miniwob_the_arena_and_one_s_own_site_in_turn(tmp_path, arena):
    """Same worker, same place in it: page, viewport, session, log-in and limits are each suite's own."""
    arena.reset()
    with notes_app(tmp_path) as notes:
        own = notes.config("rollout.envs_per_worker=1").rollout.web
        own = own.model_copy(update={"reset": type(own.reset)()})
        rollout = patient(arena.folder).rollout.model_copy(update={"web": own, "envs_per_worker": 1, "max_steps": 8})
        first, shop, second = seed_tasks(CONFIG)[:3]
        page = Task("web.a", f"web.{own.name}", instruction="Look.", start_url=f"{notes.url}/")

        async def play(pool, task):
            async with pool.env() as env:
                played = await run_episode(env, ExpertPolicy(task.site), task, rollout, trajectory_id=task.task_id)
                return await suite_of(task).finish(env, played)

        async def look(pool):
            async with pool.env() as env:
                return await env.reset(page)

        async def work():
            async with EnvPool(rollout) as pool:
                played = [await play(pool, first), await play(pool, shop)]
                seen = await look(pool)
                again = [await play(pool, shop), await play(pool, second)]
                assert len(pool.worker_pids) == 1
                return [*played, *again], seen

        episodes, seen = asyncio.run(work())
        assert [(each.status.value, each.env_reward) for each in episodes] == [
            ("page_ended", 1.0), ("agent_done", 1.0), ("agent_done", 1.0), ("page_ended", 1.0),
        ], [each.message for each in episodes]  # fmt: skip
        assert seen.url.startswith(notes.url)
        assert running.num_sessions(rollout.arena.folder) == 0


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.arena
def test_a_run_plays_writes_trains_on_and_evaluates_both_suites(tmp_path, arena):
    arena.reset()
    with serving(ChatServer(writer)) as url:
        small = [f"generate.engine.urls=[{url}]", "generate.engine.kind=openai", "generate.engine.model_name=writer"]
        small += ["tasks.num_seed_tasks=4", "tasks.num_eval_tasks=2", "tasks.num_heldout_tasks=2"]
        small += ["generate.num_tasks=8", "filter.feasibility=false", "filter.max_tasks=4", "critic.steps=1"]
        small += ["actor.steps=1", "rollout.envs_per_worker=2", "rollout.step_timeout_s=120", "rollout.max_steps=2"]
        where = [f"runs_dir={tmp_path}", f"rollout.arena.folder={arena.folder}"]
        assert main(["run", "arena", BOTH, TYPES, *small, *where]) == 0
        assert running.num_sessions(arena.folder) == 0
    run = RunFolder(tmp_path / "arena")
    summary = json.loads(run.summary.read_text())
    for phase in summary["phases"]:
        for suite in ("miniwob", "arena"):
            found = phase["eval"]["by_suite"][suite]
            assert (found["episodes"], found["errors"], found["heldout_types"]["episodes"]) == (1, 0, 1)
    written = list(read_records(run.phase(1).tasks, Task))
    assert set(suites_of(written)) == {"miniwob", "arena"}
    for number in (0, 1):
        episodes = list(read_records(run.phase(number).trajectories, Trajectory))
        assert set(suites_of(each.task for each in episodes)) == {"miniwob", "arena"}
        assert all(each.status.finished for each in episodes)
    assert [part.tasks.suite for _, part in parts(CONFIG)] == ["miniwob", "arena"]
