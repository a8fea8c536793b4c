"""A served checkpoint as an agent of stock BrowserGym: it does there what it does in our own evaluation."""

import asyncio
import contextlib
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import uvicorn
from llm_builders import PAGE, save_tiny_model
from served import served

pytest.importorskip("browsergym.experiments", reason="pip install 'webrl[agent]'")
from webrl import load_actor, load_config, make_env
from webrl.errors import UsageError
from webrl.llm.local.model import LocalModel
from webrl_serve.gym.agent import WebrlAgentArgs
from webrl_serve.model.app import Service, make_app

ROOT = Path(__file__).resolve().parents[3]
STOCK = ROOT / "benchmarks" / "stock_browsergym.py"
TASKS = ["choose-list.903", "login-user.906", "enter-date.908", "click-button.901"]
OBSERVATION = {"goal": "Click on OK.", "axtree_txt": PAGE, "last_action_error": ""}


def play_ours(tasks):
    """Actions and reward of each task in our own environment, with greedy answers."""
    config = load_config("demo", ["rollout.temperature=0"])
    found = {}
    with load_actor("data/tiny/actor", config) as actor:
        for task in tasks:
            page, _, seed = task.rpartition(".")
            with make_env(f"miniwob.{page}", config.rollout) as env:
                env.task = dataclasses.replace(env.task, seed=int(seed), task_id=f"miniwob.{task}")
                trajectory = actor.play(env)
            found[task] = [step.action for step in trajectory.steps], trajectory.env_reward
    return found


def play_stock(url, tasks):
    """The same in stock BrowserGym, through a server."""
    command = [sys.executable, STOCK, "agent", "--url", url, "--pages", ",".join(tasks), "--steps", "10"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    played = [json.loads(line) for line in done.stdout.splitlines()]
    assert [episode["error"] for episode in played] == [None] * len(tasks)
    return {episode["task"]: (episode["actions"], episode["reward"]) for episode in played}


@pytest.mark.browser
@pytest.mark.slow
def test_a_served_actor_plays_stock_browsergym_as_it_plays_our_own_evaluation():
    with served(["serve-model", "data/tiny/actor", "demo", "--port", "0"], r"serving actor on (\S+)\n") as (url, _):
        stock = play_stock(url, TASKS)
    ours = play_ours(TASKS)
    assert stock == ours
    assert {reward for _, reward in ours.values()} == {0.0, 1.0}, "neither all nor none: there is something to agree on"
    assert "send_msg_to_user('done')" in ours["click-button.901"][0], "BrowserGym's MiniWoB would go on after that"


@contextlib.contextmanager
def in_thread(app):
    """The address of an application, served until the block ends."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def babbler(tmp_path_factory):
    """A model that no one has trained: nothing that it says is an action."""
    folder = save_tiny_model(tmp_path_factory.mktemp("babbler"), positions=4096)
    config = load_config(
        None, ["models.max_prompt_tokens=3800", "rollout.max_new_tokens=8", "rollout.max_parse_failures=2"]
    )
    model = LocalModel(str(folder), config.rollout.engine, config.models)
    yield Service(model, "babbler", config, 4096)
    asyncio.run(model.close())


def test_unreadable_answers_do_nothing_and_end_the_episode_as_in_training(babbler):
    with in_thread(make_app(babbler)) as url:
        agent = WebrlAgentArgs(base_url=url, temperature=0).make_agent()
        first, info = agent.get_action(OBSERVATION)
        assert first == "noop(0)"
        assert "Not an action" in info.extra_info["error"]
        assert agent.get_action(OBSERVATION)[0] == "noop(0)"
        last, info = agent.get_action(OBSERVATION)
        assert (last, info.think) == (None, "2 unreadable answers in a row")


def test_what_the_agent_cannot_use_is_refused_by_name(babbler):
    html = babbler.config.model_copy(
        update={"rollout": babbler.config.rollout.model_copy(update={"observation": "html"})}
    )
    with (
        in_thread(make_app(dataclasses.replace(babbler, config=html))) as url,
        pytest.raises(UsageError, match="'babbler' reads pages as simplified HTML"),
    ):
        WebrlAgentArgs(base_url=url).make_agent()
    with in_thread(make_app(babbler)) as url, pytest.raises(UsageError, match=r"'other' is not served .* babbler"):
        WebrlAgentArgs(base_url=url, model="other").make_agent()


def test_a_server_on_this_machine_is_not_asked_through_a_proxy(babbler, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with in_thread(make_app(babbler)) as url:
        assert WebrlAgentArgs(base_url=url, temperature=0).make_agent().get_action(OBSERVATION)[0] == "noop(0)"


def test_a_server_that_is_not_ours_is_refused():
    from llm_loopback import LoopbackServer

    async def ask():
        async with LoopbackServer(None).running() as server:
            await asyncio.to_thread(WebrlAgentArgs(base_url=server.url).make_agent)

    with pytest.raises(UsageError, match="it is not `webrl serve-model`"):
        asyncio.run(ask())


def test_the_token_is_not_in_what_experiments_write_down(monkeypatch):
    monkeypatch.setenv("WEBRL_MODEL_TOKEN", "very-secret")
    args = WebrlAgentArgs(base_url="http://127.0.0.1:1/v1")
    args.set_reproducibility_mode()
    assert b"very-secret" not in pickle.dumps(args)
    assert pickle.loads(pickle.dumps(args)) == args
    assert args.temperature == 0
