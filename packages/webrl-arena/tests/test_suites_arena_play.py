"""The arena's templates in a real browser: experts solve them; who does nothing, half or another does not."""

import asyncio
import json
import re

import pytest
from arena_proof import prove, prove_template
from arena_server import patient, serving
from browsers import run, shared_browser

from webrl.cli import main
from webrl.errors import BrowserError
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import seed_tasks
from webrl.runs.store import read_lines, read_records
from webrl.types import Label, Status, Trajectory
from webrl_arena.env import ArenaEnv
from webrl_arena.tasks import as_task, draw
from webrl_arena.templates import all_templates
from webrl_arena.world import running
from webrl_arena.world.client import Arena
from webrl_site.record import ExpertPolicy, expert_tasks

pytestmark = [pytest.mark.browser, pytest.mark.arena]


@pytest.fixture(scope="module")
def config(arena):
    return patient(arena.folder)


@pytest.mark.slow
@pytest.mark.parametrize("site", ["shop", "shop_admin", "forum", "tracker", "mail"])
def test_experts_solve_every_template_and_idle_half_done_and_wrong_ones_none(config, site):
    templates = [template for template in all_templates() if template.site.rpartition("+")[2] == site]

    async def work():
        async with shared_browser() as browser:
            return await prove(templates, browser, config.rollout)

    proofs = run(work())
    assert {key: proof for key, proof in proofs.items() if not proof.holds} == {}
    assert len(proofs) == len(templates)


def test_two_episodes_do_not_see_each_other_and_leave_nothing(config):
    template = next(template for template in all_templates() if template.name == "deactivate")
    first, second = (as_task(entry, "eval") for entry in draw(template, "eval", 2))
    box = Arena.running(config.rollout.arena.folder)

    async def work():
        async with shared_browser() as browser:
            one, other = ArenaEnv(browser, config.rollout), ArenaEnv(browser, config.rollout)
            await other.reset(second)
            proof = await prove_template(one, template)
            untouched = await other.judge(first)
            folders = [env._session.database for env in (one, other)]
            await one.close()
            await other.close()
            return proof, untouched.reward, folders

    proof, untouched, folders = run(work())
    assert proof.holds, proof
    assert untouched == 0.0
    assert len(set(folders)) == 2
    assert not any(path.exists() for path in folders)
    assert box.state


_LEAVE = """async () => {
  const leave = () => {
    for (const storage of [localStorage, sessionStorage]) storage.setItem('left', 'behind');
    document.cookie = 'left=behind; path=/';
    window.name = 'left';
  };
  leave();
  addEventListener('pagehide', leave);
  history.pushState({}, '', '#left');
  await (await caches.open('left')).put('/left', new Response('behind'));
  await new Promise((resolve) => { indexedDB.open('left').onsuccess = resolve; });
}"""
_LEFT = """async () => ({
  stored: [localStorage.length, sessionStorage.length, await caches.keys(), await indexedDB.databases()],
  name: window.name, history: history.length, referrer: document.referrer, hovered: document.querySelector('a:hover'),
  cookies: document.cookie.split('; ').map((cookie) => cookie.split('=')[0]),
  picture: await (await fetch('/media/picture.txt')).text(),
})"""


def test_an_episode_hands_its_profile_on_with_nothing_left_in_it(config):
    template = next(template for template in all_templates() if template.name == "deactivate")
    task = as_task(*draw(template, "eval", 1), "eval")

    async def begin(env, picture):
        observation = await env.reset(task)
        media = env._session.database.with_name("media")
        media.mkdir()
        (media / "picture.txt").write_text(picture)
        left = await env.page.evaluate(_LEFT)
        cookies = sorted((cookie["name"], cookie["path"]) for cookie in await env.context.cookies())
        return observation, left, cookies

    async def work():
        async with shared_browser() as browser:
            env = ArenaEnv(browser, config.rollout)
            await begin(env, "the first's")
            first = env.context
            link = re.search(r"\[(\d+)\] link", (await env.step("noop(0)")).observation.text)
            await env.page.evaluate(_LEAVE)
            await env.step(f"hover('{link[1]}')")
            bystander = await browser.new_context()
            await bystander.add_cookies([{"name": "own", "value": "stays", "url": env.page.url}])
            await env.close()
            assert [cookie["name"] for cookie in await bystander.cookies()] == ["own"]
            other = ArenaEnv(browser, config.rollout.model_copy(update={"settle_cap_s": 59}))
            expected = await begin(other, "second")
            await other.close()
            found = await begin(env, "second")
            assert env.context is first
            await env.page.evaluate("sessionStorage.setItem('mine', 'kept')")
            await env.page.reload()
            assert await env.page.evaluate("sessionStorage.getItem('mine')") == "kept"
            back = await env.step("go_back()")
            contexts = [first]
            for action in ("noop(0)", "keyboard_down('Shift')", "new_tab()"):
                await env.step(action)
                await env.close()
                await begin(env, "")
                contexts.append(env.context)
            await env.close()
            return expected, found, back, contexts

    expected, found, back, contexts = run(work())
    assert found == expected
    assert found[1]["picture"] == "second"
    assert back.error == "Error: there is no earlier page in this tab"
    assert len(set(contexts)) == len(contexts)  # after a way back, a key that is down, a second tab: a new one each


def test_a_page_in_a_profile_that_was_handed_on_ends_the_action_when_it_crashes(config):
    template = next(template for template in all_templates() if template.name == "deactivate")
    task = as_task(*draw(template, "eval", 1), "eval")

    async def work():
        async with shared_browser() as browser:
            giver, env = ArenaEnv(browser, config.rollout), ArenaEnv(browser, config.rollout)
            await giver.reset(task)
            context, giver.tab.outward = giver.context, ["mailto:x"]
            await giver.close()
            text = (await env.reset(task)).text
            assert env.context is context
            assert "leads out" not in text
            acting = asyncio.ensure_future(env.step("noop(9000)"))
            await asyncio.sleep(0.5)
            env.tab._note("Inspector.targetCrashed", {})
            with pytest.raises(BrowserError, match=": the page has crashed"):
                await acting

    run(work())


@pytest.mark.slow
def test_an_arena_that_is_lost_is_no_failure_of_the_agent(tmp_path, tmp_path_factory):
    with serving(tmp_path / "arena", tmp_path_factory) as arena:
        config = patient(arena.folder)
        task = seed_tasks(config)[0]

        async def work():
            async with shared_browser() as browser:
                env = ArenaEnv(browser, config.rollout)
                await env.reset(task)
                Arena.running(config.rollout.arena.folder).reset()  # its session is dropped under it
                with pytest.raises(BrowserError, match="lost the session"):
                    await env.step("noop(0)")
                await env.reset(task)
                running.stop(config.rollout.arena.folder)
                assert (await env.finish()).reward is None
                await env.close()

        run(work())
        quick = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_retries": 0})})
        out = tmp_path / "t.jsonl"
        policy = ExpertPolicy(task.site)
        run(collect([task], quick, policy, out, phase=0, prefix="t"))
        (played,) = read_records(out, Trajectory)
        assert (played.status, played.env_reward) == (Status.ENV_ERROR, None)


@pytest.mark.slow
def test_demonstrations_are_recorded_and_phases_are_played_the_second_on_what_the_generator_writes(
    config, tmp_path, webrl
):
    folder = config.rollout.arena.folder
    num_sessions = running.num_sessions(folder)  # other tests of this process have left some
    common = [f"rollout.arena.folder={folder}", "rollout.envs_per_worker=2", f"runs_dir={tmp_path}"]
    sites = "tasks.train_sites=[arena.shop.open-category,arena.tracker+shop_admin.price-request]"
    assert len(expert_tasks(config, 2)) == 2 * sum(not template.held_out for template in all_templates())
    assert "2/2 solved" in webrl(0, "record-demos", "arena", "--per-type", "1", sites, *common).out
    small = ["tasks.num_seed_tasks=2", "tasks.num_eval_tasks=1", "tasks.num_heldout_tasks=1", "rollout.max_steps=2"]
    small += ["generate.num_tasks=8", "filter.feasibility=false", "filter.max_tasks=3"]
    small += ["critic.steps=1", "actor.steps=1", "accept.tasks=2"]
    assert main(["run", "arena", sites, *small, *common]) == 0
    summary = json.loads((tmp_path / "arena" / "summary.json").read_text())
    for phase in summary["phases"]:
        evaluated = phase["eval"]
        assert (evaluated["episodes"], evaluated["errors"]) == (1, 0)
        assert evaluated["heldout_types"]["episodes"] == 1
    run_folder = tmp_path / "arena"
    first, written = (list(read_records(run_folder / f"phase_0{k}" / "trajectories.jsonl", Trajectory)) for k in (0, 1))
    assert {t.env_reward for t in first} <= {0.0, 1.0}
    pages = {page["task_id"]: page["text"] for _, page in read_lines(run_folder / "phase_01" / "pages.jsonl")}
    for t in written:
        assert t.status.finished, t.message
        assert t.task.extra["arena"].keys() == {"login"}  # no evaluator: the outcome model judges
        assert t.env_reward is None
        assert pages[t.task.task_id]
    labels = {label.trajectory_id for label in read_records(run_folder / "phase_01" / "labels.jsonl", Label)}
    assert labels == {t.trajectory_id for t in written} != set()
    assert running.num_sessions(folder) == num_sessions
