"""`webrl/…` ids of gymnasium: what BrowserGym's own environment says, ours says; what it cannot do, it refuses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from app_server import serving

pytest.importorskip("browsergym.core", reason="pip install 'webrl[browsergym]'")
import gymnasium
from browsergym.core.action.functions import click
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.action.python import PythonActionSet
from browsergym.utils.obs import flatten_axtree_to_str
from werkzeug import Response

import webrl_serve.gym  # noqa: F401
from webrl.config import RolloutConfig
from webrl.errors import BrowserError, UsageError

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
import stock_browsergym as stock  # it makes no stock environment in this process

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["click-test", "click-checkboxes"]
ACTIONS = [
    *("I press it: ```click('13')```", "hover('13') focus('13')", "click('999')", "foo('1')", ""),
    *("mouse_click(30, 60)", "send_msg_to_user('nearly there')", "new_tab()", "report_infeasible('no way')"),
]
REFUSED = ["click('999')", "foo('1')", ""]
FRAMED = """<title>outer</title><h1>Outer</h1>
<style>#cover { position: absolute; left: 0; top: 100px; width: 300px; height: 100px; background: white }</style>
<button style="position: absolute; top: 120px; left: 20px">Covered</button>
<div id=cover onclick="document.title = 'cover'"></div><div style="margin-top: 300px"><my-field></my-field>
<iframe srcdoc="<title>inner</title><p>In a frame</p><input aria-label=Name>
<a href=#x>Link</a>"></iframe></div>
<p style="margin-top: 2000px; cursor: pointer">Far below</p>
<script>customElements.define('my-field', class extends HTMLElement {
  connectedCallback() { this.attachShadow({mode: 'open'}).innerHTML = '<input aria-label=Shadowed>'; }
});</script>"""


@pytest.fixture(scope="module")
def address():
    """A page with frames, a shadow root, and a button under another element."""

    with serving(Response(FRAMED, mimetype="text/html")) as url:
        yield f"{url}/"


def make(page: str, **options):
    return gymnasium.make(f"webrl/{stock.site_of(page)}", **stock.options_of(page) | options)


def assert_same(pages: list[str], actions: list[str]) -> list[list[dict]]:
    """Play the same with stock and with ours, compare every step; gives the digests."""
    command = [sys.executable, stock.__file__, "digest", "--pages", ",".join(pages), "--seed", "3", "--actions"]
    environment, pipe = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE
    with subprocess.Popen([*command, *actions], stdout=pipe, stderr=pipe, text=True, env=environment) as stocks:
        played = [json.loads(json.dumps(stock.digests(make(page).unwrapped, actions, seed=3))) for page in pages]
        out, said = stocks.communicate()
    assert stocks.returncode == 0, said[-2000:]
    for page, line, found in zip(pages, out.splitlines(), played, strict=True):
        for action, theirs, ours in zip(["reset", *actions], json.loads(line), found, strict=True):
            for key, value in theirs.items():
                assert ours[key] == value, f"{page}, {action}: {key}"
    return played


@pytest.mark.browser
def test_observations_are_stock_browsergyms():
    first = assert_same(PAGES, ACTIONS)[0]
    assert [action for action, step in zip(ACTIONS, first[1:], strict=True) if step["last_action_error"]] == REFUSED
    assert first[1]["outcome"] == [1, 1, 0], "the button has been pressed"
    assert first[-1]["outcome"] == [0, 1, 0], "the agent has given up"


@pytest.mark.browser
def test_frames_shadow_roots_and_the_focus_are_stock_browsergyms(address):
    (steps,) = assert_same([address], ["fill('a5', 'Ann')", "scroll(0, 500)", "press('a5', 'Tab')"])
    assert [step["last_action_error"] for step in steps] == [""] * 4
    assert "value='Ann'" in steps[1]["axtree"]
    assert [step["focused_element_bid"] for step in steps[1:]] == ["a5", "a5", "a6"]


@pytest.mark.browser
def test_a_covered_button_is_clicked_at_by_force_if_the_action_set_says_so(address):
    for force, title in {False: "outer", True: "cover"}.items():
        mapping = HighLevelActionSet(retry_with_force=force).to_python_code
        env = make(address, action_mapping=mapping)
        obs, _ = env.reset()
        bid = re.search(r"\[(\d+)\] button 'Covered'", flatten_axtree_to_str(obs["axtree_object"]))[1]
        obs, _, terminated, _, info = env.step(f"click('{bid}')")
        assert obs["open_pages_titles"] == (title,)
        assert ("Timeout 500ms exceeded" in obs["last_action_error"]) is not force
        assert info["action_exec_timeout"] == (0 if force else 0.5)
        assert not terminated
        env.close()


@pytest.mark.browser
def test_environments_share_a_browser_that_ends_with_the_last_one():
    ours = psutil.Process()
    before = {process.pid for process in ours.children(recursive=True)}
    first, second = make("click-test"), make("click-test")
    first.reset(seed=1)
    browsers = [p for p in ours.children(recursive=True) if p.pid not in before and "--type=" not in str(p.cmdline())]
    obs, _ = second.reset(seed=1)
    more = [p for p in ours.children(recursive=True) if p.pid not in before and "--type=" not in str(p.cmdline())]
    assert {p.pid for p in more} == {p.pid for p in browsers}
    first.close()
    obs, reward, terminated, _, _ = second.step("click('13')")
    assert (reward, terminated, obs["last_action_error"]) == (1.0, True, "")
    again, _ = second.reset(seed=1)
    assert again["chat_messages"][1]["message"] == again["goal"]
    assert len(again["chat_messages"]) == 2
    second.close()
    assert not {process.pid for process in ours.children(recursive=True)} - before
    obs, _ = second.reset(seed=2)  # as with BrowserGym, an environment may be used again
    assert obs["last_action"] == ""
    second.close()


@pytest.mark.browser
def test_without_a_seed_every_episode_is_another_and_a_seed_repeats_them():
    env = make("click-button")
    goals = [[env.reset(seed=5 if first else None)[0]["goal"] for first in (True, False, False)] for _ in range(2)]
    env.close()
    assert goals[0] == goals[1]
    assert len(set(goals[0])) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slow_mo": 100}, "slow_mo=100: actions are not slowed down"),
        ({"use_raw_page_output": True}, "there is no `page` to hand out"),
        ({"pw_context_kwargs": {"storage_state": "x"}}, "fresh profile"),
        ({"pre_observation_delay": 0.1}, "settle_cap_s"),
        ({"slowmo": 1}, "unknown option 'slowmo'"),
        ({"action_mapping": PythonActionSet().to_python_code}, "Python code is not run here"),
        ({"action_mapping": HighLevelActionSet(demo_mode="default").to_python_code}, "demo_mode='default'"),
        ({"task_kwargs": {"episode_max_time": 1}}, "'episode_max_time' is not known"),
        ({"viewport": {"width": 500, "height": 500}}, "a MiniWoB page has its own, 332 x 214"),
        ({"rollout": RolloutConfig(observation="html")}, "rollout.observation='html'"),
    ],
)
def test_what_is_not_done_here_is_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        make("click-test", **options)


def test_functions_that_are_not_browsergyms_are_refused():
    def jump(bid: str):
        """Jump.

        Examples:
            jump('1')
        """

    mine = HighLevelActionSet(["custom"], custom_actions=[jump]).to_python_code
    with pytest.raises(UsageError, match="action 'jump' of the action set is not BrowserGym's"):
        make("click-test", action_mapping=mine)
    theirs = HighLevelActionSet(["custom"], custom_actions=[click]).to_python_code
    make("click-test", action_mapping=theirs)


def test_any_page_needs_an_address_and_a_goal():
    for given in ({}, {"start_url": "http://127.0.0.1/"}, {"start_url": "http://127.0.0.1/", "goal": ""}):
        with pytest.raises(UsageError, match="needs task_kwargs"):
            gymnasium.make("webrl/openended", task_kwargs=given)


@pytest.mark.parametrize(
    "viewport", [{"width": "wide", "height": 500}, {"width": 0, "height": 500}, {"width": 500}, (500, 500)]
)
def test_a_viewport_of_a_wrong_form_is_refused_in_one_line(viewport):
    goal = {"start_url": "http://127.0.0.1/", "goal": "look"}
    with pytest.raises(UsageError, match=r"viewport=.*: expected {'width': …, 'height': …} in whole pixels above 0$"):
        gymnasium.make("webrl/openended", task_kwargs=goal, viewport=viewport)


def test_what_has_not_begun_and_what_is_not_there_is_said():
    env = make("click-test").unwrapped
    with pytest.raises(BrowserError, match=r"call reset\(\) first"):
        env.step("noop()")
    with pytest.raises(UsageError, match="reset"):
        env.reset(options={"task": 1})
    with pytest.raises(UsageError, match="2\\*\\*32"):
        env.reset(seed=2**32)
    env.close()


def test_an_environment_stays_with_its_process():
    env = make("click-test").unwrapped
    child = os.fork()
    if not child:
        try:
            env.reset(seed=1)
        except BrowserError as error:
            os._exit(0 if "create one in each process" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
