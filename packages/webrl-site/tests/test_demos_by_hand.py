"""Demonstrations by hand: a second person's mouse and keys, as the browser gets them, become actions that replay."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsers import run, shared_browser
from rollouts_builders import at, miniwob, serve

from webrl.config import RunConfig
from webrl.errors import UsageError
from webrl.replay.demonstrations import read_demonstrations
from webrl.runs.problems import ProblemLog
from webrl.runs.store import read_records
from webrl.types import Task, Trajectory
from webrl_site.by_hand import Recorder, element_of, hand_tasks

PATIENT = RunConfig(rollout={"step_timeout_s": 120})
WAIT_S = 120.0

pytestmark = pytest.mark.browser


class Person:
    """Looks for things on a visible page by their text, and points at them: mouse and keys as DevTools sends them."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.said: list[str] = []
        self._heard = 0
        self._spoke = asyncio.Event()

    def hear(self, line: str) -> None:
        """What the recorder says."""
        self.said.append(line)
        self._spoke.set()

    async def wait(self, *words: str) -> str:
        """Until the recorder says a line with these words, after those waited for before."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for at in range(self._heard, len(self.said)):
                    if all(word in self.said[at] for word in words):
                        self._heard = at + 1
                        return self.said[at]
                self._spoke.clear()
                await self._spoke.wait()

    @property
    def page(self) -> Any:
        """The page in front."""
        return self._browser._browser.contexts[-1].pages[-1]

    async def point(self, target: Any) -> tuple[float, float]:
        """The middle of a thing (a locator, or a selector)."""
        found = self.page.locator(target) if isinstance(target, str) else target
        box = await found.first.bounding_box(timeout=WAIT_S * 1000)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    async def click(self, target: Any, until: str = "", **how: Any) -> None:
        """Click, and `wait` for these words."""
        await self.page.mouse.click(*await self.point(target), **how)
        if until:
            await self.wait(until)

    async def type(self, text: str) -> None:
        await self.page.keyboard.type(text)

    async def press(self, key: str, until: str = "") -> None:
        """Press a key, and `wait` for these words."""
        await self.page.keyboard.press(key)
        if until:
            await self.wait(until)

    def tell(self, line: str) -> None:
        """Into the terminal."""
        self.inbox.put_nowait(line)

    async def enter(self, line: str, *words: str) -> str:
        """Into the terminal, and `wait` for these words."""
        self.tell(line)
        return await self.wait(*words)


def record(
    config: RunConfig,
    tasks: Sequence[Task] | Callable[[str], Sequence[Task]],
    out: Path,
    act: Callable[[Person], Awaitable[None]],
    pages: dict[str, str] | None = None,
    **more: Any,
) -> list[str]:
    """Record what a person does; gives all that the recorder has said. `pages` are served, `tasks` told where."""

    async def work() -> list[str]:
        async with serve(pages or {}) as url, shared_browser() as browser:
            chosen = tasks(url) if callable(tasks) else tasks
            person = Person(browser)
            recording = asyncio.ensure_future(
                Recorder(config, out, person.hear, person.inbox, browser, browser, **more).record(chosen)
            )
            acting = asyncio.ensure_future(act(person))
            try:
                await asyncio.wait([recording, acting], return_when=asyncio.FIRST_EXCEPTION)
                for ended in (recording, acting):
                    if ended.done():
                        ended.result()
                await recording
            except TimeoutError:
                raise AssertionError("\n".join(person.said)) from None
            finally:
                for each in (recording, acting):
                    each.cancel()
                await asyncio.gather(recording, acting, return_exceptions=True)
            return person.said

    return run(work())


def without_login(notes: Any) -> RunConfig:
    """Attempts that end on the start page need nobody logged in, which takes seconds for each."""
    return notes.config("rollout.step_timeout_s=120", **{"login.form.secrets": None, "login": "{}"})


def recorded(out: Path) -> list[Trajectory]:
    return list(read_records(out, Trajectory))


def actions(trajectory: Trajectory) -> list[str]:
    return [step.action for step in trajectory.steps]


def shown(trajectory: Trajectory) -> list[str]:
    """The actions, each with the element that it is on in the observation that it was taken in."""
    found = []
    for step in trajectory.steps:
        name, _, rest = step.action.partition("(")
        bid = rest.split("'")[1] if rest.startswith("'") else ""
        found.append(f"{name} {element_of(step.observation, bid)}" if name != "send_msg_to_user" else step.action)
    return found


def demonstrations(out: Path, outcome="success") -> list[Trajectory]:
    return list(read_demonstrations([out], ProblemLog(None), outcome, Counter()))


def page_of(body: str, script: str = "") -> str:
    return f"<!doctype html><title>p</title><body>{body}<script>{script}</script>"


def test_a_person_s_work_on_their_own_site_is_a_demonstration_that_sft_reads(notes, tmp_path):
    """Logged in by the config, reset before the attempt and before its replay, scored by the instruction's checks."""
    config = notes.config("rollout.max_steps=30", "rollout.step_timeout_s=120")
    out = tmp_path / "demos" / "trajectories.jsonl"
    by_name = {task.task_id.rpartition(".")[2]: task for task in hand_tasks(config)}

    async def act(person):
        await person.wait('titled "Paint door"')
        await person.click(person.page.get_by_label("Title"), until="1.")
        await person.type("Paint dour")
        await person.press("Backspace")
        await person.press("Backspace")
        await person.type("or")
        await person.press("Tab", until="3. press")
        await person.press("Tab", until="4. press")
        await person.press("w", until="5. select_option")  # the list of tags: its option that begins so
        await person.click(person.page.get_by_label("Title"), until="6. click")
        await person.press("Enter", until="7. press")  # which clicks the form's button
        await person.enter("done", "kept")
        await person.wait('"Buy milk" as done')
        await person.click(person.page.get_by_role("button", name="Mark as done"), until="1. click")
        await person.enter("done", "kept")

    record(config, [by_name["add-0"], by_name["done-1"]], out, act)
    added, marked = recorded(out)
    assert added.env_reward == marked.env_reward == 1
    assert shown(marked) == ["click button 'Mark as done'", "send_msg_to_user('done')"]
    assert shown(added)[0] == "fill textbox 'Title'"  # the click into it is not needed
    assert ", 'Paint door')" in added.steps[0].action
    assert "Paint" not in added.steps[0].observation
    names = [name.partition("(")[0] for name in actions(added)]
    assert names == ["fill", "press", "press", "select_option", "click", "press", "send_msg_to_user"]
    assert [t.trajectory_id for t in demonstrations(out)] == ["hand-web.notes.add-0", "hand-web.notes.done-1"]
    said = record(config, [by_name["done-1"]], out, lambda person: asyncio.sleep(0))
    assert said == []  # it is there


HEARD = """
window.heard = [];
for (const type of ['mousedown', 'click', 'auxclick', 'keydown', 'input', 'change', 'drop', 'contextmenu'])
  document.addEventListener(type, (event) => event.isTrusted && heard.push(type + ' ' + event.target.id), true);
"""


def one(pages_url: str, **more):
    return [at(f"{pages_url}/", **more)]


def test_each_gesture_becomes_the_action_that_it_is_on_the_element_that_an_agent_sees(tmp_path):
    """Also in frames and shadow trees, and in a tab that a click opens."""
    body = """
      <button id=nested><span><b id=deep>Nested</b></span></button>
      <ul id=list><li id=first>First</li><li id=second>Second</li></ul>
      <label for=box id=named>Agree</label><input type=checkbox id=box>
      <div id=host></div><iframe id=frame src=/frame width=300 height=60></iframe>
      <select id=rows size=3 aria-label=Rows><option>One<option>Two</select>
      <button draggable=true id=from>From</button><button id=to>To</button>
      <div id=far style="margin-top: 2000px"><a href=/other id=away>Away</a></div>
      <a href=/other target=_blank>Tab</a>"""
    script = f"""{HEARD}
      document.getElementById('list').addEventListener('click', (event) => {{ document.title = event.target.id; }});
      document.getElementById('host').attachShadow({{ mode: 'open' }}).innerHTML = '<button>Inside</button>';"""
    pages = {
        "/": page_of(body, script),
        "/frame": page_of("<input aria-label=Framed>"),
        "/other": page_of("<h1>Other</h1><button>Last</button>"),
    }

    async def act(person):
        steps = iter(range(1, 99))

        async def did():
            await person.wait(f"{next(steps)}. ")

        async def click(target, **how):
            await person.click(target, **how)
            await did()

        await person.wait("look around")
        await click("#deep")
        await click("#second")
        await click("#named")
        await click("#host button", button="right")
        await click(person.page.frame_locator("#frame").get_by_label("Framed"))
        await person.type("text")
        await person.click("#rows option")  # in another frame, and no action closes the list before it is read
        await did()
        await did()
        await person.page.mouse.move(*await person.point("#from"))
        await person.page.mouse.down()
        await person.page.mouse.move(*await person.point("#to"))
        await person.page.mouse.up()
        await did()
        await person.page.locator("#away").scroll_into_view_if_needed()
        await click("#away")
        await person.press("Alt+ArrowLeft")
        await did()
        await click(person.page.get_by_text("Tab", exact=True))
        await person.click(person.page.get_by_role("button", name="Last"))
        await person.click(person.page.get_by_role("button", name="Last"))  # does not wait: its turn comes
        await did()
        await did()
        await person.enter("done", "kept")

    out = tmp_path / "demos" / "trajectories.jsonl"
    record(PATIENT, one, out, act, pages)
    (kept,) = recorded(out)
    assert shown(kept) == [
        *("click button 'Nested'", "click listitem ''", "click LabelText ''", "click button 'Inside'"),
        "fill textbox 'Framed'",  # the click before it is left out
        *("select_option listbox 'Rows'", "drag_and_drop button 'From'", "click link 'Away'", "go_back not there"),
        *("click link 'Tab'", "click button 'Last'", "click button 'Last'", "send_msg_to_user('done')"),
    ]
    assert "'right'" in kept.steps[3].action
    assert kept.steps[1].observation.startswith("RootWebArea 'p'")
    assert kept.steps[2].observation.startswith("RootWebArea 'second'")  # the click was on the second
    assert kept.env_reward is None
    assert len(demonstrations(out)) == 1  # by the person's word


def test_what_is_no_action_is_refused_by_name_and_never_reaches_the_page(tmp_path):
    secret = "xyzzy-over-the-hill"
    body = """<main aria-label=all><div id=plain style="width: 90px; height: 30px; background: red"></div>
      <div id=rich role=textbox aria-label=Rich contenteditable>rich</div>
      <input type=file id=file><input type=range id=slider>
      <canvas id=canvas width=50 height=50></canvas><input type=password id=password aria-label=Password>
      <a href=/other id=card style="display: block; width: 500px; text-align: center">
        <span id=corner style="position: absolute; left: 20px">x</span><button id=middle>Middle</button></a></main>"""

    async def act(person):
        await person.wait("look around")
        for target, words in (
            ("#plain", "is not among the elements that an agent sees"),
            ("#file", "files are not uploaded"),
            ("#slider", "the arrow keys"),
            ("#canvas", "where in a canvas"),
            ("#corner", "in the middle of"),
        ):
            await person.click(target)
            await person.wait("not recorded", words)
        await person.press("F5")
        await person.wait("not recorded", "no action loads a page again")
        assert await person.page.evaluate("heard") == []
        await person.click("#rich", until="1. click")
        await person.type("a")
        await person.wait("not recorded", "rich text")
        await person.click("#password", until="2. click")
        await person.type(secret)
        await person.press("Enter")
        await person.wait("not recorded", "passwords are not written")
        assert await person.page.evaluate("document.querySelector('#password').value") == ""
        assert not [e for e in await person.page.evaluate("heard") if e.partition(" ")[0] not in ("mousedown", "click")]
        await person.enter("nonsense", "done [ANSWER], again, skip, quit")
        await person.enter("done", "kept")

    out = tmp_path / "demos" / "trajectories.jsonl"
    said = record(PATIENT, one, out, act, {"/": page_of(body, HEARD)})
    assert secret not in out.read_text() + "".join(said)
    assert len(recorded(out)[0].steps) == 3


def test_a_page_that_changes_by_itself_is_looked_at_again_and_what_does_not_replay_is_said_by_step(tmp_path):
    body = "<button id=go>Start</button><button id=stay>Stay</button>"

    async def act(person):
        await person.wait("look around")
        await person.page.evaluate("document.querySelector('#stay').insertAdjacentHTML('afterend', '<p>late</p>')")
        await person.click("#stay", until="1. click")  # what changed is not this
        await person.page.evaluate("document.querySelector('#go').textContent = 'Stop'")
        await person.click("#go", until="changed by itself")
        await person.wait("3. click")
        await person.page.evaluate("location.href = '/other'")
        await person.page.wait_for_url("**/other")
        await person.click("#there", until="changed by itself")
        await person.wait("5. click")
        await person.enter("done", "step 3, click", "was button 'Stop', now it is button 'Start'")

    pages = {"/": page_of(body), "/other": page_of("<button id=there>There</button>")}
    out = tmp_path / "demos" / "trajectories.jsonl"

    async def give_up(person):
        await act(person)
        person.tell("skip")

    record(PATIENT, one, out, give_up, pages)
    assert recorded(out) == []
    record(PATIENT, one, out, act, pages, keep_all=True)
    (kept,) = recorded(out)
    assert demonstrations(out) == [], "nothing says that it succeeded"
    assert shown(kept) == [
        *("click button 'Stay'", "noop not there", "click button 'Stop'", "noop not there"),
        *("click button 'There'", "send_msg_to_user('done')"),
    ]


def test_an_attempt_that_fails_or_cannot_be_recorded_is_not_kept_unless_asked_for(notes, tmp_path):
    config, out = without_login(notes), tmp_path / "demos" / "trajectories.jsonl"
    task = next(task for task in hand_tasks(config) if task.task_id.endswith("done-1"))

    async def act(person):
        await person.wait("Buy milk")
        await person.enter("done", "not kept: the suite's own check fails it")
        await person.enter("again", "Buy milk")
        await person.page.close()
        await person.wait("a tab was closed by hand")
        await person.enter("again", "Buy milk")
        person.tell("quit")

    record(config, [task, task], out, act)
    assert recorded(out) == []

    async def fail(person):
        await person.wait("Buy milk")
        await person.enter("fill('1', 'a password')", "type in the browser's window")
        await person.enter("done", "kept")

    record(config, [task], out, fail, keep_all=True)
    other = replace(task, instruction="Do something else.")
    with pytest.raises(UsageError, match=r"was recorded for .*now it says 'Do something else.'"):
        record(config, [other], out, fail)
    assert [t.env_reward for t in recorded(out)] == [0]
    assert demonstrations(out) == []
    assert len(demonstrations(out, "all")) == 1


def test_quit_is_heard_while_an_attempt_is_played_again(notes, tmp_path):
    config, out = without_login(notes), tmp_path / "demos" / "trajectories.jsonl"

    async def act(person):
        await person.wait("1/")
        person.tell("done")
        await person.enter("quit\n", "kept")  # as a terminal gives it

    record(config, hand_tasks(config)[:2], out, act, keep_all=True)
    assert len(recorded(out)) == 1


def test_pages_that_others_wrote_are_recorded_too(tmp_path):
    """MiniWoB++: the page ends the episode and pays; its instruction says the password."""

    async def act(person):
        words = (await person.wait("Enter the username")).split('"')
        await person.click("#username", until="1. click")
        await person.type(words[1])
        await person.click("#password", until="3. click")
        await person.type(words[3])
        await person.press("Enter", until="5. press")
        await person.click("#subbtn", until="kept")

    out = tmp_path / "demos" / "trajectories.jsonl"
    record(PATIENT, [miniwob("login-user", 3)], out, act)
    (kept,) = recorded(out)
    assert (kept.env_reward, str(kept.status)) == (1, "page_ended")
    assert [name.partition("(")[0] for name in actions(kept)] == ["fill", "fill", "press", "click"]


def test_a_recording_of_another_kind_is_not_added_to(tmp_path):
    out = tmp_path / "trajectories.jsonl"
    out.write_text("")
    with pytest.raises(UsageError, match="choose another --out"):
        record(PATIENT, [miniwob("click-button")], out, lambda person: asyncio.sleep(0))
