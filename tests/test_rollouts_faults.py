"""Pages, browsers and workers that fail: recorded, retried or failed clearly; nothing hangs, nothing stays behind."""

import asyncio
import dataclasses
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import rollouts_builders
from processes import BROWSER, descendants, kill, living, wait_until
from rollouts_builders import NEVER, ClickNamedButton, Scripted, answers, at, bid_of, miniwob, serve

from webrl.config import RolloutConfig, validate_config
from webrl.errors import BrowserError
from webrl.rollouts.collect import collect
from webrl.rollouts.episode import run_episode
from webrl.rollouts.pool import EnvPool
from webrl.runs.store import read_records
from webrl.types import Status, Trajectory

pytestmark = pytest.mark.browser
# What hangs or kills a browser is not to be met by the next test.
in_browser = functools.partial(rollouts_builders.in_browser, own_browser=True)
visit = functools.partial(rollouts_builders.visit, own_browser=True)


def test_a_crashed_page_is_an_error_and_the_next_reset_heals_it():
    async def play(env):
        await env.reset(miniwob("click-button"))
        crashed = asyncio.ensure_future(env.page.goto("chrome://crash"))
        with pytest.raises(BrowserError, match="crash"):
            await env.step("noop()")
        await asyncio.gather(crashed, return_exceptions=True)
        return await env.reset(miniwob("click-button"))

    assert "button 'submit'" in in_browser(play).text


def test_a_step_before_a_reset_and_a_first_reset_that_fails_say_why_and_leave_the_environment_usable():
    async def play(env):
        with pytest.raises(BrowserError, match="before reset"):
            await env.step("noop()")
        port, env._browser.port = env._browser.port, 1  # nobody answers there
        for _ in range(2):
            with pytest.raises(BrowserError, match="no DevTools connection"):
                await env.reset(miniwob("click-button"))
        env._browser.port = port
        for _ in range(2):
            with pytest.raises(TypeError, match="not all arguments converted"):  # nobody's boundary: passed on as it is
                await env.reset(dataclasses.replace(miniwob("click-button"), seed="three"))
        return await env.reset(miniwob("click-button"))

    assert "button 'submit'" in in_browser(play).text


def test_a_killed_browser_is_an_error():
    async def play(env):
        await env.reset(miniwob("click-button"))
        kill(descendants(os.getpid(), BROWSER))
        with pytest.raises(BrowserError):
            await env.step("click('13')")
        with pytest.raises(BrowserError, match="browser is gone"):
            await env.reset(miniwob("click-button"))

    in_browser(play)


def test_a_page_that_never_loads_is_an_error_within_the_deadline():
    async def play(env):
        async with serve({"/": NEVER, "/ok": "<title>ok</title><a href='/'>go</a>"}) as url:
            with pytest.raises(BrowserError, match="reset"):
                await env.reset(at(url + "/"))
            first = await env.reset(at(url + "/ok"))
            return await env.step(f"click('{bid_of(first.text, 'link', 'go')}')")

    stuck = in_browser(play, step_timeout_s=3, settle_cap_s=1)
    assert "'ok'" in stuck.observation.text  # the old page is still there, and that is what the agent sees


STUCK = {
    "an endless loop": ("for (;;);", "did not come to an end"),
    "one a little later": ("setTimeout(() => { for (;;); }, 100)", "did not come to an end"),
    "a request that is waited for": (
        "const r = new XMLHttpRequest(); r.open('GET', '/never', false); r.send()",
        "this page waited for a server that does not answer",
    ),
}


@pytest.mark.parametrize(
    "name", [name if name == "an endless loop" else pytest.param(name, marks=pytest.mark.slow) for name in STUCK]
)
def test_an_action_after_which_its_page_hangs_ends_no_episode(name):
    script, told = STUCK[name]

    async def play(env, _, text):
        stuck = (await env.step(f"click('{bid_of(text, 'button', 'go')}')")).observation.text
        return stuck, (await env.step("noop(0)")).observation.text

    pages = {"/": f'<button onclick="{script}">go</button>', "/never": NEVER}
    stuck, later = visit(pages, play, step_timeout_s=12, settle_cap_s=1)
    assert told in stuck
    assert told not in later
    assert "button 'go'" in stuck
    assert "button 'go'" in later


def test_a_page_whose_script_never_ends_by_itself_is_an_error_within_the_deadline():
    async def play(env):
        async with serve({"/": "<p>on its way<script>for (;;);</script>"}) as url:
            with pytest.raises(BrowserError, match="deadline of 3 s"):
                await env.reset(at(url + "/"))
        return await env.reset(miniwob("click-button"))

    assert "button 'submit'" in in_browser(play, step_timeout_s=3, settle_cap_s=1).text


def test_dialog_boxes_are_dismissed_and_told():
    page = """<title>t</title>
    <button onclick="alert('hi');document.title=confirm('ok?')+','+prompt('name?')">ask</button>
    <script>onbeforeunload=()=>'stay?'</script>"""

    async def play(env, url, text):
        asked = await env.step(f"click('{bid_of(text, 'button', 'ask')}')")
        later, left = await env.step("noop(0)"), await env.step(f"goto('{url}/next')")
        return asked, later, left, await env.reset(miniwob("click-button"))

    asked, later, left, after = visit(page, play)
    told = ["alert box 'hi', closed", "confirm box 'ok?', answered Cancel", "prompt box 'name?', answered Cancel"]
    assert asked.observation.text.splitlines()[:4] == [*told, "RootWebArea 'false,null', focused"]
    assert later.observation.text.startswith("RootWebArea 'false,null'")
    lines = left.observation.text.splitlines()
    assert lines[0] == "beforeunload box '', answered Leave: what was not saved is lost"
    assert lines[1].startswith("RootWebArea 'nothing here'")
    assert after.text.startswith("RootWebArea")
    assert "button 'submit'" in after.text


DOWNLOAD = answers("x" * 1000, headers="Content-Disposition: attachment; filename=a.bin\r\n")


@pytest.mark.parametrize(
    ("link", "answer", "told"),
    [
        ("<a href=/file target=_blank>get</a>", DOWNLOAD, "download 'a.bin', refused"),
        ("<button onclick=window.open('/file')>get</button>", DOWNLOAD, "download 'a.bin', refused"),
        (
            "<a href=/file target=_blank>get</a>",
            answers("", "204 No Content"),
            "/file' was answered with nothing to show (status 204)",
        ),
    ],
)
def test_a_tab_that_is_opened_for_a_download_or_for_nothing_is_closed(link, answer, told):
    async def play(env, url, text):
        role = "link" if link.startswith("<a") else "button"
        clicked = await env.step(f"click('{bid_of(text, role, 'get')}')")
        later = await env.step("noop(100)")
        with pytest.raises(BrowserError, match="/file is a download or empty, not a page"):
            await env.reset(at(url + "/file"))
        return clicked.observation.text, later.observation.text

    clicked, later = visit({"/": f"<title>t</title>{link}", "/file": answer}, play, settle_cap_s=1)
    assert told in clicked + later
    assert "RootWebArea 't'" in later


def test_downloads_are_refused_and_a_tab_that_is_still_loading_is_not_taken_for_one():
    links = "<title>t</title><a href=/file>get</a><a href=/slow target=_blank>open</a>"
    links += "<a download=a.bin href=data:,x>data</a><a download=a.bin id=b>blob</a>"
    links += "<script>b.href = URL.createObjectURL(new Blob(['x']))</script>"

    async def play(env, url, text):
        steps = [await env.step(f"click('{bid_of(text, 'link', name)}')") for name in ("get", "data", "blob")]
        opened = await env.step(f"click('{bid_of(text, 'link', 'open')}')")
        direct = await env.step(f"goto('{url}/file')")
        return [step.observation.text for step in steps], opened, direct.error

    pages = {"/": links, "/file": DOWNLOAD, "/slow": answers("<title>slow</title>", wait_s=1)}
    texts, opened, direct = visit(pages, play)
    assert [text.startswith("download 'a.bin', refused\nRootWebArea 't'") for text in texts] == [True] * 3
    assert "Download is starting" in direct or "ERR_ABORTED" in direct
    assert "RootWebArea 'slow'" in opened.observation.text


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "ended"), pytest.param(signal.SIGSTOP, "did not answer", marks=pytest.mark.slow)],
)
def test_a_worker_that_dies_or_does_not_answer_is_replaced_and_its_chromium_ends(number, said, monkeypatch):
    patience = {}
    if number == signal.SIGSTOP:
        monkeypatch.setattr("webrl.rollouts.pool.GRACE_S", 1.0)
        patience["step_timeout_s"] = 8

    async def play():
        async with EnvPool(RolloutConfig(num_workers=1, envs_per_worker=2, **patience)) as pool:
            async with pool.env() as env:
                await env.reset(miniwob("click-button"))
                (old,) = pool.worker_pids
                family = descendants(old, BROWSER)
                os.kill(old, number)
                with pytest.raises(BrowserError, match=said):
                    await env.step("noop(0)")
            async with pool.env() as env:
                observation = await env.reset(miniwob("click-button"))
                (new,) = pool.worker_pids
            assert family
            assert old != new
            return observation, family

    observation, family = asyncio.run(play())
    assert "button 'submit'" in observation.text
    wait_until(lambda: not living(family))


def test_a_worker_given_up_while_it_starts_is_started_anew():
    async def play():
        async with EnvPool(RolloutConfig(num_workers=1, envs_per_worker=1)) as pool:
            starting = asyncio.create_task(pool.start(1))
            await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait([starting])
            async with pool.env() as env:
                return await env.reset(miniwob("click-button"))

    assert "button 'submit'" in asyncio.run(play()).text


def test_an_environment_given_up_in_mid_step_serves_the_next_episode():
    async def play():
        async with EnvPool(RolloutConfig(num_workers=1, envs_per_worker=1)) as pool:
            async with pool.env() as env:
                await env.reset(miniwob("click-button"))
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(env.step("noop(9000)"), 0.5)
            async with pool.env() as env:
                observation = await env.reset(miniwob("login-user"))
                return await env.step(f"fill('{bid_of(observation.text, 'textbox', '')}', 'x')")

    result = asyncio.run(play())
    assert not result.error
    assert "value='x'" in result.observation.text


@pytest.mark.slow
def test_workers_are_recycled_after_their_share_of_episodes():
    async def play():
        pids = []
        async with EnvPool(RolloutConfig(num_workers=1, envs_per_worker=1, recycle_after=2)) as pool:
            for seed in range(5):
                async with pool.env() as env:
                    await env.reset(miniwob("click-button", seed))
                    pids.append(pool.worker_pids[-1])
        return pids

    pids = asyncio.run(play())
    assert len(set(pids)) == 3
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_an_episode_whose_browser_is_killed_is_played_again(tmp_path):
    config = validate_config({"rollout": {"num_workers": 1, "envs_per_worker": 2, "max_retries": 2}}, "test")
    killed = []

    class KillsOnce(ClickNamedButton):
        async def act(self, turn):
            if not killed:
                killed.extend(descendants(os.getpid(), BROWSER))
                kill(killed)
            return await super().act(turn)

    tasks = [miniwob("click-button", seed) for seed in range(4)]
    out = tmp_path / "trajectories.jsonl"
    asyncio.run(collect(tasks, config, KillsOnce(), out, phase=0, prefix="p00"))
    found = list(read_records(out, Trajectory))
    assert killed
    assert len(found) == 4
    assert {t.status for t in found} == {Status.PAGE_ENDED}
    assert {t.env_reward for t in found} == {1.0}
    assert max(t.attempts for t in found) == 2


def test_an_episode_that_always_crashes_is_recorded_with_its_status(tmp_path):
    config = validate_config({"rollout": {"envs_per_worker": 1, "max_retries": 1, "step_timeout_s": 5}}, "test")
    out = tmp_path / "trajectories.jsonl"
    tasks = [at("http://127.0.0.1:9/"), miniwob("click-button")]
    asyncio.run(collect(tasks, config, ClickNamedButton(), out, phase=0, prefix="p00"))
    failed, good = list(read_records(out, Trajectory))
    assert failed.status is Status.ENV_ERROR
    assert failed.attempts == 2
    assert "ERR_" in failed.message
    assert failed.env_reward is None
    assert good.status is Status.PAGE_ENDED


def test_an_episode_that_outlasts_its_deadline_keeps_its_steps():
    async def play(env):
        return await run_episode(
            env, Scripted("noop(0)", wait_s=0.4), miniwob("click-button"), config, trajectory_id="t"
        )

    config = RolloutConfig(episode_timeout_s=4, max_repeats=50)
    trajectory = in_browser(play, episode_timeout_s=4)
    assert trajectory.status is Status.TIMEOUT
    assert trajectory.steps
    assert trajectory.env_reward is None


RUN = """
import asyncio, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run as a background job
from pathlib import Path
sys.path.insert(0, {tests!r})
from rollouts_builders import Scripted, miniwob
from webrl.config import validate_config
from webrl.rollouts.collect import collect
config = validate_config({{"rollout": {{"num_workers": 2, "envs_per_worker": 2, "max_repeats": 10000,
    "max_steps": 10000}}}}, "test")
tasks = [miniwob("click-button", seed) for seed in range(4)]
policy = Scripted("noop(50)")
asyncio.run(collect(tasks, config, policy, Path({out!r}), phase=0, prefix="p00"))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_chromium_outlives_the_controller(number, tmp_path):
    code = RUN.format(tests=str(Path(__file__).parent), out=str(tmp_path / "t.jsonl"))
    controller = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: len(descendants(controller.pid, BROWSER)) >= 6)  # two browsers with their helpers
        family = descendants(controller.pid)
        controller.send_signal(number)
        controller.communicate(timeout=60)
    finally:
        controller.kill()
    wait_until(lambda: not living(family))
