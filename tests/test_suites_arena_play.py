"""The arena's templates in a real browser: experts solve them; who does nothing, half or another does not."""

from __future__ import annotations

import asyncio
import json

import pytest
from arena_builders import arena
from browsers import run, shared_browser

from webrl.arena import running
from webrl.arena.client import Arena
from webrl.cli import main
from webrl.demos.arena import ARENA_EXPERTS
from webrl.demos.record import ExpertPolicy, arena_demonstrations
from webrl.errors import BrowserError
from webrl.rollouts.collect import collect
from webrl.runs.store import read_records
from webrl.suites import seed_tasks
from webrl.suites.arena.draw import TEMPLATES, draw
from webrl.suites.arena.env import ArenaEnv
from webrl.suites.arena.task_files import as_task
from webrl.suites.world import WORLD
from webrl.types import Status, Trajectory

pytestmark = [pytest.mark.browser, pytest.mark.arena]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    with arena(tmp_path_factory.mktemp("arena")) as config:
        yield config


async def _play(env, template):
    """Scores of an expert's episode: before it, before its last action, at its end; and what other tasks say then."""
    tasks = [as_task(entry, "", "eval") for entry in draw(template, "eval", 8)]
    task = tasks[0]
    seen, worked, scores = await env.reset(task), [], {}
    scores["idle"] = (await env.finish()).reward
    num_steps = len(ARENA_EXPERTS[template.key].script(template.read(task.instruction)))
    result = None
    while result is None or not result.agent_done:
        if len(worked) == num_steps - 1:
            scores["half"] = (await env.finish()).reward
        action = ARENA_EXPERTS[template.key].plan(task.instruction, seen.text, worked)
        assert action, (template.key, worked, seen.url)
        assert len(worked) <= num_steps, (template.key, worked, seen.url)
        result = await env.step(action)
        seen = result.observation
        worked += [] if result.error else [action]
    end = await env.finish()
    scores["expert"] = (end.reward, end.note)
    others = [t for t in tasks if t.extra["arena"]["eval"] != task.extra["arena"]["eval"]]
    assert others, template.key
    scores["wrong"] = {(await env.judge(other)).reward for other in others}
    return scores


@pytest.mark.slow
@pytest.mark.parametrize("site", ["shop", "shop_admin"])
def test_experts_solve_every_template_and_idle_half_done_and_wrong_ones_none(config, site):
    templates = [template for template in TEMPLATES if template.site == site]

    async def work():
        waiting, played = list(templates), {}
        async with shared_browser() as browser:

            async def player():
                env = ArenaEnv(browser, config.rollout)
                while waiting:
                    template = waiting.pop()
                    played[template.name] = await _play(env, template)
                await env.close()

            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(player())
        return played

    expected = {"idle": 0.0, "half": 0.0, "expert": (1.0, ""), "wrong": {0.0}}
    played = run(work())
    assert {name: scores for name, scores in played.items() if scores != expected} == {}
    assert len(played) == len(templates)


def test_two_episodes_do_not_see_each_other_and_leave_nothing(config):
    template = next(template for template in TEMPLATES if template.name == "deactivate")
    first, second = (as_task(entry, "", "eval") for entry in draw(template, "eval", 2))
    box = Arena.running(config.rollout.arena.folder)

    async def work():
        async with shared_browser() as browser:
            one, other = ArenaEnv(browser, config.rollout), ArenaEnv(browser, config.rollout)
            await other.reset(second)
            scores = await _play(one, template)
            untouched = await other.judge(first)
            folders = [env._session.database for env in (one, other)]
            await one.close()
            await other.close()
            return scores["expert"], untouched.reward, folders

    solved, untouched, folders = run(work())
    assert solved == (1.0, "")
    assert untouched == 0.0
    assert len(set(folders)) == 2
    assert not any(path.exists() for path in folders)
    assert box.state


def test_an_arena_that_is_lost_is_no_failure_of_the_agent(tmp_path):
    with arena(tmp_path / "arena") as config:
        task = seed_tasks(config)[0]

        async def work():
            async with shared_browser() as browser:
                env = ArenaEnv(browser, config.rollout)
                await env.reset(task)
                Arena.running(config.rollout.arena.folder).reset()  # its session is dropped under it
                with pytest.raises(BrowserError, match="lost the session"):
                    await env.step("noop()")
                await env.reset(task)
                running.stop(config.rollout.arena.folder)
                assert (await env.finish()).reward is None
                await env.close()

        run(work())
        quick = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_retries": 0})})
        out = tmp_path / "t.jsonl"
        policy = ExpertPolicy(task.site, 0.0, 0)
        run(collect([task], quick, policy, out, phase=0, prefix="t", world=WORLD))
        (played,) = read_records(out, Trajectory)
        assert (played.status, played.env_reward) == (Status.ENV_ERROR, None)


@pytest.mark.slow
def test_demonstrations_are_recorded_and_a_phase_is_played(config, tmp_path, capsys):
    folder = config.rollout.arena.folder
    common = [f"rollout.arena.folder={folder}", "rollout.envs_per_worker=2", f"runs_dir={tmp_path}"]
    sites = "tasks.train_sites=[arena.shop.open-category,arena.shop_admin.order-customer]"
    assert len(arena_demonstrations(config, 2)) == 2 * sum(not template.held_out for template in TEMPLATES)
    assert main(["record-demos", "arena", "--per-type", "1", sites, *common]) == 0
    assert "2/2 solved" in capsys.readouterr().out
    small = ["tasks.num_seed_tasks=2", "tasks.num_eval_tasks=1", "tasks.num_heldout_tasks=1", "rollout.max_steps=2"]
    small += ["generate.num_tasks=2", "filter.feasibility=false", "filter.critic_band=false", "num_phases=0"]
    assert main(["run", "arena", sites, *small, *common]) == 0
    summary = json.loads((tmp_path / "arena" / "summary.json").read_text())
    evaluated = summary["phases"][0]["eval"]
    assert (evaluated["episodes"], evaluated["errors"]) == (1, 0)
    assert evaluated["heldout_types"]["episodes"] == 1
