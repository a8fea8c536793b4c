"""Served over OpenEnv: the fields of its BrowserGym environment, sessions, tokens; episodes on such servers."""

import asyncio
import base64
import contextlib
import json
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest
from openenv_builders import client as generic_client
from openenv_builders import server
from processes import BROWSER, descendants
from rollouts_builders import ClickNamedButton, Scripted, at, bid_of, in_browser, miniwob, serve
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from webrl.config import RolloutConfig, validate_config
from webrl.errors import BrowserError, StageError, UsageError
from webrl.llm.pictures import png_size
from webrl.rollouts.collect import collect
from webrl.rollouts.episode import run_episode
from webrl.runs.store import read_records
from webrl.types import Status, Trajectory
from webrl_serve.openenv import client
from webrl_serve.openenv.client import RemotePool, read_result

pytestmark = pytest.mark.browser

SCHEMA = json.loads((Path(__file__).parent / "data" / "openenv_browsergym_schema.json").read_text(encoding="utf-8"))
TOKEN = "correct horse"


@pytest.fixture(scope="module")
def shared(servers):
    # more places than a test takes: those of the test before are given back a moment after it ends
    with servers.open(num_sessions=6, idle_timeout_s=60, screenshots="none") as url:
        yield url


def config(*urls, **settings):
    return RolloutConfig(env="openenv", urls=urls, **({"num_workers": 1, "envs_per_worker": 2} | settings))


def run_config(*urls, **settings):
    rollout = {"env": "openenv", "urls": urls, "num_workers": 1, "envs_per_worker": 2} | settings
    return validate_config({"rollout": rollout}, "test")


def play_there(url, play, **settings):
    """What `play` returns of an environment of this server alone."""

    async def there():
        async with RemotePool(config(url, envs_per_worker=1, **settings)) as pool, pool.env() as env:
            return await play(env)

    return asyncio.run(there())


async def see(env):
    return (await env.reset(miniwob("click-test"))).goal


async def reach(url):
    """Ask a server as the rollout stage does before it starts."""
    async with RemotePool(config(url)):
        pass


def collected(num_tasks, run, out, wait_s=0, **options):
    tasks = [miniwob("click-button", seed) for seed in range(num_tasks)]
    return asyncio.run(collect(tasks, run, ClickNamedButton(wait_s), out, phase=1, prefix="p01", **options))


def assert_fits(data, fields):
    """Exactly the fields of OpenEnv's BrowserGym environment, with its types (a screenshot is not asked for)."""
    kinds = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None), "array": list}
    assert data.keys() - {"metadata"} == fields.keys()
    for name, field in fields.items():
        allowed = tuple(kinds[kind] for kind in field["type"].split(" or "))
        assert any(isinstance(data[name], kind) for kind in allowed), f"{name}: {data[name]!r}"


def test_openenvs_browsergym_client_finds_the_fields_it_reads(shared):
    with generic_client(shared) as env:
        first = env.reset(task_name="click-button", seed=0)
        assert_fits(first.observation, SCHEMA["observation"])
        assert first.observation["goal"] == 'Click on the "no" button.'
        assert first.observation["axtree_txt"] == first.observation["text"]
        assert (first.reward, first.done) == (0.0, False)
        # What the upstream client's `_step_payload` sends: the action and its metadata.
        wrong = env.step({"action_str": "click('no such bid')", "metadata": {}})
        assert wrong.observation["last_action_error"] is True
        assert wrong.observation["error"]
        bid = bid_of(first.observation["text"], "button", "no")
        last = env.step({"action_str": f"click('{bid}')", "metadata": {}})
        assert_fits(last.observation, SCHEMA["observation"])
        assert (last.reward, last.done) == (1.0, True)
        state = env.state()
    assert_fits(state, SCHEMA["state"])
    assert (state["benchmark"], state["task_name"], state["step_count"]) == ("miniwob", "click-button", 2)
    assert (state["cum_reward"], state["goal"]) == (1.0, 'Click on the "no" button.')


def test_the_published_schema_is_openenvs(shared):
    schema = httpx.get(f"{shared}/schema").json()
    assert schema["action"]["properties"].keys() == SCHEMA["action"].keys()
    assert schema["action"]["required"] == ["action_str"]
    fields = SCHEMA["observation"] | SCHEMA["beside_observation"]
    assert schema["observation"]["properties"].keys() - {"metadata"} == fields.keys()
    for name, field in fields.items():
        assert schema["observation"]["properties"][name].get("default") == field["default"], name


def test_task_seed_and_instruction_are_chosen_at_reset_and_screenshots_are_png(shared):
    with generic_client(shared) as env:
        same = [env.reset(task_name=name, seed=3).observation for name in ("click-button", "miniwob.click-button")]
        assert same[0] == same[1]
        other = env.reset(task_name="browsergym/miniwob.click-button", seed=4).observation
        assert other["text"] != same[0]["text"]
        assert env.reset().observation["goal"] == "Click the button."  # the server's own task
        told = env.reset(task_name="click-button", seed=3, instruction="Press anything", screenshots=True).observation
        assert told["goal"] == "Press anything"
        assert base64.b64decode(told["screenshot"]).startswith(b"\x89PNG")
        assert env.step({"action_str": "noop(1)"}).observation["screenshot"]
        assert env.reset().observation["screenshot"] is None
        html = env.reset(task_name="click-button", seed=3, observation="html").observation
        assert html["pruned_html"] == html["text"] != same[0]["text"]
        with pytest.raises(RuntimeError, match="WebArena tasks are not served"):
            env.reset(benchmark="webarena", task_name="0")


def test_sessions_are_apart_and_a_full_server_says_so(servers):
    with servers.open() as url, generic_client(url) as one, generic_client(url) as two:
        page = one.reset(task_name="click-button", seed=0).observation["text"]
        assert two.reset(task_name="click-test", seed=0).observation["text"] != page
        one.step({"action_str": f"click('{bid_of(page, 'button', 'no')}')"})
        assert (one.state()["step_count"], two.state()["step_count"]) == (1, 0)
        with pytest.raises(UsageError, match="2/2 sessions active"):
            asyncio.run(reach(url))


@pytest.mark.parametrize(
    ("answers", "status", "message"),
    [
        (["what", "click('no such bid')", "noop(1)", "click('{button:no}')"], Status.PAGE_ENDED, ""),
        (["send_msg_to_user('all done')"], Status.AGENT_DONE, "all done"),
    ],
)
def test_a_collected_episode_is_what_it_is_in_process(shared, answers, status, message):
    def by(settings):
        task = miniwob("click-button")
        return lambda env: run_episode(env, Scripted(*answers), task, settings, trajectory_id="t")

    def without_times(trajectory):
        data = trajectory.to_json()
        for record in (data, *data["steps"]):
            record["seconds"] = None
        return data

    played = play_there(shared, by(config(shared)))
    assert (played.status, played.message) == (status, message)
    assert without_times(played) == without_times(in_browser(by(RolloutConfig())))


def test_every_element_is_shown_to_who_asks_for_it(shared):
    async def read(env):
        return (await env.reset(miniwob("click-shades"))).text

    some, more = (play_there(shared, read, every_element=every) for every in (None, True))
    assert "clickable" not in some
    assert "generic, clickable" in more
    assert more == in_browser(read, every_element=True)


def test_servers_without_our_details_are_read_by_openenvs_fields_alone(shared):
    with generic_client(shared) as env:
        env.reset(task_name="click-button", seed=0)
        answers = [
            (text, env.step({"action_str": text}))
            for text in ("what", "click( 'no such bid' )", "send_msg_to_user('bye')")
        ]
    read = [
        read_result({"observation": a.observation, "reward": a.reward, "done": a.done}, text, RolloutConfig())
        for text, a in answers
    ]
    assert [r.action for r in read] == ["", "click('no such bid')", "send_msg_to_user('bye')"]
    assert [bool(r.error) for r in read] == [True, True, False]
    assert [(r.done, r.agent_done, r.message) for r in read] == [(False, False, "")] * 2 + [(False, True, "bye")]


def test_collecting_over_openenv_gives_every_task_its_line(shared, tmp_path):
    out = tmp_path / "phase_01" / "trajectories.jsonl"
    collected(5, run_config(shared, screenshots=True), out)
    episodes = list(read_records(out, Trajectory))
    assert [each.env_reward for each in episodes] == [1.0] * 5
    assert (tmp_path / episodes[0].steps[0].screenshot).read_bytes().startswith(b"\x89PNG")


def test_a_cancelled_step_does_not_answer_the_next_request(shared):
    async def play():
        async with RemotePool(config(shared, envs_per_worker=1)) as pool:
            async with pool.env() as env:
                await env.reset(miniwob("click-test"))
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await env.step("noop(1500)")
            async with pool.env() as env:
                return await env.reset(miniwob("click-button"))

    assert asyncio.run(play()).goal == 'Click on the "no" button.'


def test_a_token_is_needed_where_one_is_set(servers, monkeypatch):
    with servers.open(token=TOKEN) as url:
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/schema").status_code == 401
        assert httpx.get(f"{url}/schema", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert httpx.get(f"{url}/schema", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        with pytest.raises(UsageError, match=r"refused access \(401\): set WEBRL_ENV_TOKEN"):
            play_there(url, see)
        monkeypatch.setenv("WEBRL_ENV_TOKEN", TOKEN)
        assert play_there(url, see) == "Click the button."
        monkeypatch.delenv("WEBRL_ENV_TOKEN")
        # Clients that know no headers send the password of a URL.
        with generic_client(url.replace("//", "//any:correct%20horse@")) as env:
            assert env.reset().observation["goal"] == "Click the button."


def wait_for_a_place(url, play=None):
    """Until a place is free; `play` takes it at once (a session that only looks has to be given back first)."""
    end = time.monotonic() + 60
    while True:
        assert time.monotonic() < end, "watchdog: the place never became free"
        with contextlib.suppress(UsageError, ConnectionClosed):
            return play_there(url, play) if play else asyncio.run(reach(url))
        time.sleep(0.2)


@pytest.mark.slow
def test_an_idle_session_gives_its_environment_back_and_gets_one_again_at_its_next_reset():
    with server("--idle-timeout", "2", num_sessions=1) as (url, _), generic_client(url) as silent:
        silent.reset()
        wait_for_a_place(url)
        with pytest.raises(RuntimeError, match="no episode: reset first"):
            silent.step({"action_str": "noop(1)"})
        assert silent.reset(task_name="click-button", seed=0).observation["goal"] == 'Click on the "no" button.'
        assert silent.step({"action_str": "noop(1)"}).observation["text"]


def test_a_client_that_vanishes_in_mid_step_frees_its_place(servers):
    async def vanish(env):
        await env.reset(miniwob("click-test"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await env.step("noop(9000)")

    with servers.open(num_sessions=1) as url:
        for _ in range(3):
            wait_for_a_place(url, vanish)
        assert wait_for_a_place(url, see) == "Click the button."


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[]", "a message is a JSON object, not list"),
        ('{"type": ["reset"]}', "Unknown message type"),
        ('{"type": "reset", "data": []}', "data = []"),
        ('{"type": "reset", "extra": 1}', "extra = 1"),
        ('{"type": "reset", "data": {"seeed": 1}}', "seeed = 1"),
        ('{"type": "reset", "data": {"seed": 1e400}}', "seed = inf"),
        ('{"type": "reset", "data": {"task_name": "../click-test"}}', "unknown MiniWoB page"),
        (
            '{"type": "reset", "data": {"benchmark": "web", "start_url": "http://169.254.169.254/"}}',
            "not among the server's rollout.allowed_hosts",
        ),
        ('{"type": "reset", "data": {"allowed_hosts": ["*"]}}', "not among the server's rollout.allowed_hosts"),
        ('{"type": "reset", "data": {"allowed_hosts": ["a,*"]}}', "not among the server's rollout.allowed_hosts"),
        (
            '{"type": "reset", "data": {"benchmark": "web", "start_url": "file:///etc/passwd"}}',
            "is not an address such as http://host/path",
        ),
        ('{"type": "reset", "data": {"upload_dir": "/"}}', "upload_dir = '/'"),
        ('{"type": "reset", "data": {"settle_cap_s": 0}}', "settle_cap_s = 0"),
        ('{"type": "step"}', "step: action_str is missing in {}"),
        ('{"type": "step", "data": {"action": "noop()"}}', "action_str is missing in {'action': 'noop()'}"),
        ('{"type": "step", "data": {"action_str": "noop()"}}', "no episode: reset first"),
    ],
)
def test_a_bad_message_has_one_clear_answer_and_the_session_lives_on(shared, message, says):
    with connect(shared.replace("http", "ws") + "/ws") as socket:
        socket.send(message)
        answer = json.loads(socket.recv())
        assert (answer["type"], "\n" in answer["data"]["message"]) == ("error", False)
        assert says in answer["data"]["message"]
        assert len(answer["data"]["message"]) < 500
        socket.send('{"type": "state"}')
        assert json.loads(socket.recv())["type"] == "state"


def test_a_public_host_that_is_an_internal_one_is_not_reached(servers):
    reached = []

    async def play(url):
        async with serve({"/": knock}) as canary, RemotePool(config(url, envs_per_worker=1)) as pool, pool.env() as env:
            # `*` on the server covers whatever host a client names, but no internal address.
            return await env.reset(at(canary + "/"))

    async def knock(path, writer):
        reached.append(path)

    with servers.open(num_sessions=1, rollout={"allowed_hosts": ("*",)}) as url:
        assert "is an internal address" in asyncio.run(play(url)).text
    assert reached == []


@pytest.mark.parametrize(
    "how", [*(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGINT, signal.SIGKILL)), signal.SIGTERM]
)
def test_a_server_that_is_started_with_options_and_variables_follows_them_and_leaves_nothing_behind(how):
    variables = {"BROWSERGYM_TASK_NAME": "click-button", "BROWSERGYM_VIEWPORT_WIDTH": "640"}
    started = server("--screenshots", "png", MAX_CONCURRENT_ENVS="1", **variables)
    with started as (url, process), generic_client(url) as client:
        seen = client.reset(seed=0).observation
        assert seen["goal"] == 'Click on the "no" button.'
        assert png_size(base64.b64decode(seen["screenshot"])) == (640, 720)
        below = descendants(process.pid)
        assert descendants(process.pid, BROWSER)
        process.send_signal(how)
        process.wait(30)
        _, left = psutil.wait_procs(below, 30)
    assert left == []


@pytest.mark.slow
def test_a_server_that_dies_and_comes_back_costs_attempts_not_episodes(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "RETRY_S", 0.5)
    monkeypatch.setattr(client, "PATIENCE_S", 300.0)  # a busy machine takes its time to start a server
    out = tmp_path / "trajectories.jsonl"
    with contextlib.ExitStack() as stack:
        url, process = stack.enter_context(server())

        def restart(_):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                again = stack.enter_context
                asyncio.get_running_loop().run_in_executor(None, again, server(port=int(url.rpartition(":")[2])))

        assert collected(6, run_config(url), out, wait_s=0.3, on_episode=restart) == {"page_ended": 6}
    assert max(t.attempts for t in read_records(out, Trajectory)) > 1


@pytest.mark.slow
def test_when_no_server_is_left_the_stage_ends_and_the_same_command_plays_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "RETRY_S", 0.2)
    monkeypatch.setattr(client, "PATIENCE_S", 1.0)
    out = tmp_path / "trajectories.jsonl"

    def play(*urls, **options):
        return collected(4, run_config(*urls, num_workers=2), out, wait_s=0.5, **options)

    with server() as (url, process), pytest.raises(StageError, match=r"no OpenEnv server has answered.*same command"):
        play(url, "http://127.0.0.1:9", on_episode=lambda _: process.kill())  # nobody listens on the second
    before = list(read_records(out, Trajectory))
    assert 1 <= len(before) < 4
    with server() as (url, _):
        assert play(url) == {"page_ended": 4}
    assert list(read_records(out, Trajectory))[: len(before)] == before


@pytest.mark.slow
def test_a_server_that_our_own_sessions_fill_is_not_taken_for_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "RETRY_S", 0.1)
    monkeypatch.setattr(client, "PATIENCE_S", 0.3)
    out = tmp_path / "trajectories.jsonl"
    with server() as (url, _):  # two sessions
        assert collected(4, run_config(url, num_workers=2), out, wait_s=1.5) == {"page_ended": 4}


def test_a_server_that_answers_nonsense_or_nothing_is_an_error_and_no_hang(monkeypatch):
    from websockets.asyncio.server import serve

    monkeypatch.setattr(client, "GRACE_S", 0.2)
    monkeypatch.setattr(client, "START_TIMEOUT_S", 0.2)
    answers = ["{", "[]", '{"type": "observation", "data": {}}', '{"type": "observation", "data": {"observation": {}}}']

    async def handler(socket):
        async for message in socket:
            if '"state"' in message:
                await socket.send('{"type": "state", "data": {}}')
            elif answers:
                await socket.send(answers.pop(0))

    async def play():
        async with serve(handler, "127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
            problems = []
            async with RemotePool(config(url, envs_per_worker=1, step_timeout_s=0.2, settle_cap_s=0.1)) as pool:
                for _ in range(5):
                    async with pool.env() as env:
                        with pytest.raises(BrowserError) as problem:
                            await env.reset(miniwob("click-test"))
                        problems.append(str(problem.value))
            return problems

    *nonsense, nothing = asyncio.run(play())
    assert len(nonsense) == 4
    assert all("malformed" in text for text in nonsense)
    assert "no answer to 'reset' in 0.6 s" in nothing
