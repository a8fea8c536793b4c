"""A person as a policy: what they do in a visible browser, or type in the terminal, as the next action.

API: `hand = HumanPolicy(env, say, inbox)`, then `run_episode(env, hand, …)`; the terminal's lines go into `inbox`.
Raises `Stopped` out of the episode where the person ends it.

A gesture never reaches the page by itself (`hand.js`): it is read as an action on an element of the last
observation, and the environment carries that out as it does a model's. What is not an action is refused by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.config.redaction import redact
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.actions import MAX_ACTION_CHARS, Action, ActionError, parse_action
from webrl.rollouts.env import BrowserEnv

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page

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
    """A gesture that is no action; the text says why."""


class _ObserveAgain(Exception):
    """The page is no longer what the last observation says."""


class HumanPolicy:
    """See the module docstring."""

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
        """An action of the oldest gesture or line; "" if it is none."""
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
                self._say("  not recorded: the page that something was done in has gone")
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
        """What each frame of the active page, but for one, answers; None where it does not."""
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
        raise GestureRejected(f"{name} has gone")
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
