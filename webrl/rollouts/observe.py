"""Turns a page into the text that agent and judge read.

API: `read_page(tab, seen, form, hidden_ids)`, which takes one of: `observe_axtree(tab, num_frames, hidden, uses)`,
BrowserGym's flattened accessibility tree (`webrl/rollouts/axtree.py` prints it); `observe_dom`, the same lines from the
document itself where our extractor is known to tell them (`webrl/rollouts/probe.py`), faster; `observe_html`, the
simplified HTML of released WebRL checkpoints.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Collection, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.rollouts.axtree import Uses, flatten_axtree
from webrl.rollouts.devtools import ChannelError

if TYPE_CHECKING:
    from playwright.async_api import ElementHandle, Frame, Page

    from webrl.rollouts.tab import Tab

logger = logging.getLogger(__name__)

JS_FOLDER = Path(__file__).parent / "js"
# MiniWoB's own display of goal, reward and time: never part of what agent or judge see.
HIDDEN_IDS = ("query", "reward-display", "click-canvas", "sync-task-cover", "episode-id")

_ENABLE: tuple[str, dict[str, Any]] = ("Accessibility.enable", {})
_DISABLE: tuple[str, dict[str, Any]] = ("Accessibility.disable", {})
_UNMARK: tuple[str, dict[str, Any]] = ("Runtime.evaluate", {"expression": "__webrl.unmark()"})
MAX_TEXT_CHARS = 2_000_000
"""An observation's text is cut here; prompts take a small part of it."""
# Chromium names the class of what was thrown from a version after 126 on.
_TOO_LARGE = re.compile(r"(?:TooLarge|Error): (more than \d+ elements)")


@cache
def load_script(*names: str) -> str:
    """Concatenated JavaScript files of this package, by name without `.js`."""
    return "\n".join((JS_FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in names)


async def read_page(
    tab: Tab, seen: dict[str, Any], form: str, hidden_ids: Sequence[str]
) -> tuple[str, dict[str, str] | None]:
    """A page's text, and the bid of each element id in it where it has ids of its own.

    Args:
        tab: the tab.
        seen: what `__webrl.look` has just returned for it.
        form: `rollout.observation`.
        hidden_ids: DOM ids of the elements left out.
    """
    from playwright.async_api import Error

    if limit := seen.get("tooLarge"):
        return f"RootWebArea {await tab.page.title()!r:.200}\n\tStaticText 'Not shown: {limit}.'", None
    ids = None
    try:
        if form == "dom":
            text = await observe_dom(tab, seen, hidden_ids)
        elif form == "html":
            text, ids = await observe_html(tab, hidden_ids)
        else:
            text = await observe_axtree(tab, seen["frames"], frozenset(seen["hidden"]), seen["uses"])
    except (Error, ChannelError) as error:
        if not (found := _TOO_LARGE.search(str(error))):
            raise
        await unmark(tab)  # a frame is too large, or the page has grown since it was looked at
        return await read_page(tab, {"tooLarge": found.group(1)}, form, hidden_ids)
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:MAX_TEXT_CHARS]}\nStaticText 'Cut: the page has {len(text)} characters.'"
    return text, ids


async def mark_child_frames(
    tab: Tab, into_aria: bool = True, uses: dict[str, Sequence[str]] | None = None
) -> dict[str, Frame]:
    """Give the elements of all frames but the main one their bids (BrowserGym's order); the main frame is marked.

    Frames that cannot run scripts are skipped. Gives the others by bid. What `mark` says of uses is added to `uses`.
    """
    found: dict[str, Frame] = {}
    await _mark_children(tab.page.main_frame, into_aria, tab.first_id, found, {} if uses is None else uses)
    return found


async def _mark_children(
    frame: Frame, into_aria: bool, first_id: int, found: dict[str, Frame], uses: dict[str, Sequence[str]]
) -> None:
    async for child, element in frames_in(frame):
        sandbox = await element.get_attribute("sandbox")
        bid = await element.get_attribute("bid")
        if bid is None or (sandbox is not None and "allow-scripts" not in sandbox.split()):
            continue
        marked = await child.evaluate("(given) => __webrl.mark(...given)", [bid, [], into_aria, first_id])
        uses.update(marked["uses"] or {})
        found[bid] = child
        await _mark_children(child, into_aria, first_id, found, uses)


async def frames_in(frame: Frame) -> AsyncIterator[tuple[Frame, ElementHandle]]:
    """The frames right inside of one that have something in them, each with its element."""
    for child in frame.child_frames:
        if _takes_scripts(child):
            element = await child.frame_element()
            if await element.content_frame() == child:
                yield child, element


async def shown_frames(frame: Frame) -> list[Frame]:
    """The frame and all below it that are shown, outermost first."""
    found = [frame]
    async for child, element in frames_in(frame):
        if await element.is_visible():
            found += await shown_frames(child)
    return found


def _takes_scripts(frame: Frame) -> bool:
    """Without an address nothing has come yet, or the browser refused it: a script would wait for ever."""
    return bool(frame.url) and not frame.is_detached()


async def _unmark_children(page: Page) -> None:
    frames = [frame for frame in page.frames if frame is not page.main_frame and _takes_scripts(frame)]
    calls = (frame.evaluate("window.__webrl && __webrl.unmark()") for frame in frames)
    await asyncio.gather(*calls, return_exceptions=True)


async def observe_axtree(tab: Tab, num_frames: int, hidden: Collection[str], uses: Uses | None = None) -> str:
    """The page as BrowserGym's flattened accessibility tree; its main frame has just been marked (`__webrl.look`).

    `uses`: what `mark` has said of it; those of its frames are added.

    The tree is built anew each time, because one that the browser keeps up to date misses lines where the page has
    been rebuilt; only an explicit `enable` makes `disable` drop it.
    """
    known = None if uses is None else dict(uses)
    if num_frames:
        await mark_child_frames(tab, uses=known)
        nodes = await framed_axtree(tab)
    else:
        answers = await tab.channel.send_all(_ENABLE, ("Accessibility.getFullAXTree", {}), _DISABLE, _UNMARK)
        nodes = answers[1]["nodes"]
    return flatten_axtree(nodes, hidden, known)


async def unmark(tab: Tab) -> None:
    """Take the marks of all frames out of the accessibility tree again."""
    await tab.channel.send_all(_UNMARK)
    await _unmark_children(tab.page)


async def framed_axtree(tab: Tab) -> list[dict[str, Any]]:
    """The trees of all frames, which have been marked, as one; the marks are taken out again."""
    try:
        await tab.channel.send_all(_ENABLE)
        return await _all_frames_axtree(tab)
    finally:
        await tab.channel.send_all(_DISABLE)
        await unmark(tab)


async def _all_frames_axtree(tab: Tab) -> list[dict[str, Any]]:
    """All frames' trees; each frame element's node gets its document's root as a child."""
    tree = await tab.channel.send("Page.getFrameTree")
    by_frame: dict[str, list[dict[str, Any]]] = {}
    waiting = [tree["frameTree"]]
    while waiting:
        entry = waiting.pop()
        waiting.extend(entry.get("childFrames", []))
        frame_id = entry["frame"]["id"]
        answer = await tab.channel.send("Accessibility.getFullAXTree", {"frameId": frame_id})
        by_frame[frame_id] = answer["nodes"]
    for frame_nodes in by_frame.values():
        for node in frame_nodes:
            if node["role"]["value"] == "Iframe":
                answer = await tab.channel.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})
                inner = by_frame.get(answer.get("node", {}).get("frameId"))
                if inner:
                    node["childIds"].append(inner[0]["nodeId"])
    return [node for frame_nodes in by_frame.values() for node in frame_nodes]


async def observe_dom(tab: Tab, seen: dict[str, Any], hidden_ids: Sequence[str]) -> str:
    """The page as text of our own extractor, or of the tree if the page has elements that only the tree tells.

    Args:
        tab: the tab.
        seen: what `__webrl.look` has returned for it.
        hidden_ids: DOM ids of the elements left out.
    """
    lines = await own_lines(tab, seen, seen["frames"])
    if lines is not None:
        return "\n".join(lines)
    seen = await tab.evaluate(f"__webrl.mark('', {json.dumps(list(hidden_ids))}, true, {tab.first_id})")
    return await observe_axtree(tab, seen["frames"], frozenset(seen["hidden"]), seen["uses"])


async def own_lines(tab: Tab, extracted: dict[str, Any], num_frames: int) -> list[str] | None:
    """What `__webrl.extract` has found with that of all frames below it; None if one has elements for the tree."""
    if not num_frames or extracted["foreign"]:
        return None if extracted["foreign"] else extracted["lines"]
    return await _with_frames(extracted, await mark_child_frames(tab, into_aria=False))


async def _with_frames(extracted: dict[str, Any], frames: dict[str, Frame]) -> list[str] | None:
    """Put each frame's lines below the line of its element."""
    if extracted["foreign"]:
        return None
    by_line = {line: (depth, bid) for line, depth, bid in extracted["frameLines"]}
    result = []
    for number, line in enumerate(extracted["lines"]):
        result.append(line)
        depth, bid = by_line.get(number, (0, None))
        if bid in frames:
            nested = await _with_frames(await frames[bid].evaluate("__webrl.extract([])"), frames)
            if nested is None:
                return None
            result += ["\t" * depth + text for text in nested]
    return result


async def observe_html(tab: Tab, hidden_ids: Sequence[str]) -> tuple[str, dict[str, str]]:
    """The page as the simplified HTML of released WebRL checkpoints, and the bid of each number in it."""
    from webrl.rollouts.html import simplify

    found = await tab.evaluate(f"({load_script('html_page')})()")
    labels = await tab.evaluate(
        "[...window[Symbol.for('webrl.html')].labels].map(([label, element]) => [label, element.getAttribute('bid')])"
    )
    html = remove_elements(found["html"], hidden_ids) if hidden_ids else found["html"]
    return simplify(html, found["width"], found["height"]), {str(label): bid for label, bid in labels if bid}


def remove_elements(html: str, ids: Sequence[str]) -> str:
    """Cut the elements with these DOM ids, and all that is in them, out of a document."""
    import lxml.html  # type: ignore[import-untyped]

    root = lxml.html.document_fromstring(html)
    for name in ids:
        for element in root.xpath("//*[@id=$name]", name=name):
            element.drop_tree()
    return str(lxml.html.tostring(root, encoding="unicode"))
