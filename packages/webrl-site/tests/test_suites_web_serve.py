"""A server for every episode, and programs that verify, in a real browser."""

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from browsers import run
from processes import has_ended, python, wait_until
from rollouts_builders import bid_of
from web_builders import ROOT, web_env
from web_builders import play as play_in_worker

from webrl.config import load_config
from webrl.rollouts.suite import find_suite, open_sites, seed_tasks
from webrl.rollouts.worker import Worker
from webrl_site.hooks import EpisodeServer
from webrl_site.sites import SiteError
from webrl_site.starter import Visitor

DONE = "send_msg_to_user('done')"

SERVER = """
import http.server, json, os, socketserver, sys

state = None

class Handler(http.server.SimpleHTTPRequestHandler):
    def do_PUT(self):
        global state
        state = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200, {"status": "ok"})

    def do_GET(self):
        if self.path != "/api/state":
            return super().do_GET()
        self.answer(200, state) if state is not None else self.answer(404, {"error": "no state"})

    def answer(self, status, data):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

os.chdir(sys.argv[1])
server = Server(("127.0.0.1", int(sys.argv[2])), Handler)
print("listening on", *server.socket.getsockname(), flush=True)
server.serve_forever()
"""

PAGE = """
<!doctype html><title>Lamp</title><h1>Lamp</h1>
<label><input type="checkbox" id="on"> Light</label>
<label>Name <input id="name"></label><button id="save">Save</button>
<script>
const state = {on: false, name: ""};
const push = () => fetch("/api/state", {method: "PUT", body: JSON.stringify(state)});
document.getElementById("on").onchange = event => { state.on = event.target.checked; push(); };
document.getElementById("save").onclick = () => { state.name = document.getElementById("name").value; push(); };
push();
</script>
"""

VERIFY = """
import sys, requests

url, check = sys.argv[1:]
state = requests.get(f"{url}/api/state", timeout=5).json()
try:
    passed = {"on": lambda: state["on"] is True, "named": lambda: state["name"] == "Aladdin"}[check]()
    print("pass" if passed else f"fail: the lamp is {state}")
except KeyError as error:
    print(f"fail: KeyError: {error}")
"""
CONFIG = """
name: lamp
num_phases: 1
tasks: {{suite: web, num_seed_tasks: 1, num_eval_tasks: 2, source: fixed}}
rollout:
  web:
    name: lamp
    start_urls: ["http://127.0.0.1:8000/"]
    train_files: [{folder}/lamp_train.jsonl]
    heldout_files: [{folder}/lamp_heldout.jsonl]
    serve: {{command: ["{{python}}", {folder}/server.py, {folder}, "{{port}}"]}}
    verify: ["{{python}}", {folder}/verify.py, "{{url}}", "{{check}}"]
    check_timeout_s: 60
  envs_per_worker: 4
  max_steps: 30
"""


def write_lamp(folder: Path) -> Path:
    """A site with a server for every episode: one task to train on, two held out, the last with an unknown check.

    Returns the path of its config.
    """
    tasks = {
        "train": [("light", "Turn the light on.", "on")],
        "heldout": [("name", "Call the lamp Aladdin.", "named"), ("break", "Break it.", "nothing")],
    }
    for name, entries in tasks.items():
        lines = [json.dumps({"id": i, "instruction": text, "checks": [{"verify": v}]}) for i, text, v in entries]
        (folder / f"lamp_{name}.jsonl").write_text("\n".join(lines) + "\n")
    files = {"index.html": PAGE, "server.py": SERVER, "verify.py": VERIFY, "lamp.yaml": CONFIG.format(folder=folder)}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder / "lamp.yaml"


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    return write_lamp(tmp_path_factory.mktemp("worlds"))


def written(config_file, *overrides):
    return load_config(config_file, [*overrides, "trackers=[]"])


async def play(env, task, *actions):
    """Play; `{role:name}` becomes the element's bid. Gives the score and the last address."""
    seen = await env.reset(task)
    for action in actions:
        role, _, name = action.partition(":")
        result = await env.step(f"click('{bid_of(seen.text, role, name)}')" if name else action)
        assert not result.error
        seen = result.observation
    return await env.finish(), seen.url


def await_end(port):
    """Return when nothing listens there any more; a killed process may take a moment."""

    def is_refused():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port))

    wait_until(is_refused)


def one(config, task, *actions):
    async def work():
        async with web_env(config.rollout) as env:
            return (await play(env, task, *actions))[0]

    return run(work())


@pytest.mark.browser
def test_episodes_at_a_time_have_servers_of_their_own_under_one_address(config_file):
    config = written(config_file)
    (light,) = seed_tasks(config)

    async def work():
        rollout, switch = config.rollout, "checkbox:Light"
        async with web_env(rollout) as one, web_env(rollout) as two, web_env(rollout) as three:
            first = await asyncio.gather(
                play(one, light, switch, DONE), play(two, light, DONE), play(three, light, switch, switch, DONE)
            )
            return [*first, await play(one, light, DONE)]

    scores, addresses = zip(*run(work()), strict=True)
    assert [score.reward for score in scores] == [1, 0, 0, 0]
    assert "the lamp is {'on': False, 'name': ''}" in scores[1].note
    assert set(addresses) == {"http://127.0.0.1:8000/"}


@pytest.mark.browser
def test_http_checks_and_pages_opened_for_a_check_reach_the_episodes_own_server(config_file, tmp_path):
    checks = '[{"http": "/api/state", "path": "$.on", "equals": true}, {"text": "Lamp", "at": "/"}]'
    (tmp_path / "i.jsonl").write_text(f'{{"id": "a", "instruction": "Light!", "checks": {checks}}}\n')
    config = written(config_file, f"rollout.web.train_files=[{tmp_path}/i.jsonl]")
    (light,) = seed_tasks(config)
    assert one(config, light, "checkbox:Light", DONE).reward == 1
    assert one(config, light, DONE).note.endswith("it is False")


@pytest.mark.browser
def test_a_verifier_that_raises_is_a_failure_and_one_that_cannot_be_asked_leaves_no_reward(config_file):
    config = written(config_file)
    broken = find_suite("web").eval_tasks(config)[1]
    score = one(config, broken, DONE)
    assert (score.reward, "KeyError: 'nothing'" in score.note) == (0, True)
    told = written(config_file, "rollout.web.verify=[echo, 'fail: {page} {check} {folder}']")
    assert "http://127.0.0.1:8000/ nothing /" in one(told, broken, DONE).note
    silent = written(config_file, "rollout.web.verify=['{python}', -c, 'print(1)']")
    score = one(silent, broken, DONE)
    assert (score.reward, "printed '1" in score.note) == (None, True)
    gone = 'rollout.web.verify=["{python}", -c, "import requests; requests.get(\'http://127.0.0.1:1/\')"]'
    assert one(written(config_file, gone), broken, DONE).reward is None


@pytest.mark.browser
def test_what_a_worker_starts_has_the_python_path_of_webrl_itself(config_file, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:/elsewhere")
    config = written(config_file, "rollout.web.verify=[sh, -c, 'echo fail: $PYTHONPATH.']", f"runs_dir={tmp_path}")
    (light,) = seed_tasks(config)
    (ended,) = run(play_in_worker(config, {"light": Visitor()}, [light], tmp_path / "t.jsonl")).values()
    assert (ended.env_reward, ended.env_error.endswith(f": {ROOT}:/elsewhere.")) == (0, True), ended.env_error


def test_an_apps_server_listens_on_loopback_alone_and_ends_with_its_episode(config_file):
    config = written(config_file)

    async def work():
        server = await EpisodeServer.start(config.rollout.web)
        server._log.seek(0)
        said = server._log.read().decode()
        there = Path(server.folder).is_dir()
        await server.stop()
        return server.port, said, (there, Path(server.folder).exists())

    port, said, folder = run(work())
    assert f"listening on 127.0.0.1 {port}" in said
    assert folder == (True, False)
    await_end(port)


def test_a_killed_process_leaves_neither_server_nor_folder(config_file):
    script = (
        "import asyncio, os, signal, sys\n"
        "from webrl.config import load_config\n"
        "from webrl_site.hooks import EpisodeServer\n"
        "async def work():\n"
        "    server = await EpisodeServer.start(load_config(sys.argv[1]).rollout.web)\n"
        "    print(server.port, server._process.pid, server.folder, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(work())\n"
    )
    port, guard, folder = python("-c", script, config_file, code=-9).stdout.split()
    await_end(int(port))
    wait_until(lambda: has_ended(int(guard)))
    assert not Path(folder).exists()


def test_a_start_that_is_cancelled_leaves_nothing(config_file, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def work():
        starting = asyncio.ensure_future(EpisodeServer.start(written(config_file).rollout.web))
        while not list(tmp_path.iterdir()):  # noqa: ASYNC110 (a folder sets no event)
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    run(work())
    assert not list(tmp_path.iterdir())
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(config_file.parent) in (p.info["cmdline"] or ())]


def test_what_answers_must_be_the_server_that_was_started(config_file, tmp_path):
    """The first server is slow, and another program (this one) takes its port meanwhile."""
    ports = tmp_path / "ports"
    script = (
        "import http.server, pathlib, sys, time; "
        f"said = pathlib.Path({str(ports)!r}); first = not said.exists(); "
        "said.open('a').write(sys.argv[1] + '\\n'); "
        "first and time.sleep(3600); "
        "http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind='127.0.0.1')"
    )
    config = written(config_file).rollout.web
    serve = config.serve.model_copy(update={"command": ("{python}", "-c", script, "{port}")})

    async def other(reader, writer):
        await reader.readline()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def work():
        starting = asyncio.ensure_future(EpisodeServer.start(config.model_copy(update={"serve": serve})))
        await asyncio.to_thread(wait_until, lambda: ports.exists() and ports.read_text().endswith("\n"))
        async with await asyncio.start_server(other, "127.0.0.1", int(ports.read_text())):
            server = await starting
            await server.stop()
        return server.port, [int(port) for port in ports.read_text().split()]

    port, tried = run(work())
    assert port == tried[1]
    assert len(tried) == 2


def test_a_server_that_leaves_its_session_is_refused_by_name(config_file, tmp_path):
    daemon = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
    script = (
        "import pathlib, subprocess, sys, time; "
        "child = subprocess.Popen(sys.argv[1:], start_new_session=True); "
        f"pathlib.Path({str(tmp_path)!r}, str(child.pid)).touch(); time.sleep(3600)"
    )
    config = written(config_file).rollout.web
    serve = config.serve.model_copy(update={"command": ("{python}", "-c", script, *daemon)})
    try:
        with pytest.raises(SiteError, match=r"is not what answers at http://127\.0\.0\.1:.* none of its own processes"):
            run(EpisodeServer.start(config.model_copy(update={"serve": serve})))
    finally:
        for path in tmp_path.iterdir():
            os.kill(int(path.name), signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["{python}", "-c", "raise SystemExit('no lamp for {port}')"], ["ended: no lamp for "]),
        (["{python}", "-c", "import time; time.sleep(60) # {port}"], ["does not answer", "0.5 s", "said nothing"]),
    ],
)
def test_a_server_that_does_not_serve_is_one_error_before_any_episode(config_file, command, words):
    timeout = 30 if "raise" in command[2] else 0.5
    config = written(config_file, f"rollout.web.serve.command={command}", f"rollout.web.serve.timeout_s={timeout}")
    tasks = seed_tasks(config)

    async def work():
        async with open_sites(config, tasks):
            raise AssertionError("no episode is worth starting")

    with pytest.raises(SiteError) as error:
        run(work())
    assert all(word in str(error.value) for word in words), error.value


def test_a_folder_that_is_not_there_is_named(config_file):
    web = written(config_file, "rollout.web.serve.folder=/nowhere").rollout.web
    with pytest.raises(SiteError, match=r"'/nowhere'"):
        run(EpisodeServer.start(web))


@pytest.mark.browser
def test_the_server_of_an_episode_ends_when_its_browser_dies_or_its_closing_is_given_up(config_file):
    config = written(config_file, "rollout.envs_per_worker=1")
    (light,) = seed_tasks(config)

    async def work():
        worker = Worker(config.rollout)
        try:
            await worker.handle(0, "reset", (light, {}))
            first = worker._envs[0]._server.port
            await worker._browser._browser.close()
            await worker.handle(0, "reset", (light, {}))
            await asyncio.to_thread(await_end, first)
            env = worker._envs[0]
            second = env._server.port
            closing = asyncio.ensure_future(env.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.gather(closing, return_exceptions=True)
            await asyncio.to_thread(await_end, second)
            await worker.handle(0, "reset", (light, {}))
            third = worker._envs[0]._server
        finally:
            await worker.close()
        return third.folder

    assert not Path(run(work())).exists(), "a worker that ends closes what its environments hold"
