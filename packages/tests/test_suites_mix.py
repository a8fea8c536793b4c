"""Tasks of several suites side by side: what is written, compared and played of each."""

import asyncio
import random
from dataclasses import replace

import pytest
from arena_server import patient
from web_builders import notes_app

from webrl.config import FilterConfig, GenerateConfig, load_config
from webrl.errors import UsageError
from webrl.rollouts.episode import run_episode
from webrl.rollouts.pool import EnvPool
from webrl.rollouts.suite import seed_tasks, suite_at, suite_of
from webrl.tasks.failures import Failure, FailureSet
from webrl.tasks.filter import filter_tasks
from webrl.tasks.generate import plan_requests
from webrl.types import Task
from webrl_arena.world import running
from webrl_site.record import ExpertPolicy, expert_tasks

MINIWOB = seed_tasks(
    load_config(None, ["tasks.train_sites=[miniwob.click-button,miniwob.enter-text]", "tasks.num_seed_tasks=2"])
)
SHOP = seed_tasks(
    load_config(None, ["tasks.suite=arena", "tasks.train_sites=[arena.shop.open-category]", "tasks.num_seed_tasks=1"])
)


def test_a_suite_without_experts_is_not_recorded():
    with pytest.raises(UsageError, match="web has no scripted experts"):
        expert_tasks(load_config(None, ["tasks.suite=web"]), 1)


def test_the_generator_is_asked_for_one_instruction_a_new_page_on_miniwob_and_for_many_at_a_start_page_of_the_arena():
    tasks = [Task("a", "miniwob.click-button", instruction="Click.", seed=3), *SHOP]
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


@pytest.mark.browser
@pytest.mark.arena
def test_one_environment_plays_miniwob_the_arena_and_one_s_own_site_in_turn(tmp_path, arena):
    """Same worker, same place in it: page, viewport, session, log-in and limits are each suite's own."""
    arena.reset()
    with notes_app(tmp_path) as notes:
        own = notes.config("rollout.envs_per_worker=1").rollout.web
        own = own.model_copy(update={"reset": type(own.reset)()})
        rollout = patient(arena.folder).rollout.model_copy(update={"web": own, "envs_per_worker": 1, "max_steps": 8})
        (first, second), (shop,) = MINIWOB, SHOP
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
