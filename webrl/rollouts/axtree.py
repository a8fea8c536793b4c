"""Prints an accessibility tree as BrowserGym does: same lines, same bids; `InlineTextBox` and hidden subtrees left out.

API: `flatten_axtree(nodes, hidden, uses)`, pure; `webrl/rollouts/observe.py` gets the nodes from the browser.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

_BID = re.compile(r"browsergym_id_([a-zA-Z0-9]+)\s?(.*)")
_SKIPPED_ROLES = frozenset(("LineBreak", "InlineTextBox"))
# BrowserGym's, and `url`: recent Chromium adds it, it is long, and for file pages it names a folder of this machine.
_SKIPPED_PROPERTIES = frozenset(
    ("editable", "readonly", "level", "settable", "multiline", "invalid", "focusable", "url")
)
_FLAGS = frozenset(("required", "focused", "atomic"))
# Pictures of an icon font: characters for private use.
_ICONS = re.compile(r"\s*[\ue000-\uf8ff][\s\ue000-\uf8ff]*")

_ICON_ROLES = {"image", "img", "button", "link", "SvgRoot", "menuitem", "tab"}
# Only those that can be used have an icon: all others are part of a layout or a drawing.
_USED_ROLES = {"generic", "graphics-symbol"}

Told = Sequence[str]
"""How an element can be acted on if the tree does not say, its title, its file, class or id if it has no text, and the
look of an SVG shape; "" otherwise."""
Uses = Mapping[str, Told]
"""By bid."""


def flatten_axtree(nodes: Sequence[dict[str, Any]], hidden: Collection[str] = (), uses: Uses | None = None) -> str:
    """Print an accessibility tree as `browsergym.utils.obs.flatten_axtree_to_str` does with its defaults.

    Args:
        nodes: CDP `AXNode`s, marked; left as they are.
        hidden: bids whose nodes are left out with everything below them.
        uses: elements that BrowserGym does not print (`generic` ones without properties) are printed with that word,
            the text in the others is, too, where their name has it, what is named by an icon has its title for
            a name, images, buttons and links without a name have their file, class or id, and SVG shapes their kind,
            color, size and center. None: as BrowserGym.

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
        name, bid, line = _describe(node, parent_name, uses)
        if bid in hidden or (uses is not None and _is_hidden(node)):
            continue
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


def _describe(node: dict[str, Any], parent_name: str, uses: Uses | None) -> tuple[str, str | None, str | None]:
    """(name, bid, printed line or None if the node is not printed)."""
    role = node["role"]["value"]
    bid, properties = _take_bid(node)
    if role in _SKIPPED_ROLES or "name" not in node:
        return "", bid, None
    name = node["name"]["value"]
    attributes = [text for text in map(_attribute, properties) if text]
    if uses is not None:
        use, title, hint, shape = uses.get(bid or "", ("", "", "", ""))
        if use and role in _USED_ROLES:
            attributes.append(use)
        if hint and not name.strip() and (role in _ICON_ROLES or (use and role in _USED_ROLES)):
            attributes.append(f"icon={hint!r}")
        if shape:
            attributes.append(f"shape={shape!r}")
        if _ICONS.fullmatch(name):
            if role == "StaticText":
                return name, bid, None
            name = title or name
    if role == "generic" and not attributes:
        return name, bid, None
    if role == "StaticText" and name in parent_name:
        return name, bid, None
    line = role if role == "generic" and not name else f"{role} {name.strip()!r}"
    if bid is not None:
        line = f"[{bid}] {line}"
    if "value" in node.get("value", ()):
        line += f" value={node['value']['value']!r}"
    return name, bid, ", ".join([line, *attributes])


def _take_bid(node: dict[str, Any]) -> tuple[str | None, list[tuple[str, Any]]]:
    """The bid in a node's role description, or else description; and its (property, value) pairs without the bid."""
    bid = None
    properties = []
    for entry in node.get("properties", ()):
        value = entry.get("value", {}).get("value", _ABSENT)
        if entry["name"] == "roledescription" and (match := _BID.fullmatch(str(value))):
            bid, value = match.groups()
            value = value or _ABSENT
        if value is not _ABSENT:
            properties.append((entry["name"], value))
    if bid is None and "description" in node:
        match = _BID.fullmatch(str(node["description"].get("value", "")))
        bid = match.group(1) if match else None
    return bid, properties


def _is_hidden(node: dict[str, Any]) -> bool:
    """Whether the page hides it from readers (`aria-hidden`); Chromium 119 has what can have the focus all the same."""
    return any(entry["name"] == "hidden" and entry["value"]["value"] for entry in node.get("properties", ()))


_ABSENT = object()


def _attribute(pair: tuple[str, Any]) -> str:
    name, value = pair
    if name in _SKIPPED_PROPERTIES:
        return ""
    if name in _FLAGS:
        return name if value else ""
    return f"{name}={value!r}"
