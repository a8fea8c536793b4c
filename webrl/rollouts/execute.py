"""Carries out actions on a page with Playwright, to the same effect as BrowserGym's action functions.

What fails raises `ActionFailed` with the text for the agent; page and browser crashes surface as Playwright errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import re
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urljoin

from webrl.rollouts.actions import MODIFIERS, Action
from webrl.rollouts.browser import first_line
from webrl.rollouts.devtools import REPLACED, ChannelClosed, ChannelError, ScriptError
from webrl.runs.text import valid_text

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Locator, Page

    from webrl.rollouts.devtools import Tab

logger = logging.getLogger(__name__)

# Playwright's call log for a page that blocks an action on an element, and for an action in progress.
_REFUSED = re.compile(
    r"- +(<.*intercepts pointer events|element is (?:not|outside) .*|element was detached.*|did not find some options)"
)
_PERFORMED = re.compile(r"^ *- +(?:performing \w+ action|elementHandle\.(?:press|type)\()", re.MULTILINE)

Handler = Callable[..., Awaitable[object]]
"""Carries out one kind of action: the tabs, then the action's arguments by name."""
ACTION_TIMEOUT_MS = 500
"""Longest wait, on a quiet machine, for an element to become clickable (BrowserGym's)."""
MAX_REFUSALS = 5
"""Playwright asks the page this often within that wait on a quiet machine."""
REFUSED_MS = 5000
"""After this a single refusal is enough."""
ROUND_TRIPS = 40
"""More calls of the page than any action of Playwright's needs."""
CHOOSER_MS = 2500
"""Longest wait for the file dialog that a click is to open."""
_PIXELS = frozenset(["x", "y", "dx", "dy", "delta_x", "delta_y", "from_x", "from_y", "to_x", "to_y"])
"""Arguments in screenshot pixels; handlers get CSS pixels."""
_IS_ENABLED = "all => all.some((each) => !each.matches(':disabled') && !each.closest('[aria-disabled=true]'))"
_ANYWHERE = ("aside", "choose", "pick", "watchInput", "hadInput", "watchDrag")
"""What `js/act.js` does to an element without knowing where it is in the window: in frames too."""
_EXAMPLES = {"color": "#ff0000", "date": "2024-12-31", "datetime-local": "2024-12-31T14:30", "month": "2024-12"}
_EXAMPLES |= {"range": "50", "time": "14:30", "week": "2024-W52"}
"""What the fields take that are not typed into, by type."""
_ELSEWHERE = "the element does not take the focus: keys go to what has it"
MAX_TYPED = 100
"""A longer text is put into a field at once, even if the page listens to the keys there (a terminal, a list that is
filtered as one types); with `rollout.every_element`: BrowserGym never types."""
_TYPED_AT_ONCE = 10
"""After this many characters the time is looked at."""
PAGE_TIMEOUT_MS = 5000
"""Longest wait for a page that an action opens, and for every Playwright call without its own timeout."""
MAX_DOCUMENTS = 6
"""A page that is replaced more often than this before it has loaded is stopped."""
KEEPS_LOADING = "this page keeps loading itself again, or another one: it is shown as it was once"
MAX_TABS = 20
"""Open tabs of an environment; further ones are closed at once."""
MAX_WAIT_MS = 10_000
"""`noop` waits no longer than this."""


class ActionFailed(Exception):
    """The action was readable but could not be carried out; the text is shown to the agent."""


class Tabs(Protocol):
    """What an action may act on: the open tabs of an environment (`BrowserEnv`)."""

    page: Page
    """The active tab's page."""
    tab: Tab
    """The active tab as it was when the action began."""
    context: BrowserContext
    scale: float
    """Screenshot pixels per CSS pixel; coordinates in actions are screenshot pixels."""
    shows_all: bool
    """The agent sees all of a page, wherever it is scrolled to."""
    upload_dir: Path | None
    """The one folder that files may be uploaded from; None: from nowhere."""

    @property
    def patience_s(self) -> float:
        """How long a page that is leaving for a server that does not answer may take from now on."""

    def check_url(self, url: str) -> None:
        """Raises ActionFailed if the agent may not go there."""

    def tell(self, line: str) -> None:
        """Show the agent a line above the next page."""


async def execute(action: Action, tabs: Tabs, handlers: Mapping[str, Handler] | None = None) -> None:
    """Do it, by BrowserGym's rules or by other `handlers`. Raises ActionFailed: no such element, a bad key."""
    from playwright.async_api import Error

    arguments = {key: arg / tabs.scale if key in _PIXELS else arg for key, arg in action.arguments.items()}
    window = tabs.page.viewport_size
    if window is not None and action.name not in ("mouse_move", "mouse_up"):
        for key in ("x", "y", "from_x", "from_y"):
            side = window["width" if key.endswith("x") else "height"]
            if not 0 <= arguments.get(key, 0) < side:
                most = round(side * tabs.scale) - 1
                raise ActionFailed(f"Error: {key}={action.arguments[key]:g} is outside the window, up to {most}")
    tabs.tab.filled_in = ""
    try:
        await (handlers or _HANDLERS)[action.name](tabs, **arguments)
    except Error as error:
        if "has been closed" in str(error) and tabs.page.is_closed() and tabs.context.pages:
            return  # the tab has closed itself, by a drop for instance; the newest other one is seen
        # Page or browser are gone, rather than that the action failed.
        if re.search(r"crashed|has been closed|was closed|browser has disconnected|Connection closed", str(error)):
            raise
        text = valid_text(f"{error.__class__.__name__}: {first_line(error)}")
        if obstacle := _REFUSED.search(str(error)):  # from the call log, the rest of which is not for agents
            hint = ": a click may open what fills it in" if obstacle[1] == "element is not editable" else ""
            text += f" ({valid_text(obstacle[1])}{hint})"
        if unknown := re.search('Unknown key: "(.+)"', text):
            meant = _KEYS.get(unknown[1].strip().lower())
            text += f": did you mean {meant!r}?" if meant else "; keys are called 'Enter', 'ArrowDown', 'Control+a', …"
        raise ActionFailed(text) from None
    except ChannelError as error:
        # A navigation that the action causes may take away the page in mid-call: that is its effect, not its failure.
        if isinstance(error, ScriptError) or not any(part in str(error) for part in REPLACED):
            # `js/act.js` throws `Error` with words for the agent; all else is its failure.
            why = valid_text(first_line(error).removeprefix("Error: "))
            if re.match(r"\w*Error: ", why):
                why = f"something on this page keeps webrl's script from doing it ({why:.200})"
            raise ActionFailed(f"Error: {action.name} was not carried out: {why}") from None
        logger.debug("%s: %s", action.canonical, error)
    except (ValueError, IndexError) as error:
        raise ActionFailed(f"{type(error).__name__}: {error}") from None


async def locate(page: Page, bid: str) -> Locator:
    """The element with a bid, through the frames its letters name (`aB12` is in frame `aB` of frame `a`… as in
    BrowserGym). Raises ValueError if there is none.
    """
    scope = page.main_frame
    end = 0
    while bid[end:] and not bid[end:].isnumeric():
        end += 1
        while bid[end : end + 1].isalpha() and bid[end].isupper():
            end += 1
        if not await scope.get_by_test_id(bid[:end]).count():
            raise ValueError(f'Could not find element with bid "{bid}"')
        if bid[end:]:  # else it is the frame itself
            # Playwright's `content_frame` knows none in an `object` or `embed`; `child_frames` keeps those of earlier
            # documents.
            present = [child for child in scope.child_frames if not child.is_detached()]
            bids = [await (await child.frame_element()).get_attribute("bid") for child in present]
            inner = [child for child, own in zip(present, bids, strict=True) if own == bid[:end]]
            if not inner:
                raise ValueError(f'Could not find element with bid "{bid}"')
            scope = inner[0]
    element: Locator = scope.get_by_test_id(bid)
    if not await element.count():
        raise ValueError(f'Could not find element with bid "{bid}"')
    return element


async def attempt(
    element: Locator,
    method: str,
    *arguments: Any,
    is_done: Callable[[], Awaitable[object]] | None = None,
    **options: Any,
) -> Any:
    """Have Playwright act on an element, for as long as the page's answers take: the caller has the deadline.

    What the page refuses is given up after as many refusals as fit in BrowserGym's half second on a quiet machine. An
    action that gets no answer is tried again with more time, until it has had enough at the page's own pace: an element
    may be one that never answers (in a frame that is not drawn), on a machine that is quick.

    Args:
        is_done: whether the page has had the action's effect, where Playwright's log does not tell: then it is not
            tried again.
    """
    from playwright.async_api import TimeoutError as Timeout

    timeout_ms, spent_ms, refusals, told = ACTION_TIMEOUT_MS, 0, 0, ""
    while True:
        try:
            return await getattr(element, method)(*arguments, timeout=timeout_ms, **options)
        except Timeout as error:
            log = str(error)
            found = list(_REFUSED.finditer(log))
            if _PERFORMED.search(log, found[-1].end() if found else 0):
                return None  # Playwright carries out to its end what it has begun
            told = log if found or not told else told
            spent_ms += timeout_ms
            refusals += len(found)
            allowed = MAX_REFUSALS if spent_ms < REFUSED_MS else 1
            is_slow = False
            if not found:  # a page that has answered nothing in that time may only be slow; at first this is believed
                start = time.monotonic()
                is_there = all([await element.count() for _ in range(5)])
                needed_ms = ROUND_TRIPS * (time.monotonic() - start) / 5 * 1000
                is_slow = is_there and (timeout_ms == ACTION_TIMEOUT_MS or timeout_ms < needed_ms)
                if is_done is not None and await is_done():
                    return None
            if refusals < allowed and (found or is_slow):
                timeout_ms *= 1 if found else 4
                continue
            # Playwright takes what is in the legend of a disabled fieldset for disabled.
            if "element is not enabled" in told and await element.evaluate_all(_IS_ENABLED):
                return await getattr(element, method)(*arguments, timeout=timeout_ms, **options | {"force": True})
            raise Timeout(re.sub(r"Timeout \d+ms", f"Timeout {ACTION_TIMEOUT_MS}ms", told, count=1)) from None


async def open_page(tabs: Tabs, timeout_ms: float, method: str, *arguments: str) -> None:
    """Go to another page by a method of Playwright's, and wait for what it loads: a picture or script may never come,
    nor the end of a page that leaves before it is there. Raises Playwright's Error: no page after `timeout_ms`.
    """
    page, tab = tabs.page, tabs.tab
    end = time.monotonic() + min(timeout_ms / 1000, tabs.patience_s)
    before = tab.num_documents
    await getattr(page, method)(*arguments, timeout=timeout_ms, wait_until="commit")
    loading = asyncio.ensure_future(page.wait_for_load_state(timeout=max(1, (end - time.monotonic()) * 1000)))
    while not (await asyncio.wait([loading], timeout=1))[0]:
        if tab.num_documents > before + MAX_DOCUMENTS:
            await tab.send("Page.stopLoading")
            tabs.tell(KEEPS_LOADING)
            return
        if time.monotonic() - tab.heard_at >= PAGE_TIMEOUT_MS / 1000 or (tab.outward and not tab.leaving):
            return  # Playwright waits for what leads out of the browser


async def _noop(tabs: Tabs, wait_ms: float) -> None:
    if wait_ms > MAX_WAIT_MS:
        tabs.tell(f"noop: {MAX_WAIT_MS} ms is the longest wait")
    if wait_ms > 0:
        await tabs.page.wait_for_timeout(min(wait_ms, MAX_WAIT_MS))


def _frame_of(tabs: Tabs, bid: str, name: str) -> str | None:
    """Frame in which one of `js/act.js`'s functions runs; None for an element of one, but for what needs no place."""
    prefix = bid.rstrip("0123456789")
    frame = tabs.tab.frames.get(prefix, "") if bid != prefix and name in _ANYWHERE else ""
    return None if prefix and not frame else frame


async def _call(tabs: Tabs, bid: str, name: str, *arguments: Any) -> Any:
    """Result of one of `js/act.js`'s functions on an element; None if it cannot run."""
    if (frame := _frame_of(tabs, bid, name)) is None:
        return None
    if name in ("choose", "pick", "selectField", "watchInput"):  # they remember a value, for `whyPutBack`
        tabs.tab.filled_in = frame or tabs.tab.main_frame
    return await tabs.tab.evaluate(f"__webrl.{name}(...{json.dumps([bid, *arguments])})", frame)


async def _click(tabs: Tabs, bid: str, button: str = "left", count: int = 1) -> Any:
    """Click an element that needs no waiting, again if it moves away as the mouse comes (a picture that has to be
    loaded): True; else what `aim` says of it, None to leave it to Playwright.
    """
    for pause_s in (0, 0.1, 0.2, 0.3):
        await asyncio.sleep(pause_s)
        point = await _call(tabs, bid, "aim", ACTION_TIMEOUT_MS, True)
        if not isinstance(point, list):
            return point
        await tabs.tab.click(point[0], point[1], button, count)
        try:
            if not await tabs.tab.evaluate_or_stop("__webrl.missed()", tabs.patience_s):
                return True
        except (ChannelError, ChannelClosed):  # the click has taken the page away
            return True
    raise ActionFailed("Error: the click reached nothing: the element moves away from the mouse")


async def click_holding(tabs: Tabs, element: Locator, method: str, modifiers: Sequence[str], **options: Any) -> None:
    """Have Playwright click while these modifier keys, and no others, are held; then those that were held before.

    (Playwright's option `modifiers` presses them after its last look at the clock: a click whose time-out falls there
    is carried out all the same, its log does not tell, and it would be repeated.)
    """
    from playwright.async_api import Error

    wanted = set(map(_modifier, modifiers))
    held = set(tabs.tab.held_keys)
    keyboard, failure = tabs.page.keyboard, None
    for key in sorted(held - wanted):
        await keyboard.up(key)
    for key in sorted(wanted - held):
        await keyboard.down(key)
    try:
        await attempt(element, method, **options)
    except Error as error:
        failure = error
    with contextlib.suppress(Error):  # the click has closed the page
        for key in sorted(wanted - held):
            await keyboard.up(key)
        for key in sorted(held - wanted):
            await keyboard.down(key)
    if failure is not None:
        raise failure


async def _point(tabs: Tabs, bid: str, method: str, button: Any = "left", modifiers: Sequence[str] = ()) -> None:
    """Click, double-click or hover."""
    if method == "hover":
        found = await _call(tabs, bid, "aim", ACTION_TIMEOUT_MS, False)
        if isinstance(found, list):
            await tabs.tab.move(found[0], found[1])
            return
    else:
        found = None if modifiers else await _click(tabs, bid, button, 1 if method == "click" else 2)
        if found is True or (method == "click" and await _call(tabs, bid, "pick")):
            return
    if found == "hidden":  # nothing on the page could show it in time: Playwright's answer, without the wait
        late = f"Timeout {ACTION_TIMEOUT_MS}ms exceeded. (element is not visible)"
        raise ActionFailed(f"TimeoutError: Locator.{method}: {late}")
    element = await locate(tabs.page, bid)
    if method == "hover":
        await attempt(element, method)
    else:
        place = await _call(tabs, bid, "aside")
        await click_holding(tabs, element, method, modifiers, button=button, **({"position": place} if place else {}))


async def _fill(tabs: Tabs, bid: str, value: str = "", enable_autocomplete_menu: bool = False) -> None:
    if not enable_autocomplete_menu:
        ready = await _call(tabs, bid, "selectField", value)
        if example := _EXAMPLES.get(ready):
            raise ActionFailed(f"Error: {value!r:.100} is not what a {ready} field takes, e.g. {example!r}")
        if ready == "elsewhere":
            tabs.tell(_ELSEWHERE)
        if ready and ready != "set" and not value:
            await tabs.page.keyboard.press("Delete")
        if ready == "keys" and len(value) <= MAX_TYPED and value.isprintable() and not tabs.tab.held_keys:
            end = time.monotonic() + tabs.patience_s / 2
            while value and time.monotonic() < end:
                await tabs.page.keyboard.type(value[:_TYPED_AT_ONCE])
                value = value[_TYPED_AT_ONCE:]
        if value and ready and ready != "set":  # what a page that is slow to hear has left no time to type, too
            await tabs.tab.send("Input.insertText", {"text": value})
        if ready:
            return
    await fill_in(tabs, bid, value, enable_autocomplete_menu)


async def set_value(tabs: Tabs, bid: str, method: str, *arguments: Any, **options: Any) -> None:
    """Have Playwright `fill`, `clear` or `select_option`, once: the page's `input` event says that it has happened."""
    element = await locate(tabs.page, bid)
    await _call(tabs, bid, "watchInput", *arguments)
    await attempt(element, method, *arguments, is_done=partial(_call, tabs, bid, "hadInput"), **options)


async def fill_in(tabs: Tabs, bid: str, value: str, enable_autocomplete_menu: bool, force: bool = False) -> None:
    """Set a field's text; for a menu of completions its last character is typed. `force`: even if it is covered."""
    if not enable_autocomplete_menu:
        await set_value(tabs, bid, "fill", value, force=force)
        return
    await set_value(tabs, bid, "clear", force=force)
    if len(value) > 1:
        await set_value(tabs, bid, "fill", value[:-1], force=force)
    if value:
        await attempt(await locate(tabs.page, bid), "type", value[-1], delay=0)


async def _check(tabs: Tabs, bid: str, wanted: bool = True) -> None:
    state = await _call(tabs, bid, "checked")
    if state is wanted:
        return
    if state is not None and await _click(tabs, bid) is True:
        state = None
        with contextlib.suppress(ChannelError):  # the click has taken the page away
            state = await _call(tabs, bid, "checked")
        if state is (not wanted):
            raise ActionFailed("Error: Clicking the checkbox did not change its state")
        return
    await attempt(await locate(tabs.page, bid), "set_checked", wanted)


async def _select_option(tabs: Tabs, bid: str, options: str | list[str]) -> None:
    chosen = await _call(tabs, bid, "choose", [options] if isinstance(options, str) else options)
    if isinstance(chosen, str):
        raise ActionFailed(f"Error: the option {chosen!r:.200} is disabled")
    if not chosen:
        await set_value(tabs, bid, "select_option", options)


async def _focus(tabs: Tabs, bid: str, key_comb: str | None = None) -> None:
    """Focus an element; press a key there."""
    found = await _call(tabs, bid, "focusOn", key_comb is not None)
    if found == "disabled":
        raise ActionFailed("Error: element is disabled: it takes neither the focus nor keys")
    if found == "elsewhere":
        tabs.tell(_ELSEWHERE)
    if not found:
        await attempt(await locate(tabs.page, bid), *(("focus",) if key_comb is None else ("press", key_comb)))
    elif key_comb is not None:
        await _keyboard_press(tabs, key_comb)


_DRAG_MOVES = 5
"""Pages begin to drag at a move of some pixels, and follow those after it; what is sorted looks at those on the way."""
_DRAG_BEGIN_PX = 10


async def _middle(tabs: Tabs, element: Locator) -> tuple[float, float]:
    """Of what the window shows of an element. Raises Playwright's Error, ActionFailed: it has gone."""
    box, window = await attempt(element, "bounding_box"), tabs.page.viewport_size
    if box is None or window is None:
        raise ActionFailed("Error: the element is not visible")
    (left, right), (top, bottom) = ((box[at], box[at] + box[side]) for at, side in (("x", "width"), ("y", "height")))
    return (max(left, 0) + min(right, window["width"])) / 2, (max(top, 0) + min(bottom, window["height"])) / 2


async def _drag_and_drop(tabs: Tabs, from_bid: str, to_bid: str) -> None:
    from playwright.async_api import Error

    source, target = await locate(tabs.page, from_bid), await locate(tabs.page, to_bid)
    await attempt(target, "hover", trial=True)  # it can be reached: said before the button is down
    await attempt(source, "hover")
    start = await _middle(tabs, source)
    await _call(tabs, from_bid, "watchDrag")
    await tabs.page.mouse.down()
    try:
        place = await _middle(tabs, target)
        part = min(1.0, _DRAG_BEGIN_PX / max(1.0, math.dist(start, place)))
        await tabs.page.mouse.move(*(here + part * (there - here) for here, there in zip(start, place, strict=True)))
        with contextlib.suppress(Error, ActionFailed):  # what begins now may have moved the target, or replaced it
            await attempt(target, "scroll_into_view_if_needed")
            place = await _middle(tabs, target)
        await tabs.page.mouse.move(*place, steps=_DRAG_MOVES)
        await tabs.page.mouse.move(*place)
    finally:
        await tabs.page.mouse.up()
    frame = _frame_of(tabs, from_bid, "watchDrag")
    with contextlib.suppress(ChannelError, ChannelClosed):  # the drop has taken the page away
        effect = frame is not None and await tabs.tab.evaluate_or_stop("__webrl.dropped?.()", tabs.patience_s, frame)
        if effect == "none":
            tabs.tell("drag_and_drop: the mouse shows that this place does not take what was dropped")


def find_uploads(names: str | list[str], folder: Path | None) -> list[Path]:
    """Find the files that an upload names, relative to `folder` or absolute. Raises ActionFailed: there is no such
    folder, or a name leads out of it (`..` or a symbolic link) or is not a file.
    """
    if folder is None:
        raise ActionFailed("Blocked: files cannot be uploaded here (rollout.upload_dir is not set).")
    root = folder.resolve()
    found = []
    for name in [names] if isinstance(names, str) else names:
        path = (root / name).resolve()
        # The same answer for both, so that it does not reveal which files exist elsewhere.
        if not path.is_relative_to(root) or not path.is_file():
            raise ActionFailed(f"Blocked: {name!r:.200} is not a file of the upload folder.")
        found.append(path)
    return found


async def _upload(tabs: Tabs, file: str | list[str], bid: str = "", x: float = 0.0, y: float = 0.0) -> None:
    """Click an element, or else a position, and pass the files to the dialog that opens."""
    files = find_uploads(file, tabs.upload_dir)
    element = await locate(tabs.page, bid) if bid else None
    async with tabs.page.expect_file_chooser(timeout=0) as chooser:
        await (attempt(element, "click") if element else tabs.page.mouse.click(x, y))
        # The page's clock, not ours: a busy page first finishes what was due.
        waited = f"new Promise((done) => setTimeout(done, {CHOOSER_MS}))"
        waiting = [asyncio.ensure_future(chooser.value), asyncio.ensure_future(tabs.tab.evaluate(waited))]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not chooser.is_done():
                raise ActionFailed("Error: no file dialog was opened")
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
    await (await chooser.value).set_files(files)


async def _wheel(tabs: Tabs, delta_x: float, delta_y: float, at: tuple[float, float] | None = None) -> None:
    how = ", ".join(map(json.dumps, (at, tabs.tab.pointer, delta_x, delta_y)))
    point = await tabs.tab.evaluate(f"__webrl.aimWheel({how})")
    if point:
        tabs.tab.pointer = (point[0], point[1])
        await tabs.page.mouse.move(*point)
    await tabs.page.mouse.wheel(delta_x, delta_y)
    left = await tabs.tab.evaluate("__webrl.wheeled")
    if left == -1:
        tabs.tell("scroll: there is nothing to scroll that way")
    elif left is not None and tabs.shows_all:
        tabs.tell(f"scroll: {left * tabs.scale:.0f} more pixels that way" if left > 1 else "scroll: this is the end")


async def _mouse_button(tabs: Tabs, x: float, y: float, button: Any, *, way: str) -> None:
    await tabs.page.mouse.move(x, y)
    await getattr(tabs.page.mouse, way)(button=button)


async def _mouse_drag_and_drop(tabs: Tabs, from_x: float, from_y: float, to_x: float, to_y: float) -> None:
    await tabs.page.mouse.move(from_x, from_y)
    await tabs.page.mouse.down()
    await tabs.page.mouse.move(to_x, to_y, steps=_DRAG_MOVES)
    await tabs.page.mouse.up()


def _modifier(key: str) -> str:
    """The name that Playwright holds a modifier key by."""
    name = re.sub("(Left|Right)$", "", key)
    return ("Meta" if sys.platform == "darwin" else "Control") if name == "ControlOrMeta" else name


_NAMES = "Enter Escape Tab Backspace Delete PageUp PageDown Space Control Shift Alt"
_KEYS = {name.lower(): name for name in _NAMES.split()} | {"esc": "Escape", "return": "Enter", "del": "Delete"}
_KEYS |= {f"{word}{way.lower()}": f"Arrow{way}" for way in ("Up", "Down", "Left", "Right") for word in ("", "arrow")}
_KEYS |= {"ctrl": "Control", "cmd": "Meta", "command": "Meta", "win": "Meta", "opt": "Alt", "option": "Alt"}
"""What keys are called elsewhere, in lower case, and here."""


async def _hold_key(tabs: Tabs, key: str, *, way: str) -> None:
    await getattr(tabs.page.keyboard, way)(key)
    own = {_modifier(key)} & set(MODIFIERS)
    tabs.tab.held_keys = tabs.tab.held_keys | own if way == "down" else tabs.tab.held_keys - own


async def _keyboard_press(tabs: Tabs, key: str) -> None:
    await tabs.page.keyboard.press(key)
    tabs.tab.held_keys -= set(map(_modifier, key.split("+")))  # it ends with all of them released


async def _type(tabs: Tabs, text: str, *, method: str) -> None:
    with contextlib.suppress(ChannelError):  # the page is replaced: what comes takes the keys
        if not await tabs.tab.evaluate_or_stop("__webrl.hasFocus()", tabs.patience_s):
            tabs.tell(f"keyboard_{method}: no element has the focus")
    await getattr(tabs.page.keyboard, method)(text)


async def _goto(tabs: Tabs, url: str) -> None:
    if tabs.page.url.startswith("http"):
        url = urljoin(tabs.page.url, url)
    tabs.check_url(url)
    await open_page(tabs, PAGE_TIMEOUT_MS, "goto", url)


async def _travel(tabs: Tabs, by: int) -> None:
    history = await tabs.tab.send("Page.getNavigationHistory")
    at, entries = history["currentIndex"] + by, history["entries"]
    # A profile's first page is empty, so there is no going back to it.
    is_first = at == 0 and tabs.page is tabs.context.pages[0] and entries[at]["url"] == "about:blank"
    if not 0 <= at < len(entries) or is_first:
        raise ActionFailed(f"Error: there is no {'earlier' if by < 0 else 'later'} page in this tab")
    await open_page(tabs, PAGE_TIMEOUT_MS, "go_back" if by < 0 else "go_forward")


async def _new_tab(tabs: Tabs) -> None:
    if len(tabs.context.pages) >= MAX_TABS:
        raise ActionFailed(f"Blocked: {MAX_TABS} tabs are open; close one first.")
    tabs.page = await tabs.context.new_page()


async def _tab_close(tabs: Tabs) -> None:
    from playwright.async_api import TimeoutError as Timeout

    with contextlib.suppress(Timeout, ChannelError, ChannelClosed):
        async with tabs.page.expect_event("close"):
            await tabs.tab.send("Page.close")  # Playwright's own lets a page that is too busy to be asked stay for ever
    await tabs.page.close()
    pages = tabs.context.pages
    tabs.page = pages[-1] if pages else await tabs.context.new_page()


async def _tab_focus(tabs: Tabs, index: int) -> None:
    tabs.page = tabs.context.pages[index]
    await tabs.page.bring_to_front()


_HANDLERS: dict[str, Handler] = {
    "noop": _noop,
    # Messages are taken by the environment; the page sees nothing of them.
    **dict.fromkeys(("send_msg_to_user", "report_infeasible"), lambda *_, **__: asyncio.sleep(0)),
    "click": partial(_point, method="click"),
    "dblclick": partial(_point, method="dblclick"),
    "hover": partial(_point, method="hover"),
    "fill": _fill,
    "clear": _fill,
    "check": _check,
    "uncheck": lambda tabs, bid: _check(tabs, bid, wanted=False),
    "select_option": _select_option,
    "press": _focus,
    "focus": _focus,
    "drag_and_drop": _drag_and_drop,
    "upload_file": _upload,
    "scroll": _wheel,
    "scroll_at": lambda tabs, x, y, dx, dy: _wheel(tabs, dx, dy, (x, y)),
    "mouse_move": lambda tabs, x, y: tabs.page.mouse.move(x, y),
    "mouse_down": partial(_mouse_button, way="down"),
    "mouse_up": partial(_mouse_button, way="up"),
    "mouse_click": lambda tabs, x, y, button: tabs.page.mouse.click(x, y, button=button),
    "mouse_dblclick": lambda tabs, x, y, button: tabs.page.mouse.dblclick(x, y, button=button),
    "mouse_drag_and_drop": _mouse_drag_and_drop,
    "mouse_upload_file": _upload,
    "keyboard_press": _keyboard_press,
    "keyboard_up": partial(_hold_key, way="up"),
    "keyboard_down": partial(_hold_key, way="down"),
    "keyboard_type": partial(_type, method="type"),
    "keyboard_insert_text": partial(_type, method="insert_text"),
    "goto": _goto,
    "go_back": partial(_travel, by=-1),
    "go_forward": partial(_travel, by=1),
    "new_tab": _new_tab,
    "tab_close": _tab_close,
    "tab_focus": _tab_focus,
}
