"""Records a person's own clicks as demonstrations: `webrl record-demos --by-hand`.

API: `tasks = hand_tasks(config)`; `await Recorder(config, out, say, inbox, visible, unseen).record(tasks)`.

Each attempt is an episode with the person as its policy. Its actions are then played again, without the person, from a
new start (after the site's reset); what is kept is that second episode, where it comes to the same end.

A gesture never reaches the page by itself (`hand.js`): it is read as an action on an element of the last
observation, and the environment carries that out as it does a model's. What is not an action is refused by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.config import RolloutConfig, RunConfig
from webrl.config.redaction import redact
from webrl.errors import UsageError
from webrl.evaluate import is_success
from webrl.llm.interface import Policy, PolicyOutput, Turn
from webrl.rollouts.actions import MAX_ACTION_CHARS, Action, ActionError, parse_action
from webrl.rollouts.browser import Browser
from webrl.rollouts.collect import screenshot_folder, screenshot_saver, without_secrets
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.episode import run_episode
from webrl.rollouts.suite import find_suite, open_sites, seed_tasks, suite_of
from webrl.runs import store
from webrl.types import Label, Step, Task, Trajectory
from webrl_site.record import DEMONSTRATION_SEED

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page

_A_DAY_S = 86_400.0
CHOICES = ("again", "skip", "quit")
_TYPING = ("fill", "keyboard_type", "keyboard_insert_text")
"""What ends an attempt without a demonstration."""
BIDS = ("bid", "from_bid", "to_bid")
"""Parameters of actions that name elements."""
_PATIENCE_S = 30.0
"""Longest wait for a frame's answer; one that gives none is not asked again."""
_PRINTED = re.compile(r"^\s*\[([a-zA-Z]*\d*)\] ", re.MULTILINE)


Inbox = asyncio.Queue["tuple[Frame, str] | Stopped | str"]
"""Lines of the terminal; frames in which something has been done, each with the name of the first gesture."""


class Stopped(Exception):
    """The person ends the attempt; the text is one of `CHOICES`, or explains why it cannot continue."""


class GestureRejected(Exception):
    """A gesture that is not an action; the text says why."""


class _ObserveAgain(Exception):
    """The page is no longer what the last observation says."""


class HumanPolicy:
    """A person as a policy: what they do in a visible browser, or type in the terminal, as the next action."""

    fingerprint = "by-hand"
    script = Path(__file__).with_name("hand.js").read_text(encoding="utf-8")

    def __init__(self, env: BrowserEnv, say: Callable[[str], None], inbox: Inbox) -> None:
        self._env, self._say, self._inbox = env, say, inbox
        self._todo: deque[Frame | str] = deque()
        self._tried: set[str] = set()
        self._announced: dict[Frame, str] = {}
        self._seen = {""}
        self._waiting = False
        self._deaf: set[str] = set()
        env.observer = self

    async def attach(self, context: BrowserContext) -> None:
        """Hear of the gestures in a profile's pages, and of tabs that are closed by hand."""

        def closed(page: Page) -> None:
            del page
            if self._waiting:
                self._inbox.put_nowait(Stopped("a tab was closed by hand; type tab_close() in the terminal instead"))

        async def moved(source: dict[str, Any], gesture: str) -> None:
            self._inbox.put_nowait((source["frame"], gesture))

        await context.expose_binding("__webrl_hand", moved)
        context.on("page", lambda page: page.on("close", closed))

    @contextlib.asynccontextmanager
    async def acting(self, action: Action) -> AsyncIterator[None]:
        """Let the action, and nothing else that happens meanwhile, through to the page."""
        await self._everywhere(f"open({json.dumps(presses_of(action))[1:-1]})")
        try:
            yield
        finally:
            await self._everywhere("close()")

    async def act(self, turn: Turn) -> PolicyOutput:
        """The person's next action; waits for it as long as it takes.

        Raises:
            Stopped: the person ends the attempt, or has done what cannot be recorded.
        """
        seen = await self._everywhere("seen()")
        if not turn.history:
            self._say(f"  {turn.instruction}")
        else:
            last = turn.history[-1]
            self._say(f"  {len(turn.history)}. {last.action}" + (f": {last.error}" if last.error else ""))
        for frame in [frame for frame, answer in seen.items() if not answer and frame is not self._env.page.main_frame]:
            if not await self._ask(frame, "seen()"):
                self._say(f"  the frame {redact(frame.url):.100} does not answer: what is done in it is not recorded")
                self._deaf.add(frame.url)
        self._waiting = True
        try:
            action = ""
            while not action:
                action = await self._next(turn)
        finally:
            self._waiting = False
        return PolicyOutput((), (), (), action, turn.observation)

    async def _next(self, turn: Turn) -> str:
        """An action of the oldest gesture or line; "" if it is not one."""
        if not self._todo:
            arrived = await self._inbox.get()
            if isinstance(arrived, Stopped):
                raise arrived
            if isinstance(arrived, str):
                self._todo.append(arrived)
            else:
                frame, self._announced[frame] = arrived
                self._todo.append(frame)
        source = self._todo[0]
        try:
            if isinstance(source, str):
                action = await self._line(source)
            else:
                action = await self._gesture(source, turn)
            if redact(action) != action:
                raise GestureRejected("this would write a password or token into the file")
            if len(action) > MAX_ACTION_CHARS:
                raise GestureRejected(f"the text is longer than an action may be ({MAX_ACTION_CHARS} characters)")
        except GestureRejected as why:
            if self._todo and self._todo[0] is source:
                self._todo.popleft()
            dropped = 0 if isinstance(source, str) else await self._ask(source, "drop(99)") or 0
            self._say(f"  not recorded: {why}" + (f" (nor what came after it: {dropped - 1})" if dropped > 1 else ""))
            return ""
        return action

    async def _line(self, line: str) -> str:
        """What a line of the terminal says."""
        if await self._commit():
            return ""
        self._todo.popleft()
        word, _, rest = line.strip().partition(" ")
        if word in CHOICES and not rest:
            raise Stopped(word)
        if word == "done":
            return Action("send_msg_to_user", {"text": rest.strip() or "done"}).canonical
        try:
            action = parse_action(line) if word else None
        except ActionError as error:
            self._say(f"  {error} Or: done [ANSWER], again, skip, quit.")
            return ""
        if action and action.name in _TYPING:
            raise GestureRejected(
                f"{action.name}: type in the browser's window, where passwords are told from other text"
            )
        return action.canonical if action else ""

    async def _gesture(self, frame: Frame, turn: Turn) -> str:
        item = await self._ask(frame, "next()")
        if item is None:
            self._todo.popleft()
            if self._announced.pop(frame, "") not in self._seen:
                self._say("  not recorded: the page that you acted on is gone")
            return ""
        self._seen.add(item["id"])
        if await self._commit(frame):
            return ""
        if item["kind"] == "look" and item["ready"]:
            await self._ask(frame, "drop(1)")
            return ""
        if frame.page is not self._env.page and "tab" not in self._tried:
            self._tried.add("tab")
            return f"tab_focus({self._env.context.pages.index(frame.page)})"
        try:
            printed = set(_PRINTED.findall(turn.observation))
            action = to_action(item, turn.instruction, printed, trust="look" in self._tried)
        except _ObserveAgain:
            self._tried.add("look")
            across, along = item["scrolled"]
            if across or along:
                await self._ask(frame, "scrollBack()")
                return f"scroll({across * self._env.scale:g}, {along * self._env.scale:g})"
            self._say("  the page has changed by itself (or by the browser's own buttons): looking again")
            return "noop()"
        except GestureRejected:
            self._tried.clear()
            raise
        self._tried.clear()
        await self._ask(frame, "drop(1)")
        return action

    async def _commit(self, but: Frame | None = None) -> bool:
        """Whether something has been typed in a frame, but for one; it then comes first."""
        typed = [frame for frame, is_typed in (await self._everywhere("commit()", but)).items() if is_typed]
        self._todo.extendleft(typed)
        return bool(typed)

    async def _everywhere(self, call: str, but: Frame | None = None) -> dict[Frame, Any]:
        """What each frame of the active page, but for one, answers; None if it does not."""
        frames = [frame for frame in self._env.page.frames if frame is not but and frame.url not in self._deaf]
        answers = await asyncio.gather(*(self._ask(frame, call) for frame in frames))
        return dict(zip(frames, answers, strict=True))

    async def _ask(self, frame: Frame, call: str) -> Any:
        from playwright.async_api import Error

        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                return await frame.evaluate(f"window.__webrl?.hand?.{call}")
        return None


def presses_of(action: Action) -> tuple[list[str] | None, list[str] | None]:
    """(bids of the elements, keys) that carrying out an action presses, each once; None: any, any number of times."""
    bids = [action.arguments[name] for name in BIDS[:2] if name in action.arguments] * (1 + (action.name == "dblclick"))
    if action.name.startswith("keyboard"):
        return [], None
    keys = action.arguments.get("key_comb", "Delete").lower().replace("space", " ").split("+")
    by_code = any(re.match("$|key|digit|numpad|.*ormeta|(alt|control|meta|shift)(left|right)", key) for key in keys)
    return (None if action.name.startswith("mouse") else bids), (None if by_code else keys)


def to_action(item: dict[str, Any], instruction: str, printed: set[str], trust: bool) -> str:
    """A gesture of `hand.js` as an action, in canonical form.

    Args:
        printed: bids in the observation.
        trust: the observation has just been taken again, for this gesture.

    Raises:
        GestureRejected: no action, or none that an agent could choose; says why.
        _ObserveAgain: the element is not what the observation says.
    """
    kind, name = item["kind"], item["name"]
    if item["gone"]:
        raise GestureRejected(f"{name} is gone")
    if kind == "refused":
        raise GestureRejected(f"{name}: {item['why']}")
    if kind == "look":
        raise _ObserveAgain
    if kind in ("go_back", "go_forward"):
        return f"{kind}()"
    exact = item["place"][:1]
    if kind == "press":
        if exact and exact[0]["bid"] in printed:
            return Action("press", {"bid": exact[0]["bid"], "key_comb": item["keys"]}).canonical
        return Action("keyboard_press", {"key": item["keys"]}).canonical
    if kind == "fill":
        if item["secret"] and item["value"] not in instruction:
            raise GestureRejected(f"{name}: passwords are not written into a file; log in by rollout.web.login")
        return Action(
            "fill",
            {"bid": _bid(exact, name, printed, trust), "value": item["value"], "enable_autocomplete_menu": False},
        ).canonical
    if kind == "select":
        options = item["options"]
        chosen = {"bid": _bid(exact, name, printed, trust), "options": options[0] if len(options) == 1 else options}
        return Action("select_option", chosen).canonical
    bid = _bid(item["place"], name, printed, trust)
    if kind == "drag":
        to = _bid(item["target"], name, printed, trust)
        return Action("drag_and_drop", {"from_bid": bid, "to_bid": to}).canonical
    return Action("click", {"bid": bid, "button": item["button"], "modifiers": item["modifiers"]}).canonical


def _bid(places: Sequence[dict[str, Any]], name: str, printed: set[str], trust: bool) -> str:
    """Of an element and those around it that a click on it is a click on, the one that the observation shows."""
    for place in sorted(places, key=lambda each: not each["atomic"]):
        if place["bid"] not in printed:
            continue
        if place["fresh"] and not trust:
            raise _ObserveAgain
        if place["others"]:
            raise GestureRejected(f"{name}: an agent clicks in the middle of [{place['bid']}], where something else is")
        return str(place["bid"])
    if any(place["fresh"] for place in places) and not trust:
        raise _ObserveAgain
    raise GestureRejected(f"{name} is not among the elements that an agent sees")


class ReplayMismatch(Exception):
    """An episode that is played again does not go as it went; the text says at which step."""


class ReplayPolicy:
    """Plays recorded steps again; compares each element with the one that was recorded."""

    fingerprint = HumanPolicy.fingerprint

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    async def act(self, turn: Turn) -> PolicyOutput:
        """Return the next action. Raises ReplayMismatch: the last one failed, or the element is another."""
        number = len(turn.history)
        if number and (last := turn.history[-1]).error:
            raise ReplayMismatch(f"step {number}, {last.action}: {last.error}")
        if number == len(self._steps):
            raise ReplayMismatch(f"after step {number} the page does not end the episode, as it did")
        step = self._steps[number]
        arguments = parse_action(step.action).arguments
        for bid in (arguments[name] for name in BIDS if name in arguments):
            was, now = (element_of(text, bid) for text in (step.observation, turn.observation))
            if was != now:
                raise ReplayMismatch(f"step {number + 1}, {step.action}: {bid} was {was}, now it is {now}")
        return PolicyOutput((), (), (), step.action, turn.observation)


def element_of(observation: str, bid: str) -> str:
    """Return the role and name of an element in an observation."""
    quoted = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
    found = re.search(rf"^\s*\[{bid}\] (\w+(?: (?:{quoted}))?)", observation, re.MULTILINE)
    return found[1] if found else "not there"


def hand_tasks(config: RunConfig) -> list[Task]:
    """Return the training tasks that a person plays: those of phase 0, drawn as the experts' are.

    Raises:
        UsageError: a suite that cannot be recorded by hand, an observation or dialect of its own, no instructions.
    """
    rollout = config.rollout
    if not find_suite(config.tasks.suite).can_record_by_hand:
        raise UsageError(f"tasks.suite={config.tasks.suite} cannot be recorded by hand; use web, miniwob or arena")
    if rollout.env != "browser":
        raise UsageError(f"--by-hand needs rollout.env=browser, not {rollout.env}")
    if rollout.observation == "html" or rollout.dialect != "browsergym":
        raise UsageError(
            "--by-hand records rollout.dialect=browsergym on rollout.observation=axtree, not "
            f"{rollout.dialect} on {rollout.observation}"
        )
    tasks = seed_tasks(config.model_copy(update={"seed": DEMONSTRATION_SEED + config.seed}))
    if not tasks:
        raise UsageError("--by-hand needs instructions: name files in rollout.web.train_files")
    return tasks


@dataclass(frozen=True)
class Recorder:
    """Lets a person play tasks, one after the other."""

    config: RunConfig
    """The run's; one environment is played, with the site reset for every episode."""
    out: Path
    """JSONL of Trajectory, appended to, with `labels.jsonl` next to it: by the suite's own reward, else by the person's
    word that it is done."""
    say: Callable[[str], None]
    """Shows a line in the terminal."""
    inbox: Inbox
    """Lines that the person types there; `quit` ends everything."""
    visible: Browser
    """The person's."""
    unseen: Browser
    """Plays again."""
    keep_all: bool = False
    """Keep what the suite's check fails (labelled so) and what does not replay."""

    @cached_property
    def _rollout(self) -> RolloutConfig:
        web = self.config.rollout.web
        if web.reset.is_set:
            web = web.model_copy(update={"reset": web.reset.model_copy(update={"every": "episode"})})
        return self.config.rollout.model_copy(update={"num_workers": 1, "envs_per_worker": 1, "web": web})

    async def record(self, tasks: Sequence[Task]) -> None:
        """Record the tasks that `out` has no demonstration of yet.

        Raises:
            UsageError: `out` has trajectories without labels; anything that the suite rejects.
            SiteError: the site cannot be reset or logged in to.
        """
        labels = self.out.with_name("labels.jsonl")
        if self.out.exists() and not labels.exists():
            raise UsageError(f"{self.out} holds another recording, without labels; choose another --out")
        for task in tasks:
            suite_of(task).check(task, self._rollout)
        async with open_sites(self.config.model_copy(update={"rollout": self._rollout}), tasks):
            with store.Appender(labels) as verdicts, store.Appender(self.out) as file, contextlib.suppress(Stopped):
                there = {each.trajectory_id: each.task.instruction for each in store.read_records(self.out, Trajectory)}
                waiting = [task for task in tasks if f"hand-{task.task_id}" not in there]
                for task in tasks:
                    recorded = there.get(f"hand-{task.task_id}", task.instruction)
                    if recorded != task.instruction:
                        raise UsageError(
                            f"{self.out}: {task.task_id} was recorded for {recorded!r}, now it says "
                            f"{task.instruction!r}; choose another --out"
                        )
                for number, task in enumerate(waiting, start=1):
                    self.say(f"{number}/{len(waiting)} {task.task_id}")
                    if kept := await self._record(task):
                        trajectory, is_solved = kept
                        verdicts.append(Label(trajectory.trajectory_id, None, int(is_solved), HumanPolicy.fingerprint))
                        file.append(trajectory)

    async def _record(self, task: Task) -> tuple[Trajectory, bool] | None:
        """Return the demonstration of a task and whether it solves it; None if it is skipped. Raises Stopped."""
        name = f"hand-{task.task_id}"
        while True:
            try:
                while not self.inbox.empty():
                    early = self.inbox.get_nowait()  # what else is from before is of no use
                    if isinstance(early, str) and early.strip() == "quit":
                        raise Stopped("quit")
                # What an agent must keep to, the replay holds: a person may take a way round, and need not hurry.
                patient = {"max_steps": 1000, "max_repeats": 1000, "episode_timeout_s": _A_DAY_S}
                env = suite_of(task).make_env(self.visible, self._rollout)
                hand = HumanPolicy(env, self.say, self.inbox)
                played = await self._play(env, hand, name, task, self._rollout.model_copy(update=patient))
                kept = await self._verdict(*played)
                if kept is not None:
                    return kept
                choice = await self._choose()
            except Stopped as stopped:
                choice = str(stopped)
                if choice not in CHOICES:
                    self.say(f"  {choice}: this attempt cannot be recorded")
                    choice = await self._choose()
            shutil.rmtree(screenshot_folder(self.out, name), ignore_errors=True)
            if choice == "quit":
                raise Stopped(choice)
            if choice == "skip":
                return None

    async def _verdict(self, played: Trajectory, url: str) -> tuple[Trajectory, bool] | None:
        """Decide what is kept: the person's verdict counts only if the task has no check and the replay succeeds."""
        reward = "no check measures it" if played.env_reward is None else f"reward {played.env_reward:g}"
        self.say(f"  {len(played.steps)} steps, {played.status}, {reward} {played.env_error}".rstrip())
        refusal = ""
        if not played.status.finished:
            refusal = played.message or str(played.status)
        elif played.env_reward is not None and not is_success(played) and not self.keep_all:
            refusal = "the suite's own check fails it (--keep-all keeps it)"
        elif played.env_error and played.env_reward is None and not self.keep_all:
            refusal = "the suite's own check could not be made"
        if refusal:
            self.say(f"  not kept: {refusal}")
            return None
        try:
            again = await self._replay(played, url)
        except ReplayMismatch as difference:
            self.say(f"  replayed, it does not come to the same end: {difference}")
            if self.keep_all and any(step.screenshot for step in played.steps):
                self.say("  not kept: its screenshots are overwritten by now")
                return None
            return (played, is_success(played)) if self.keep_all else None
        self.say(f"  kept: replayed, {len(again.steps)} steps come to the same end")
        unchecked = again.env_reward is None and not again.env_error
        return again, unchecked or is_success(again)

    async def _replay(self, played: Trajectory, url: str) -> Trajectory:
        """Play it again alone, first without clicks into fields that are filled next. Raises ReplayMismatch."""
        worked = [step for step in played.steps if not step.error]
        shorter = [
            step
            for step, following in zip(worked, [*worked[1:], None], strict=True)
            if following is None
            or not re.fullmatch(r"click\('\w+'\)", step.action)
            or not following.action.startswith(f"fill{step.action.removeprefix('click').removesuffix(')')},")
        ]
        if len(shorter) < len(worked):
            with contextlib.suppress(ReplayMismatch):
                return await self._same(played, url, shorter)
        return await self._same(played, url, worked)

    async def _same(self, played: Trajectory, url: str, steps: Sequence[Step]) -> Trajectory:
        env = suite_of(played.task).make_env(self.unseen, self._rollout)
        again, url_again = await self._play(env, ReplayPolicy(steps), played.trajectory_id, played.task, self._rollout)
        if again.status is not played.status:
            raise ReplayMismatch(f"it ends with {again.status} ({again.message}) after step {len(again.steps)}")
        if again.env_reward != played.env_reward:
            raise ReplayMismatch(
                f"the reward is {again.env_reward}, it was {played.env_reward} {again.env_error}".rstrip()
            )
        if played.env_reward is None and url_again != url:
            raise ReplayMismatch(f"it ends at {url_again}, not at {url}")
        return again

    async def _play(
        self, env: BrowserEnv, policy: Policy, name: str, task: Task, config: RolloutConfig
    ) -> tuple[Trajectory, str]:
        save = screenshot_saver(config, self.out, name)
        try:
            episode = await run_episode(env, policy, task, config, trajectory_id=name, save_screenshot=save)
            url = env.page.url if env.context is not None else ""
            return without_secrets(await suite_of(task).finish(env, episode)), url
        finally:
            await env.close()

    async def _choose(self) -> str:
        self.say(f"  {', '.join(CHOICES)}?")
        while True:
            line = await self.inbox.get()
            if isinstance(line, str) and line.strip() in CHOICES:
                return line.strip()
