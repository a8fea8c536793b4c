"""Observes pages and reads actions as BrowserGym does: DevTools' own objects instead of text.

API: `RawEnv(browser, config, reader)` is a `BrowserEnv` whose observations are `RawObservation`, and whose actions
`reader`, an `ActionReader`, reads.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from browsergym.core.action import functions
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.core.observation import (
    extract_data_items_from_aria,
    extract_dom_extra_properties,
    pop_bids_from_attribute,
)
from PIL import Image

from webrl.config import RolloutConfig
from webrl.errors import BrowserError, UsageError
from webrl.rollouts.actions import ACTIONS, Action, ActionError, parse_action
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
from webrl.rollouts.sites import MiniwobSite, Verdict

if TYPE_CHECKING:
    from playwright.async_api import Page

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
    """See the module docstring."""

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
        pages = self.context.pages
        fields = {
            "open_pages_urls": tuple(self._address(page, page.url) for page in pages),
            "open_pages_titles": tuple([await page.title() for page in pages]),
            "active_page_index": np.asarray([pages.index(tab.page)]),
            "url": url,
            "screenshot": np.array(Image.open(io.BytesIO(await self._capture(tab))).convert("RGB")),  # [H, W, 3]
            **await _objects(tab, seen["frames"], self.scale),
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


async def _objects(tab: Tab, num_frames: int, scale: float) -> dict[str, Any]:
    """Return snapshot, accessibility tree, elements' properties and focus of a page whose main frame is marked."""
    frames = await mark_child_frames(tab) if num_frames else {}
    await tab.evaluate("__webrl.describe()")
    for frame in frames.values():
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
    return {
        "dom_object": dom,
        "axtree_object": {"nodes": nodes},
        "extra_element_properties": extract_dom_extra_properties(dom, scale_factor=scale),
        "focused_element_bid": focus or "",
    }


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
