"""Actions on numbered elements: what an agent that reads simplified HTML says, in terms of BrowserGym's bids.

API: `await translate(page, text, dialect) -> Translation` gives the BrowserGym calls that a `do(...)` or `click('7')`
with an element number of the last `observe_html` stands for.

As in VAB-WebArena-Lite, scrolling moves two thirds of the window, and a drop-down takes the first option that contains
the argument, whatever the case. Unlike there, `Type` replaces a field's text: the released harness presses Meta+A and
Backspace, which on Linux deletes one character.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from webrl.rollouts.actions import Action
from webrl.rollouts.dialects import parse

if TYPE_CHECKING:
    from playwright.async_api import Page

_SCROLL_SHARE = 2 / 3
_ELEMENT_ARGUMENTS = ("bid", "from_bid", "to_bid")
_FIND = """([label, wanted]) => {
  const element = window[Symbol.for("webrl.html")]?.labels.get(label);
  if (!element || !element.isConnected) return null;
  const options = wanted === null || !element.options ? [] : [...element.options].map((option) => option.text.trim());
  const found = options.includes(wanted) ? wanted
    : options.find((text) => text.toLowerCase().includes(wanted.toLowerCase()));
  return { bid: element.getAttribute("bid"), option: found ?? wanted };
}"""


@dataclass(frozen=True)
class Translation:
    """One action of the agent.

    Example: `Translation('do(action="Search", …, element="4")', ("fill('31', 'x')", "press('31', 'Enter')"))`
    """

    written: str
    """Canonical form, in the language and with the numbers the agent used."""
    calls: tuple[str, ...]
    """BrowserGym calls with bids, to be carried out in this order."""
    error: str = ""
    """What the agent is told if an element is not there (then there are no calls)."""


async def translate(page: Page, text: str, dialect: Literal["browsergym", "webrl"]) -> Translation:
    """Read an action on the page as it was last observed. Raises ActionError if it cannot be read."""
    action = parse(text, dialect)
    try:
        calls = [await _with_bids(page, part, dialect) for part in (action, *action.rest)]
    except LookupError as error:
        return Translation(action.canonical, (), f"There is no element {error.args[0]!r} on the page.")
    return Translation(action.canonical, tuple(calls))


async def _with_bids(page: Page, action: Action, dialect: str) -> str:
    arguments = dict(action.arguments)
    wanted = arguments.get("options")
    for name in _ELEMENT_ARGUMENTS:
        if name in arguments:
            found = await _find(page, arguments[name], wanted if isinstance(wanted, str) else None)
            arguments[name] = found["bid"]
            if isinstance(wanted, str):
                arguments["options"] = found["option"]
    if action.name == "scroll" and dialect == "webrl" and page.viewport_size:
        distance = page.viewport_size["height"] * _SCROLL_SHARE
        arguments["delta_y"] = distance if arguments["delta_y"] > 0 else -distance
    return dataclasses.replace(action, arguments=arguments, written="", rest=()).canonical


async def _find(page: Page, label: str, wanted: str | None) -> dict[str, Any]:
    found: dict[str, Any] | None = await page.evaluate(_FIND, [label, wanted])
    if found is None or not found["bid"]:
        raise LookupError(label)
    return found
