"""Turns a page into the text that agent and judge read.

That is BrowserGym's flattened accessibility tree, or the simplified HTML of released WebRL checkpoints
(`webrl/rollouts/html.py`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from ctypes import c_float
from typing import TYPE_CHECKING, Any

from webrl.rollouts.devtools import ChannelError
from webrl.rollouts.html import observe_html
from webrl.runs.text import valid_text

if TYPE_CHECKING:
    from webrl.rollouts.devtools import Tab

_BID = re.compile(r"browsergym_id_([a-zA-Z0-9]+)\s?(.*)")
# BrowserGym's, and `url`: recent Chromium adds it, it is long, and for file pages it names a folder of this machine.
_SKIPPED_PROPERTIES = frozenset(
    ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "url")
)
_FLAGS = frozenset(("required", "focused", "atomic"))
# No words: nothing, or pictures of an icon font, which are characters for private use.
_ICONS = re.compile(r"[\s\ue000-\uf8ff]*")

_ICON_ROLES = {"image", "img", "button", "link", "SvgRoot", "menuitem", "tab"}
# Only those that can be used have an icon: all others are part of a layout or a drawing.
_USED_ROLES = {"generic", "graphics-symbol"}
# What tells that it is there, but not that it can be used.
_PASSIVE_ROLES = re.compile(r"""(?x)Abbr|Figcaption|LayoutTable(Cell|Row)|Legend|article|blockquote|cell|code|
columnheader|definition|deletion|emphasis|figure|generic|graphics-symbol|heading|image|img|insertion|listitem|mark|
paragraph|row|rowheader|strong|subscript|superscript|term|time""")
_FIELDS = frozenset(("Date", "DateTime", "InputTime"))
_TWICE = re.compile(r"^(.+) \1$")  # what Chromium calls the parts of a field that has a name, since 149
_OWNERS = _FIELDS | {"grid", "treegrid"}
_CELL, _LIST_OPTION = 13, 127  # Chromium's own numbers of roles that it has called otherwise before 138

Uses = Mapping[str, Sequence[str]]
"""By bid: how an element can be acted on if the tree does not say, its title, its file, class or id if it has no text,
the look of an SVG shape, and the state that a class names; "" otherwise."""


def flatten_axtree(nodes: Sequence[dict[str, Any]], hidden: Collection[str] = (), uses: Uses | None = None) -> str:
    """Print an accessibility tree as `browsergym.utils.obs.flatten_axtree_to_str` does with its defaults.

    Args:
        nodes: CDP `AXNode`s, marked; left as they are.
        hidden: bids whose nodes are left out with everything below them.
        uses: what `mark` says of elements, for an agent that sees more than BrowserGym's. None: as there.

    Differences: `InlineTextBox` lines, `url` properties (both new in recent Chromium) and hidden subtrees are left out.
    """
    if not nodes:
        return ""
    by_id = {node["nodeId"]: node for node in nodes}
    lines: list[str] = []
    stack: list[tuple[dict[str, Any], int, str]] = [(nodes[0], 0, "")]
    visited: set[str] = set()
    while stack:
        node, depth, parent_name = stack.pop()
        if node["nodeId"] in visited:
            continue
        visited.add(node["nodeId"])
        bid = None  # in its role description, or else in its description
        properties = []
        for entry in node.get("properties", ()):
            given = entry.get("value", {}).get("value", _ABSENT)
            if entry["name"] == "roledescription" and (match := _BID.fullmatch(str(given))):
                bid, given = match.groups()
                given = given or _ABSENT
            if given is not _ABSENT:
                properties.append((entry["name"], given))
        if bid is None and (said := node.get("description")) and (match := _BID.fullmatch(str(said.get("value", "")))):
            bid = match.group(1)
        # `aria-hidden`: Chromium 119 has what can have the focus all the same.
        if bid in hidden or (uses is not None and ("hidden", True) in properties):
            continue
        name, line = _describe(node, bid, properties, parent_name, uses)
        if line is not None:
            lines.append("\t" * depth + line)
            depth += 1
        elif uses is not None:
            name = ""
        for child_id in reversed(node.get("childIds", ())):
            child = by_id.get(child_id)
            if child is not None:
                stack.append((child, depth, name))
    return "\n".join(lines)


def _describe(
    node: dict[str, Any], bid: str | None, properties: Sequence[tuple[str, Any]], parent_name: str, uses: Uses | None
) -> tuple[str, str | None]:
    """(name, printed line or None if the node is not printed)."""
    role = node["role"]["value"]
    if role in ("LineBreak", "InlineTextBox") or "name" not in node:
        return "", None
    name = node["name"]["value"]
    if uses is not None and ("valuemin", 0) in properties and ("valuemax", 0) in properties:  # it has no bounds
        properties = [pair for pair in properties if pair[0] not in ("valuemin", "valuemax")]
    value = node.get("value", {}).get("value", _ABSENT)
    if uses is not None:
        use, title, hint, shape, state = uses.get(bid or "", ("", "", "", "", ""))
        value = _exact(value)
        properties = [(key, _exact(each)) for key, each in properties if key != "valuetext"]  # the page's: in `state`
    shown = [(key, each) for key, each in properties if key not in _SKIPPED_PROPERTIES and (each or key not in _FLAGS)]
    attributes = [key if key in _FLAGS else f"{key}={each!r}" for key, each in shown]
    if uses is not None:
        is_icon = _ICONS.fullmatch(name)
        if (role == "StaticText" and is_icon) or (role == "LabelText" and not use):
            return name, None
        if use in ("draggable", "droppable") or (use and _PASSIVE_ROLES.fullmatch(role)):
            attributes.append(use)
        if hint and is_icon and (role in _ICON_ROLES or (use and role in _USED_ROLES)):
            attributes.append(f"icon={hint!r}")
        if shape:
            attributes.append(f"shape={shape!r}")
        if state:
            attributes.append(state)
        if role == "textbox" and ("readonly", True) in properties:
            attributes.append("readonly")
        if is_icon and name.strip():
            name = title or name
        elif title and title not in name:
            attributes.append(f"title={title!r:.200}")
    if role == "generic" and not attributes:
        return name, None
    if role == "StaticText" and name in parent_name:
        return name, None
    line = role if role == "generic" and not name else f"{role} {name.strip()!r}"
    if bid is not None:
        line = f"[{bid}] {line}"
    if value is not _ABSENT:
        line += f" value={value!r}"
    return name, ", ".join([line, *attributes])


def as_newest(nodes: Iterable[dict[str, Any]]) -> None:
    """Make the trees of Chromium 119 to 153 say the same of lists, tables, tabs and dates: what the newest says."""
    owners: dict[str, dict[str, Any] | None] = {}  # by node: the field of a date or time, or grid, that it is in
    for node in nodes:  # parents come before their children
        role, given = node["role"], node.get("properties", ())
        if (kind := role["value"]) == "InlineTextBox":
            continue
        owner = owners[node["nodeId"]] = node if kind in _OWNERS else owners.get(node.get("parentId", ""))
        if kind == "menuitem" and node.get("chromeRole", {}).get("value") == _LIST_OPTION:
            role["value"] = "option"
        elif kind == "gridcell" and owner is None and node.get("chromeRole", {}).get("value") == _CELL:
            role["value"] = "cell"
        elif kind == "MenuListPopup":
            node.setdefault("name", {"value": ""})
        for each in [each for each in given if each["name"] == "controls" and not each["value"].get("relatedNodes")]:
            given.remove(each)  # before 138 a tab says what it controls though that is hidden
        # A part of a field: no text of a value, its name once; and the button has the field's bid, as in 153.
        if owner is not None and owner["role"]["value"] in _FIELDS:
            for each in given:
                if each["name"] == "valuetext":
                    each["value"]["value"] = ""
            name = node.get("name", {"value": ""})
            name["value"] = _TWICE.sub(r"\1", name["value"])
            if kind in ("button", "generic") and name["value"]:
                role["value"] = "button"
                own = (each for each in given if each["name"] != "hasPopup")
                node["properties"] = [*own, {"name": "hasPopup", "value": {"value": "menu"}}]
                node |= {key: owner[key] for key in ("description", "browsergym_id") if key in owner}


_ABSENT = object()


def _exact(value: Any) -> Any:
    """The number that a page has, of one that its tree has in single precision: 7.3 for 7.300000190734863."""
    if not isinstance(value, float):
        return value
    short = float(f"{value:.6g}")
    return short if c_float(short).value == value else value


# MiniWoB's own display of goal, reward and time: never part of what agent or judge see.
HIDDEN_IDS = ("query", "reward-display", "click-canvas", "sync-task-cover", "episode-id")

_ENABLE: tuple[str, dict[str, Any]] = ("Accessibility.enable", {})
_DISABLE: tuple[str, dict[str, Any]] = ("Accessibility.disable", {})
MAX_TEXT_CHARS = 2_000_000
"""An observation's text is cut here; prompts take a small part of it."""
# A frame, or its document, is gone.
_GONE = re.compile(r"given (frame)?id\b|Cannot find context|context was destroyed|__webrl is not defined", re.I)
# Chromium names the class of what was thrown from a version after 126 on.
_TOO_LARGE = re.compile(r"(?:TooLarge|Error): (more than \d+ elements)")


async def read_page(
    tab: Tab, seen: dict[str, Any], form: str, hidden_ids: Sequence[str]
) -> tuple[str, dict[str, str] | None]:
    """A page's text without the elements of `hidden_ids`, and the bid of each element id in it where it has ids of its
    own; `seen` is what `__webrl.look` has just returned for it.
    """
    from playwright.async_api import Error

    if limit := seen.get("tooLarge"):
        return f"RootWebArea {valid_text(await tab.page.title())!r:.200}\n\tStaticText 'Not shown: {limit}.'", None
    ids = None
    try:
        if form == "html":
            text, ids = await observe_html(tab, hidden_ids)
        else:
            # The tree is rebuilt each time, because one that the browser keeps up to date misses lines where the page
            # has been rebuilt; only an explicit `enable` makes `disable` drop it.
            uses = None if seen["uses"] is None else dict(seen["uses"])
            tab.frames, tab.unseen_in_frames = {}, 0
            if seen["frames"]:
                await mark_child_frames(tab, uses)
                nodes = await framed_axtree(tab)
            else:
                unmark_here = {"expression": "__webrl.unmark()", "contextId": tab.worlds.get(tab.main_frame, 0)}
                answers = await tab.send_all(
                    _ENABLE, ("Accessibility.getFullAXTree", {}), _DISABLE, ("Runtime.evaluate", unmark_here)
                )
                nodes = answers[1]["nodes"]
            as_newest(nodes)
            text = flatten_axtree(nodes, frozenset(seen["hidden"]), uses)
            if unseen := seen["unseen"] + tab.unseen_in_frames:
                what = f"{unseen} elements that the page hides from readers (aria-hidden, inert, behind a dialog)"
                text += f"\n\tStaticText 'Not shown: {what}.'"
    except (Error, ChannelError) as error:
        if not (found := _TOO_LARGE.search(str(error))):
            raise
        await unmark(tab)  # a frame is too large, or the page has grown since it was looked at
        return await read_page(tab, {"tooLarge": found.group(1)}, form, hidden_ids)
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:MAX_TEXT_CHARS]}\nStaticText 'Cut: the page has {len(text)} characters.'"
    return text, ids


async def mark_child_frames(tab: Tab, uses: dict[str, Sequence[str]] | None = None) -> dict[str, str]:
    """Give the elements of all frames but the main one, which is marked, their bids (BrowserGym's order), and return
    DevTools' ids of the frames by bid. What `mark` says of uses is added to `uses`; without it frames that may not run
    scripts are skipped, as in BrowserGym.
    """
    found: dict[str, str] = {}
    waiting = [(await tab.send("Page.getFrameTree"))["frameTree"]]
    while waiting:
        for child in waiting.pop().get("childFrames", ()):
            frame = child["frame"]["id"]
            try:
                owner = await tab.send("DOM.getFrameOwner", {"frameId": frame})
                node = {"backendNodeId": owner["backendNodeId"]}
                flat = (await tab.send("DOM.describeNode", node))["node"]["attributes"]
                attributes = dict(zip(flat[::2], flat[1::2], strict=True))
                bid, sandbox = attributes.get("bid"), attributes.get("sandbox")
                if bid is None or (uses is None and sandbox is not None and "allow-scripts" not in sandbox.split()):
                    continue
                marked = await tab.evaluate(f"__webrl.mark({json.dumps(bid)}, [], true, {tab.first_id})", frame)
            except ChannelError as error:
                require_gone(error)
                continue
            if uses is not None:
                uses.update(marked["uses"] or {})
            tab.unseen_in_frames += marked["unseen"]
            found[bid] = frame
            waiting.append(child)
    tab.frames = found
    return found


def require_gone(error: ChannelError) -> None:
    """Raise the error, unless it reports a lost frame: pages remove frames while they are observed."""
    if not _GONE.search(str(error)):
        raise error


async def unmark(tab: Tab) -> None:
    """Remove the marks of all frames from the accessibility tree."""
    calls = (tab.evaluate_in_page("__webrl.unmark()", context) for context in tuple(tab.worlds.values()))
    await asyncio.gather(*calls, return_exceptions=True)


async def framed_axtree(tab: Tab) -> list[dict[str, Any]]:
    """The trees of all frames, which have been marked, as one; the marks are taken out again. The node of each frame's
    element (an `object` or `embed` too) gets its root as a child.
    """
    nodes: list[dict[str, Any]] = []
    inside: dict[int, dict[str, Any]] = {}  # roots, by the element that holds them
    try:
        await tab.send_all(_ENABLE)
        trees = [(await tab.send("Page.getFrameTree"))["frameTree"]]
        for tree in trees:
            trees += tree.get("childFrames", ())
            frame = tree["frame"]["id"]
            try:
                calls = [("Accessibility.getFullAXTree", {"frameId": frame})]
                if frame != tab.main_frame:
                    calls.append(("DOM.getFrameOwner", {"frameId": frame}))
                found, *owner = await tab.send_all(*calls)
            except ChannelError as error:
                if frame == tab.main_frame:
                    raise
                require_gone(error)
                continue
            if found["nodes"] and owner:
                inside[owner[0]["backendNodeId"]] = found["nodes"][0]
            nodes += found["nodes"]
    finally:
        await tab.send_all(_DISABLE)
        await unmark(tab)
    for node in nodes:
        root = inside.get(node.get("backendDOMNodeId", 0))
        if root is not None and not node.get("ignored"):
            node.setdefault("childIds", []).append(root["nodeId"])
    return nodes
