"""The arena behind `webrl serve-env`: tasks by name and id, a session for each episode, rewards in steps."""

import time

import pytest
from openenv_builders import client, run_script, server

from webrl.cli import main
from webrl_arena.tasks import find_task
from webrl_arena.templates import by_type
from webrl_arena.world import running
from webrl_grpo.play import Player
from webrl_grpo.settings import load_settings
from webrl_grpo.train import make_tasks

pytestmark = [pytest.mark.browser, pytest.mark.arena]


@pytest.fixture(scope="module")
def arena(arena):
    """The shared one without anybody's sessions: these are counted, and dropped."""
    arena.reset()
    return arena


@pytest.fixture(scope="module")
def shared(arena):
    with shop_server(arena) as (url, _):
        yield url


def shop_server(arena):
    task = "arena.shop.search-eval-0-0"  # of clients that name none
    options = ["--task", task, "--screenshots", "none"]
    return server("arena", f"rollout.arena.folder={arena.folder}", *options, num_sessions=3)


def solve(env, task, name, seed):
    """Play a task's expert; every step's answer, the reset's first."""
    expert, worked = by_type()[task.site], []
    seen = [env.reset(task_name=name, seed=seed)]
    assert seen[0].observation["goal"] == task.instruction
    while not seen[-1].done:
        action = expert.plan(task.instruction, seen[-1].observation["text"], worked)
        assert action, (worked, seen[-1].observation["text"])
        seen.append(env.step({"action_str": action}))
        worked.append(action)
    return seen


def wait_for_sessions(folder, number):
    deadline = time.monotonic() + 120
    while running.num_sessions(folder) != number:
        assert time.monotonic() < deadline, running.num_sessions(folder)
        time.sleep(0.05)


def test_a_task_is_played_by_name_and_seed_or_by_its_id_and_ends_once_it_is_solved(shared, arena):
    with client(shared) as env:
        for name, seed in (("arena.shop_admin.order-status", 5), ("arena.shop.open-product-eval-0-3", 0)):
            task = find_task(name, seed)
            rewards = [(step.reward, step.done) for step in solve(env, task, name, seed)]
            assert rewards[-1] == (1.0, True)
            assert set(rewards[:-1]) == {(0.0, False)}
            assert running.num_sessions(arena.folder) == 1  # the last episode's is dropped by the next
        state = env.state()
        assert (state["benchmark"], state["task_name"]) == ("arena", "shop.open-product-eval-0-3")
    wait_for_sessions(arena.folder, 0)


@pytest.mark.slow
def test_public_clients_play_the_shop(shared, arena):
    for package in ("openenv-core==0.2.1", "openenv==0.10.0"):
        seen = run_script(package, "shop", shared)
        assert [(step["reward"], step["done"]) for step in seen] == [*[(0.0, False)] * 3, (1.0, True), (0.0, True)]
        wait_for_sessions(arena.folder, 0)
    with shop_server(arena) as (url, _):
        seen = run_script("openenv-core==0.1.1", "shop_over_http", url)
        assert [(step["reward"], step["done"]) for step in seen] == [*[(0.0, False)] * 3, (1.0, True)]
    wait_for_sessions(arena.folder, 0)  # HTTP does not tell that a client has gone: its session ends with the server


@pytest.mark.slow
def test_grpo_is_given_the_same_tasks_by_a_server_as_in_process(shared, arena):
    common = {"task_name": ("arena.shop.open-product", "focus-text-2", "arena.shop_admin.sku"), "dataset_size": 4}

    def first_pages(**more):
        settings = load_settings(None, {**common, **more})
        tasks = make_tasks(settings)
        assert [task.site.partition(".")[0] for task in tasks] == ["arena", "miniwob", "arena", "arena"]
        with Player(settings) as player:
            player.check(tasks)
            return player._loop.run(look(player, tasks))

    async def look(player, tasks):
        seen = []
        for task in tasks:
            async with player._env(task) as env:
                observation = await env.reset(task)
                seen.append((task.task_id, observation.goal, observation.text))
        return seen

    there = first_pages(browsergym_url=shared)
    assert there == first_pages(arena_folder=str(arena.folder))
    wait_for_sessions(arena.folder, 0)


def test_a_client_that_vanishes_leaves_no_session(shared, arena):
    with client(shared) as env:
        env.reset(task_name="arena.shop.price", seed=1)
        assert running.num_sessions(arena.folder) == 1
        env._loop.call_soon_threadsafe(env._async._ws.transport.abort)
        wait_for_sessions(arena.folder, 0)


def test_an_arena_that_is_lost_is_said_and_the_next_episode_has_another_session(shared, arena):
    with client(shared) as env:
        env.reset(task_name="arena.shop.price", seed=1)
        arena.reset()
        with pytest.raises(RuntimeError, match="the arena has lost the session"):
            env.step({"action_str": "noop(0)"})
        assert env.reset(task_name="arena.shop.price", seed=1).observation["text"]
    wait_for_sessions(arena.folder, 0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"task_name": "arena.shop.prize"}, "no task 'arena.shop.prize'; the nearest type is 'arena.shop.price'"),
        ({"task_name": "arena.shop.dearest"}, "held out of training; its tasks have ids: arena.shop.dearest-eval-0-0"),
        ({"task_name": "shop.price", "benchmark": "arena", "instruction": "Buy."}, "an instruction .* of its own"),
        ({"task_name": "arena.shop.price", "start_url": "http://a/"}, "start page of its own|not among the server's"),
        ({"task_name": "arena.shop.cheapest-eval-0-999"}, "no task .*that seed draws"),
    ],
)
def test_what_the_arena_has_not_is_refused_by_name(shared, asked, words):
    with client(shared) as env, pytest.raises(RuntimeError, match=words):
        env.reset(**asked)


def test_a_server_without_the_arena_says_so(servers, tmp_path, capsys):
    refused = pytest.raises(RuntimeError, match=r"'arena.shop.price' is not served here: .*tasks.suite=arena")
    with servers.open(num_sessions=1) as url, client(url) as env, refused:
        env.reset(task_name="arena.shop.price")
    nowhere = f"rollout.arena.folder={tmp_path}"
    assert main(["serve-env", "arena", nowhere, "--port", "0"]) != 0
    assert "start it: webrl arena up" in capsys.readouterr().err
