"""A gymnasium environment with the observations, actions and options of `browsergym.core.env.BrowserEnv`.

What differs: Chromium is shared and a MiniWoB++ page reused, a step waits until the page is quiet instead of half a
second, pages reach no other hosts than the task's (`rollout.allowed_hosts`), and there is no chat window. BrowserGym's
options that need what is not here are refused unless they have their defaults.

`WebEnv` plays on a `RawEnv`, whose observations are DevTools' own objects instead of text, and whose actions an
`ActionReader` reads.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import gymnasium
import numpy as np
from browsergym.core.action import functions
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.env import BrowserEnv as StockEnv
from browsergym.core.observation import (
    extract_data_items_from_aria,
    extract_dom_extra_properties,
    pop_bids_from_attribute,
)
from browsergym.core.task import OpenEndedTask
from PIL import Image

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, UsageError
from webrl.rollouts.actions import ACTIONS, Action, ActionError, parse_action
from webrl.rollouts.blocking import BlockingEnv
from webrl.rollouts.browser import Browser
from webrl.rollouts.devtools import Tab
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.execute import (
    ActionFailed,
    Handler,
    Tabs,
    attempt,
    click_holding,
    execute,
    fill_in,
    locate,
    set_value,
)
from webrl.rollouts.interface import Observation
from webrl.rollouts.observe import framed_axtree, mark_child_frames
from webrl.rollouts.sites import MiniwobSite, Verdict, open_site
from webrl.types import Task
from webrl_serve.gym import OPENENDED

if TYPE_CHECKING:
    from playwright.async_api import Page

GREETING = "Hi! I am your UI assistant, I can perform web tasks for you. What can I help you with?"
"""BrowserGym's first message of every conversation."""
_SEEDS = 2**32
_BROWSERGYMS_OWN = HighLevelActionSet().to_python_code
# BrowserGym's option -> (its default, why another value is refused)
_FIXED: dict[str, tuple[Any, str]] = {
    "slow_mo": (None, "actions are not slowed down"),
    "timeout": (None, "use rollout=RolloutConfig(step_timeout_s=…)"),
    "locale": (None, "pages have Chromium's own"),
    "timezone_id": (None, "pages have this machine's"),
    "tags_to_mark": ("standard_html", "other elements have no ids"),
    "headless": (True, "the browser has no window"),
    "wait_for_user_message": (False, "there is no chat window to write in"),
    "resizeable_window": (False, "the browser has no window"),
    "record_video_dir": (None, "nothing is filmed"),
    "pw_chromium_kwargs": ({}, "Chromium is shared; WEBRL_CHROMIUM= names another"),
    "pw_context_kwargs": ({}, "each environment has a fresh profile"),
    "use_raw_page_output": (False, "pages are driven over an asynchronous line, there is no `page` to hand out"),
    "pre_observation_delay": (0.5, "a step waits until the page is quiet, at most rollout.settle_cap_s"),
}
_SNAPSHOT = {"computedStyles": [], "includeDOMRects": True, "includePaintOrder": True}
_TASK_INFO = """typeof WOB_DONE_GLOBAL === 'undefined' ? {} : {
  REWARD_GLOBAL: WOB_REWARD_GLOBAL, RAW_REWARD_GLOBAL: WOB_RAW_REWARD_GLOBAL, REWARD_REASON: WOB_REWARD_REASON ?? null,
  DONE_GLOBAL: WOB_DONE_GLOBAL, EPISODE_ID: WOB_EPISODE_ID, TASK_READY: WOB_TASK_READY }"""


class ActionReader:
    """Reads actions as an agent's own `HighLevelActionSet` does; its Python code is never run."""

    def __init__(self, action_mapping: Callable[[str], str] | None) -> None:
        """Use the mapping that an agent passes to an environment.

        Raises:
            UsageError: not a `HighLevelActionSet.to_python_code`, or one with unsupported options or actions.
        """
        action_set = getattr(action_mapping, "__self__", None)
        if not isinstance(action_set, HighLevelActionSet) or action_mapping != action_set.to_python_code:
            raise UsageError(
                f"action_mapping={action_mapping!r:.200}: only the `to_python_code` of a HighLevelActionSet is known; "
                "Python code is not run here"
            )
        if action_set.demo_mode not in (None, "off"):
            raise UsageError(f"demo_mode={action_set.demo_mode!r} of the action set: nothing is shown; leave it off")
        for name in action_set.action_set:
            if name not in ACTIONS or inspect.getsource(getattr(functions, name)) not in action_set.python_includes:
                raise UsageError(f"action {name!r} of the action set is not BrowserGym's: no others are known here")
        self._set = action_set
        self.retries_with_force = bool(action_set.retry_with_force)
        """Whether a click that has waited for its element in vain is tried again without waiting."""

    def __call__(self, text: str) -> Action:
        """Return the first action, with the others in its `rest`. Raises ActionError in BrowserGym's words."""
        try:
            code = self._set.to_python_code(text)
        except Exception as error:  # any exception of pyparsing is the agent's error
            raise ActionError(f"{type(error).__name__}: {error}") from None
        try:
            # Functions first, then one call a line: a repr has no line breaks.
            first, *rest = map(parse_action, code.removeprefix(self._set.python_includes).strip().split("\n"))
        except ActionError as error:
            raise ActionError(f"ValueError: {error}") from None
        return dataclasses.replace(first, rest=tuple(rest)) if rest else first


async def _click(tabs: Tabs, bid: str, *, method: str, modifiers: Sequence[str] | None = None, **options: Any) -> None:
    element = await locate(tabs.page, bid)
    if modifiers is None:
        await attempt(element, method, force=True, **options)
    else:
        await click_holding(tabs, element, method, modifiers, force=True, **options)


FORCED: dict[str, Handler] = {
    "fill": partial(fill_in, force=True),
    "select_option": lambda tabs, bid, options: set_value(tabs, bid, "select_option", options, force=True),
    **{name: partial(_click, method=name) for name in ("click", "dblclick", "hover", "check", "uncheck")},
}
"""Handlers of the second try (`retry_with_force`), by action."""


@dataclass(frozen=True)
class RawObservation(Observation):
    """An observation without text."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of BrowserGym's observation that describe the browser."""
    info: dict[str, Any] = field(default_factory=dict)
    """`task_info`, the state of the page's own task; begin and end of a step's parts (seconds since the epoch)."""
    said: tuple[tuple[str, str], ...] = ()
    """(role, text) of the agent's messages in this step."""


class RawEnv(BrowserEnv):
    """A `BrowserEnv` whose observations are `RawObservation`."""

    def __init__(self, browser: Browser, config: RolloutConfig, reader: ActionReader) -> None:
        super().__init__(browser, config)
        self._script += (Path(__file__).parent / "visible.js").read_text(encoding="utf-8")
        self._reader = reader
        self._said: list[tuple[str, str]] = []
        self._info: dict[str, Any] = {}

    def _parse(self, action_text: str) -> Action:
        self._said = []
        self._info = dict.fromkeys(("action_exec_start", "action_exec_stop"), time.time())
        return self._reader(action_text)

    def _scale(self, page: Page) -> float:
        """Only the page that the episode began on is enlarged."""
        return self._site.scale if page is self._first_page else 1.0

    async def _act(self, action: Action) -> None:
        self.scale = self._scale(self.page)
        try:
            await super()._act(action)
        except ActionFailed as problem:
            if not (self._reader.retries_with_force and action.name in FORCED and "Timeout" in str(problem)):
                raise
            await execute(action, self, FORCED)
        finally:
            self._info["action_exec_stop"] = time.time()
        role = {"send_msg_to_user": "assistant", "report_infeasible": "infeasible"}.get(action.name)
        if role:
            self._said.append((role, *action.arguments.values()))

    async def _describe(self, tab: Tab, seen: dict[str, Any]) -> tuple[Observation, Verdict]:
        if limit := seen.get("tooLarge"):
            raise BrowserError(f"{seen['url']!r:.200} has {limit}, too many for an observation")
        self.scale = self._scale(tab.page)
        url = self._address(tab.page, seen["url"])
        looked = time.time()
        first = tab.page is self._first_page
        verdict = await self._site.judge(tab, first, url, seen["state"])
        state: dict[str, Any] = {}  # as of `AbstractMiniwobTask.validate`; other pages have none
        if isinstance(self._site, MiniwobSite) and first and url == self._site.url:
            state = await tab.evaluate_in_page(_TASK_INFO)
        elif isinstance(self._site, MiniwobSite):
            state = {"error": f"invalid {'url' if first else 'page'}, terminating task"}
        judged = time.time()
        frames = await mark_child_frames(tab) if seen["frames"] else {}
        for frame in ("", *frames.values()):
            await tab.evaluate("__webrl.describe()", frame)
        dom = await tab.send("DOMSnapshot.captureSnapshot", _SNAPSHOT)
        nodes = await framed_axtree(tab)
        for attribute in ("aria-roledescription", "aria-description"):
            pop_bids_from_attribute(dom, attribute)
        for node in nodes:
            _move_bid(node)
        focus: str | None = await tab.evaluate("__webrl.focusedBid()")
        while focus in frames:
            inner = await tab.evaluate("__webrl.focusedBid()", frames[focus])
            if inner is None:
                break
            focus = inner
        pages = self.context.pages
        fields = {
            "open_pages_urls": tuple(self._address(page, page.url) for page in pages),
            "open_pages_titles": tuple([await page.title() for page in pages]),
            "active_page_index": np.asarray([pages.index(tab.page)]),
            "url": url,
            "screenshot": np.array(Image.open(io.BytesIO(await self._capture(tab))).convert("RGB")),  # [H, W, 3]
            "dom_object": dom,
            "axtree_object": {"nodes": nodes},
            "extra_element_properties": extract_dom_extra_properties(dom, scale_factor=self.scale),
            "focused_element_bid": focus or "",
        }
        info = self._info | {
            "wait_for_page_loading_start": self._info.get("action_exec_stop", looked),
            "wait_for_page_loading_stop": looked,
            "validation_start": looked,
            "validation_stop": judged,
            "get_observation_start": judged,
            "get_observation_stop": time.time(),
            "task_info": state,
        }
        return RawObservation("", url, self._goal, None, None, fields, info, tuple(self._said)), verdict


def _move_bid(node: dict[str, Any]) -> None:
    """Move the id from an accessibility node's texts to `browsergym_id`, like `extract_all_frame_axtrees`."""
    found: list[str] = []
    for number, entry in enumerate(node.get("properties", ())):
        if entry["name"] == "roledescription":
            found, rest = extract_data_items_from_aria(entry["value"]["value"])
            entry["value"]["value"] = rest
            if not rest:
                del node["properties"][number]
            break
    if "description" in node:
        items, rest = extract_data_items_from_aria(node["description"]["value"])
        node["description"]["value"] = rest
        if not rest:
            del node["description"]
        found = found or items
    if found:
        (node["browsergym_id"],) = found


class Chat:
    """The conversation of an episode, as agents and their loops use BrowserGym's."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        """`role`, `timestamp` (seconds since the epoch) and `message` of each."""

    def add_message(self, role: Literal["user", "user_image", "assistant", "info", "infeasible"], msg: str) -> None:
        """Add one; those of `info` are for a chat window and not kept, as in BrowserGym. Raises ValueError."""
        if role not in ("user", "user_image", "assistant", "info", "infeasible"):
            raise ValueError(f"Invalid role: {role}")
        if role != "info":
            self.messages.append({"role": role, "timestamp": time.time(), "message": msg})


class WebEnv(gymnasium.Env[dict[str, Any], str]):
    """See the module docstring."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as gymnasium declares it)

    def __init__(
        self,
        site: str,
        task_kwargs: Mapping[str, Any] | None = None,
        viewport: Mapping[str, int] | None = None,
        terminate_on_infeasible: bool = True,
        action_mapping: Callable[[str], str] | None = _BROWSERGYMS_OWN,
        rollout: RolloutConfig | None = None,
        **options: Any,
    ) -> None:
        """Nothing starts before the first reset.

        Args:
            site: set by the id.
            task_kwargs: `start_url` and `goal` of `webrl/openended`; MiniWoB++ pages have none.
            viewport: `width` and `height` of the page of `webrl/openended`.
            action_mapping: `to_python_code` of the agent's `HighLevelActionSet`.
            rollout: deadlines, hosts, memory and upload folder of the pages.
            options: BrowserGym's other options, at their defaults.

        Raises:
            UsageError: an option or value that is not known here.
        """
        for name, value in options.items():
            if name not in _FIXED:
                raise UsageError(f"unknown option {name!r}; BrowserGym's are known, and rollout=RolloutConfig(…)")
            default, reason = _FIXED[name]
            if value != default:
                raise UsageError(f"{name}={value!r:.200}: {reason}; leave it out")
        self._site = site
        self._task_kwargs = dict(task_kwargs or {})
        known = ("start_url", "goal") if site == OPENENDED else ()
        for name in self._task_kwargs.keys() - set(known):
            raise UsageError(f"task_kwargs: {name!r} is not known; webrl/{site} has {', '.join(known) or 'none'}")
        for name in known:
            if not isinstance(given := self._task_kwargs.get(name), str) or not given:
                raise UsageError(
                    f"webrl/{site} needs task_kwargs={{'start_url': 'http://…', 'goal': '…'}}, found no {name}"
                )
        self._terminates = terminate_on_infeasible
        reader = ActionReader(action_mapping)
        config = _settings(site, rollout or RolloutConfig(), viewport)
        self._env = BlockingEnv(lambda _, browser, settings: RawEnv(browser, settings, reader), config)
        self.chat = Chat()
        self._goal = ""
        self._started = 0.0
        self._is_infeasible = False
        stock = StockEnv(OpenEndedTask)  # starts nothing
        self.observation_space = stock.observation_space
        self.action_space = stock.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; without a seed the next one of the environment's own generator.

        Raises:
            UsageError: options, or a seed of more than 32 bits.
            DataError: an address that cannot be opened.
            BrowserError: page or browser failed.
        """
        if options:
            raise UsageError(f"reset(options={options!r:.200}): there are no options; leave them out")
        super().reset(seed=seed)
        seed = int(self.np_random.integers(_SEEDS)) if seed is None else int(seed)
        if seed >= _SEEDS:
            raise UsageError(f"seed={seed}: a page's seed is below 2**32")
        task = Task(task_id=f"{self._site}.{seed}", site=self._site, seed=seed)
        if self._site == OPENENDED:
            url, goal = self._task_kwargs["start_url"], self._task_kwargs["goal"]
            task = Task(task_id=OPENENDED, site=OPENENDED, seed=seed, start_url=url, instruction=goal)
        first = cast("RawObservation", self._env.reset(task))
        self.chat = Chat()
        self.chat.add_message("assistant", GREETING)
        self.chat.add_message("user", first.goal)
        self._goal = first.goal
        self._is_infeasible = False
        self._started = time.time()
        return self._describe(first, "", ""), {"task_info": first.info["task_info"]}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carry out what the agent has written; errors are reported in `last_action_error`.

        Raises:
            BrowserError: page or browser failed; `reset` starts a new one.
        """
        result = self._env.step(action)
        seen = cast("RawObservation", result.observation)
        for role, text in seen.said:
            self.chat.add_message(cast("Any", role), text)
            self._is_infeasible |= role == "infeasible"
        waited = re.match(r"TimeoutError: .*?(\d+)ms exceeded", result.error)
        info = {**seen.info, "action_exec_timeout": float(waited[1]) / 1000 if waited else 0}
        terminated = result.done or (self._terminates and self._is_infeasible)
        return self._describe(seen, action, result.error), result.reward, terminated, False, info

    def close(self) -> None:
        """Close the page, and Chromium if no other environment uses it."""
        self._env.close()

    def _describe(self, seen: RawObservation, action: str, error: str) -> dict[str, Any]:
        return {
            "chat_messages": tuple(copy.deepcopy(self.chat.messages)),
            "goal": self._goal,
            "goal_object": ({"type": "text", "text": self._goal},),
            **seen.fields,
            "last_action": action,
            "last_action_error": error,
            "elapsed_time": np.asarray([time.time() - self._started]),
        }


def _settings(site: str, config: RolloutConfig, viewport: Mapping[str, int] | None) -> RolloutConfig:
    """The settings of the pages. Raises UsageError: what observations and actions here do not have."""
    for name in ("observation", "random_ids", "dialect", "viewport", "screenshots", "page_details", "env", "backend"):
        if getattr(config, name) != getattr(RolloutConfig(), name):
            raise UsageError(
                f"rollout.{name}={getattr(config, name)!r}: observations here are BrowserGym's; leave it out"
            )
    if viewport is None:
        return config
    if site != OPENENDED:
        size = open_site(Task(task_id=site, site=site)).viewport
        raise UsageError(f"viewport={viewport!r:.200}: a MiniWoB page has its own, {size[0]} x {size[1]}; leave it out")
    sides = viewport if isinstance(viewport, Mapping) else {}
    if set(sides) != {"width", "height"} or not all(type(side) is int and side > 0 for side in sides.values()):
        raise UsageError(f"viewport={viewport!r:.200}: expected {{'width': …, 'height': …}} in whole pixels above 0")
    return RolloutConfig.model_validate(config.model_dump() | {"viewport": (sides["width"], sides["height"])})
