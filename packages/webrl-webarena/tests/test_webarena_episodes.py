"""Whole episodes on the stand-ins: from reset to BrowserGym's score, and what faults make of them."""

import dataclasses
import functools
from typing import Any

import browsers
import pytest
from standins.experts import DO_NOTHING, SCRIPTS, Scripted
from standins.play import failures, few_of_every_kind, lite_tasks, opened, play, scores, training_task
from standins.world import World

from webrl.rollouts.episode import run_episode
from webrl.rollouts.suite import score_episode
from webrl.types import Status, Task, Trajectory
from webrl_site.locks import lease_sites
from webrl_webarena.report import summarize
from webrl_webarena.sites import find_sites

pytestmark = [pytest.mark.browser, pytest.mark.webarena]


play_shared = functools.partial(play, open_browser=browsers.shared_browser)
opened_shared = functools.partial(opened, open_browser=browsers.shared_browser)


async def play_one(world: World, task: Task, script: Any, **webarena: Any) -> Trajectory:
    """One episode in an environment of its own."""
    config = world.config(webarena, max_steps=10, step_timeout_s=20)
    async with opened_shared(config) as make:
        env = make()
        trajectory = await run_episode(env, Scripted(script), task, config, trajectory_id=task.task_id)
        return await score_episode(env, trajectory)


@pytest.mark.slow
def test_experts_are_scored_1_and_an_agent_that_does_nothing_0(world: World):
    """On all sites, in every way to be scored; `benchmarks/webarena_standins.py` plays all of the scripts."""
    tasks = few_of_every_kind({number: task for number, task in lite_tasks().items() if number in SCRIPTS})
    expert = browsers.run(play_shared(world, tasks, None, num_envs=4))
    assert scores(expert) == dict.fromkeys(sorted(tasks), 1.0), failures(expert)
    world.reset()
    idle = browsers.run(play_shared(world, tasks, DO_NOTHING, num_envs=4))
    assert scores(idle) == dict.fromkeys(sorted(tasks), 0.0), failures(idle)


def test_validation_happens_once_and_not_on_the_agent_s_page(world: World):
    """Task 419's evaluator opens the user's profile: only after the last step, and not in the agent's tab."""

    async def run() -> None:
        config = world.config()
        async with opened_shared(config) as make:
            env, task = make(), lite_tasks()[419]
            policy = Scripted(SCRIPTS[419])
            trajectory = await run_episode(env, policy, task, config, trajectory_id="t")
            assert "GET /byteblaze" not in world.gitlab.log
            page, url, content = env.page, env.page.url, await env.page.content()
            trajectory = await score_episode(env, trajectory)
            assert world.gitlab.log.count("GET /byteblaze") == 1
            assert (env.page, page.url, await page.content()) == (page, url, content)
            assert trajectory.env_reward == 1

    browsers.run(run())


def test_what_was_typed_but_not_sent_is_part_of_the_final_state(world: World):
    """Task 657 asks for a filled-in form that is not sent: it exists only in the agent's page."""
    script = [step if step[0] != "fill" else (*step[:3], "hello") for step in SCRIPTS[657]]
    assert browsers.run(play_one(world, lite_tasks()[657], SCRIPTS[657])).env_reward == 1
    assert browsers.run(play_one(world, lite_tasks()[657], tuple(script))).env_reward == 0


def test_a_judge_that_is_down_leaves_the_episode_unjudged_not_failed(world: World):
    world.judge.fault = "half"
    trajectory = browsers.run(play_one(world, lite_tasks()[117], SCRIPTS[117]))
    assert trajectory.status is Status.AGENT_DONE
    assert trajectory.env_reward is None
    assert "does not answer (503" in trajectory.env_error
    summary = summarize([trajectory])
    assert summary["unjudged"] == {"episodes": 1, "task_ids": ["webarenalite.117"]}
    assert summary["headline"]["episodes"] == 0
    assert summary["bounds"] == (0.0, 1.0)


def test_a_site_that_fails_during_validation_leaves_the_episode_unjudged(world: World):
    async def run() -> Trajectory:
        config = world.config()
        async with opened_shared(config) as make:
            env, task = make(), lite_tasks()[419]
            trajectory = await run_episode(env, Scripted(SCRIPTS[419]), task, config, trajectory_id="t")
            world.gitlab.fault = "drop"
            return await score_episode(env, trajectory)

    trajectory = browsers.run(run())
    assert trajectory.env_reward is None
    assert trajectory.env_error.startswith("a site failed during validation")


def test_validations_that_hang_at_the_same_time_are_each_given_up(world: World):
    world.judge.seconds = 8.0  # its answer is kept: an episode that ends after it would not hang
    same = dict.fromkeys((1, 2, 3), lite_tasks()[117])
    found = browsers.run(play_shared(world, same, SCRIPTS[117], world.config({"validate_timeout_s": 1.0}), num_envs=3))
    assert {trajectory.env_reward for trajectory in found.values()} == {None}
    assert {trajectory.env_error for trajectory in found.values()} == {"validation passed its deadline of 1 s"}


def test_an_evaluator_that_finds_nothing_to_read_gives_0(world: World):
    """Task 506 looks at the newest order; here the shop has none."""
    world.shopping.orders.clear()
    world.shopping.fault = ""
    trajectory = browsers.run(play_one(world, lite_tasks()[506], DO_NOTHING))
    assert trajectory.env_reward is not None or "site failed" in trajectory.env_error


@pytest.mark.parametrize(("fault", "words"), [("half", "answers 503"), ("drop", "log-in to gitlab")])
def test_a_site_that_is_down_at_reset_is_an_environment_error(world: World, fault: str, words: str):
    world.gitlab.fault = fault
    trajectory = browsers.run(play_one(world, lite_tasks()[44], SCRIPTS[44]))
    assert trajectory.status is Status.ENV_ERROR
    assert "gitlab" in trajectory.message
    assert words in trajectory.message or "does not answer" in trajectory.message or "failed" in trajectory.message


def test_an_expired_log_in_is_minted_again_between_episodes(world: World):
    async def run() -> list[float | None]:
        config = world.config({"login_check_s": 0})
        rewards = []
        async with opened_shared(config) as make:
            env, task = make(), lite_tasks()[259]
            for _ in range(2):
                trajectory = await run_episode(env, Scripted(SCRIPTS[259]), task, config, trajectory_id="t")
                rewards.append((await score_episode(env, trajectory)).env_reward)
                world.gitlab.sessions.clear()
        return rewards

    assert browsers.run(run()) == [1.0, 1.0]
    assert world.gitlab.log.count("POST /users/sign_in") == 2


def test_a_writing_episode_has_its_site_until_it_is_finished(world: World):
    async def run() -> None:
        config = world.config()
        sites = find_sites(config.webarena)
        folder = config.webarena.lock_dir

        async def is_free() -> bool:
            try:
                lease = await lease_sites(sites.urls, ["gitlab"], writing=False, folder=folder, timeout_s=0)
            except Exception:
                return False
            lease.release()
            return True

        async with opened_shared(config) as make:
            env = make()
            trajectory = await run_episode(env, Scripted(SCRIPTS[419]), lite_tasks()[419], config, trajectory_id="t")
            assert not await is_free()
            await score_episode(env, trajectory)
            assert await is_free()
            trajectory = await run_episode(env, Scripted(SCRIPTS[419]), lite_tasks()[419], config, trajectory_id="t")
            await score_episode(env, dataclasses.replace(trajectory, status=Status.TIMEOUT))
            assert await is_free()

    browsers.run(run())


def test_training_tasks_start_logged_in_and_are_left_to_the_outcome_model(world: World):
    task = training_task("t", "gitlab", "Show me my to-do list")
    trajectory = browsers.run(play_one(world, task, SCRIPTS[44]))
    assert trajectory.status is Status.AGENT_DONE
    assert trajectory.env_reward is None
    assert trajectory.env_error == ""
    assert trajectory.instruction == "Show me my to-do list"
    assert "To-Do List" in trajectory.final_observation
    assert trajectory.task == task


def test_a_step_is_not_over_before_a_slow_page_is_there(world: World):
    """The stand-in takes its time over the next page; the observation must be of that page all the same."""
    world.shopping.delay_s = 1.0
    trajectory = browsers.run(play_one(world, lite_tasks()[276], SCRIPTS[276]))
    assert trajectory.env_reward == 1
    assert "Search results for" in trajectory.steps[-1].observation
