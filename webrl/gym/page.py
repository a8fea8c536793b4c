"""Pages as BrowserGym's observations hold them: DevTools' own objects instead of text.

API: `RawEnv(browser, config, reader)` is a `BrowserEnv` whose observations are `RawObservation`.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from browsergym.core.observation import (
    extract_data_items_from_aria,
    extract_dom_extra_properties,
    pop_bids_from_attribute,
)
from numpy.typing import NDArray
from PIL import Image

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.gym.actions import FORCED, ActionReader
from webrl.rollouts.actions import Action
from webrl.rollouts.browser import Browser
from webrl.rollouts.devtools import Tab
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.execute import ActionFailed, execute
from webrl.rollouts.interface import Observation
from webrl.rollouts.observe import framed_axtree, mark_child_frames
from webrl.rollouts.sites import MiniwobSite, Verdict

if TYPE_CHECKING:
    from playwright.async_api import Page

_SNAPSHOT = {"computedStyles": [], "includeDOMRects": True, "includePaintOrder": True}
_TASK_INFO = """typeof WOB_DONE_GLOBAL === 'undefined' ? {} : {
  REWARD_GLOBAL: WOB_REWARD_GLOBAL, RAW_REWARD_GLOBAL: WOB_RAW_REWARD_GLOBAL, REWARD_REASON: WOB_REWARD_REASON ?? null,
  DONE_GLOBAL: WOB_DONE_GLOBAL, EPISODE_ID: WOB_EPISODE_ID, TASK_READY: WOB_TASK_READY }"""


@dataclass(frozen=True)
class RawObservation(Observation):
    """An observation without text."""

    fields: dict[str, Any] | None = None
    """What an observation of BrowserGym's says of the browser, by its names."""
    task_info: dict[str, Any] | None = None
    """What the page's own task says of itself."""
    said: tuple[tuple[str, str], ...] = ()
    """(role, text) of what the agent has said in this step."""
    times: dict[str, float] | None = None
    """When (seconds since the epoch) what began and ended, by BrowserGym's names."""


class RawEnv(BrowserEnv):
    """See the module docstring."""

    def __init__(self, browser: Browser, config: RolloutConfig, reader: ActionReader) -> None:
        super().__init__(browser, config)
        self._script += (Path(__file__).parent / "visible.js").read_text(encoding="utf-8")
        self._reader = reader
        self._said: list[tuple[str, str]] = []
        self._times: dict[str, float] = {}

    def _parse(self, action_text: str) -> Action:
        self._said = []
        self._times = dict.fromkeys(("action_exec_start", "action_exec_stop"), time.time())
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
            self._times["action_exec_stop"] = time.time()
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
        info = await self._task_info(tab, first, url)
        judged = time.time()
        pages = self.context.pages
        fields = {
            "open_pages_urls": tuple(self._address(page, page.url) for page in pages),
            "open_pages_titles": tuple([await page.title() for page in pages]),
            "active_page_index": np.asarray([pages.index(tab.page)]),
            "url": url,
            "screenshot": _pixels(await self._capture(tab)),
            **await _objects(tab, seen["frames"], self.scale),
        }
        times = self._times | {
            "wait_for_page_loading_start": self._times.get("action_exec_stop", looked),
            "wait_for_page_loading_stop": looked,
            "validation_start": looked,
            "validation_stop": judged,
            "get_observation_start": judged,
            "get_observation_stop": time.time(),
        }
        return RawObservation("", url, self._goal, None, None, fields, info, tuple(self._said), times), verdict

    async def _task_info(self, tab: Tab, first: bool, url: str) -> dict[str, Any]:
        """As `AbstractMiniwobTask.validate`; other pages have none."""
        if not isinstance(self._site, MiniwobSite):
            return {}
        if first and url == self._site.url:
            info: dict[str, Any] = await tab.evaluate_in_page(_TASK_INFO)
            return info
        return {"error": f"invalid {'url' if first else 'page'}, terminating task"}


async def _objects(tab: Tab, num_frames: int, scale: float) -> dict[str, Any]:
    """Snapshot, accessibility tree, elements' properties and focus of a page whose main frame has been marked."""
    frames = await mark_child_frames(tab) if num_frames else {}
    await tab.evaluate("__webrl.describe()")
    for frame in frames.values():
        await tab.evaluate("__webrl.describe()", frame)
    dom = await tab.channel.send("DOMSnapshot.captureSnapshot", _SNAPSHOT)
    nodes = await framed_axtree(tab)
    for attribute in ("aria-roledescription", "aria-description"):
        pop_bids_from_attribute(dom, attribute)
    for node in nodes:
        _move_bid(node)
    return {
        "dom_object": dom,
        "axtree_object": {"nodes": nodes},
        "extra_element_properties": extract_dom_extra_properties(dom, scale_factor=scale),
        "focused_element_bid": await _focused_bid(tab, frames),
    }


def _move_bid(node: dict[str, Any]) -> None:
    """Take the id out of an accessibility node's texts and into `browsergym_id`, as `extract_all_frame_axtrees`."""
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


async def _focused_bid(tab: Tab, frames: dict[str, str]) -> str:
    """The bid of the focused element, frames looked into; "" if there is none."""
    bid: str | None = await tab.evaluate("__webrl.focusedBid()")
    while bid in frames:
        inner = await tab.evaluate("__webrl.focusedBid()", frames[bid])
        if inner is None:
            break
        bid = inner
    return bid or ""


def _pixels(png: bytes) -> NDArray[np.uint8]:
    return np.array(Image.open(io.BytesIO(png)).convert("RGB"))  # [H, W, 3]
