"""What an instruction asks of a page: wordings with slots (`Intent`), and the goal that they mean there (`Goal`).

A goal is a state of the page's fields, then clicks in order. The tools that intents share are here, too.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

from webrl.suites.miniwob.experts.page import Action, Page, read_action, read_actions

T = TypeVar("T")
Slots = dict[str, str]

DONE = "send_msg_to_user('done')"
_CLICKS = frozenset({"click", "dblclick"})
_TOUCHES = frozenset({"click", "dblclick", "fill", "focus", "clear", "press", "hover"})
_CLICK_KEYS = frozenset({"Enter", "Space", " "})
_FIELDS = ("textbox", "searchbox", "Date", "InputTime")
_POSITION = r"\d+(?:st|nd|rd|th)"
_SLOT_PATTERNS = {"nth": _POSITION, "where": _POSITION, "n": r"\d+", "date": r"\d\d/\d\d/\d{4}"}
_ONSETS = (
    "b", "br", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "tr", "v", "w", "z", "st", "ch",
)  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ia", "ee", "ie")
_CODAS = ("", "", "n", "l", "r", "s", "nda", "tta", "lyn", "na", "ck", "th", "ra", "lie")


@dataclass(frozen=True)
class Goal:
    """Bids of one page: the fields' wanted state, then the clicks that follow.

    A click is a set of bids any of which will do (two buttons of the same name).
    """

    fills: dict[str, str] = field(default_factory=dict)
    """Field → text it must hold; other text fields must stay as they were."""
    checked: frozenset[str] | None = None
    """Exactly these checkboxes or radio buttons are ticked; None: they do not matter."""
    selected: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """List → labels selected in it, exactly."""
    clicks: tuple[tuple[str, ...], ...] = ()
    """Clicks in order, after the state holds."""
    roles: frozenset[str] = frozenset({"button", "link", "tab", "menuitem"})
    """Roles whose clicks count: one more or another order of these is a mistake."""
    touch: bool = False
    """True where filling or focusing counts as a click (the instruction is about the focus)."""

    def next_action(self, page: Page, history: Sequence[str]) -> str:
        """The next action towards the goal, `DONE` if nothing is left."""
        done = read_actions(history)
        for bid, text in self.fills.items():
            if not _holds(page, bid, text, done):
                return f"fill({bid!r}, {text!r})"
        for element in page.all("checkbox", "radio") if self.checked is not None else []:
            can_toggle = element.role == "checkbox" or not element.checked
            if element.checked != (element.bid in (self.checked or ())) and can_toggle:
                return f"click({element.bid!r})"
        for bid, labels in self.selected.items():
            if _selected(page, bid) != set(labels):
                return f"select_option({bid!r}, {labels[0] if len(labels) == 1 else list(labels)!r})"
        remaining = self.clicks
        for action in done:
            if remaining and action.name in _CLICKS and action.bid in remaining[0]:
                remaining = remaining[1:]
        return f"click({remaining[0][0]!r})" if remaining else DONE

    def reached(self, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:
        """Return whether the actions did exactly what the goal requires; `pages[i]` is the page before `actions[i]`."""
        commits: list[int] = []
        for i, text in enumerate(actions):
            action = read_action(text)
            if not self._counts(pages[i], action):
                continue
            if commits and action is not None and action == read_action(actions[commits[-1]]):
                # The same click again, as after a time-out, is one; on a tab, which it may close, if nothing changed.
                before = pages[commits[-1]]
                if before.by_bid[action.bid].role != "tab" or before == pages[i]:
                    continue
            commits.append(i)
        if len(commits) != len(self.clicks):
            return False
        for i, accepted in zip(commits, self.clicks, strict=True):
            action = read_action(actions[i])
            if action is None or action.bid not in accepted:
                return False
        # The state must hold before the last click, which may end the episode.
        first = pages[0] if pages else final
        page = pages[commits[-1]] if commits else final
        done = read_actions(actions[: commits[-1]] if commits else actions)
        if self.fills:
            untouched = {e.bid: e.value for e in first.all(*_FIELDS) if e.bid not in self.fills}
            if any(bid in page.by_bid and page.by_bid[bid].value != value for bid, value in untouched.items()):
                return False
        if any(not _holds(page, bid, text, done) for bid, text in self.fills.items()):
            return False
        if self.checked is not None and self.checked != {e.bid for e in page.all("checkbox", "radio") if e.checked}:
            return False
        return all(_selected(page, bid) == set(labels) for bid, labels in self.selected.items())

    def _counts(self, page: Page, action: Action | None) -> bool:
        if action is None or action.bid not in page.by_bid:
            return False
        element = page.by_bid[action.bid]
        if element.role not in self.roles or element.disabled:
            return False
        if action.name == "press" and not self.touch:
            return bool(action.values) and action.values[0] in _CLICK_KEYS
        return action.name in (_TOUCHES if self.touch else _CLICKS)


def _holds(page: Page, bid: str, text: str, done: Sequence[Action]) -> bool:
    """Return whether a field shows `text`; a masked field (bullets) counts if its last fill was `text`."""
    value = page.by_bid[bid].value if bid in page.by_bid else ""
    if value and set(value) == {"•"}:
        fills = [a.values[0] for a in done if a.name == "fill" and a.bid == bid and a.values]
        return bool(fills) and fills[-1] == text and len(value) == len(text)
    return value == text or (value != "" and value == text.strip())


def _selected(page: Page, owner: str) -> set[str]:
    return {o.name for o in page.options(owner) if o.selected}


@dataclass(frozen=True)
class Intent:
    """One kind of instruction for a page (`intents.yaml`)."""

    templates: tuple[str, ...]
    """Wordings, the usual one first; slots are `{name}`."""
    slots: dict[str, Callable[[Page, random.Random], str | None]] = field(default_factory=dict)
    """How each slot of a new instruction is drawn, in this order."""
    goal: Callable[[Slots, Page], Goal | None] = lambda _slots, _page: None
    """Its goal on this page; None if it is infeasible there."""

    def propose(self, page: Page, rng: random.Random) -> Slots | None:
        """Slots for a new instruction about this page; None if it offers nothing."""
        found: Slots = {}
        for name, draw in self.slots.items():
            if (value := draw(page, rng)) is None:
                return None
            found[name] = value
        return found

    def match(self, instruction: str) -> Slots | None:
        """Slots of an instruction in one of the wordings (case of the fixed words and the last dot are free)."""
        text = " ".join(instruction.split()).removesuffix(".")
        for template in self.templates:
            found = template_pattern(template).fullmatch(text)
            if found:
                return found.groupdict()
        return None

    def feasible(self, slots: Slots, page: Page) -> bool:
        """Whether it can be done, as far as the first page shows."""
        return self.goal(slots, page) is not None

    def next_action(self, slots: Slots, page: Page, history: Sequence[str]) -> str | None:
        """The expert's next action; None if the instruction cannot be done here."""
        goal = self.goal(slots, page)
        return None if goal is None else goal.next_action(page, history)

    def accomplished(self, slots: Slots, pages: Sequence[Page], actions: Sequence[str], final: Page) -> bool:
        """Ground truth from states and actions; `pages[i]` is what was there before `actions[i]`."""
        goal = self.goal(slots, pages[0] if pages else final)
        return goal is not None and goal.reached(pages, actions, final)


@cache
def template_pattern(template: str) -> re.Pattern[str]:
    """Regular expression of a wording, without its last dot."""
    parts = re.split(r"\{(\w+)\}", template.removesuffix("."))
    pattern = ""
    for i, part in enumerate(parts):
        pattern += f"(?P<{part}>{_SLOT_PATTERNS.get(part, '.+?')})" if i % 2 else re.escape(part)
    return re.compile(pattern, re.IGNORECASE)


def ordinal(number: int) -> str:
    """1 → `1st`, 2 → `2nd`, 3 → `3rd`, 4 → `4th` (one digit, as the pages count)."""
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


def nth(items: Sequence[T], position: str) -> T | None:
    """The item that `1st`, `2nd`, … names; None if there are fewer."""
    index = int(re.sub(r"\D", "", position)) - 1
    return items[index] if 0 <= index < len(items) else None


def submit_button(page: Page) -> tuple[tuple[str, ...], ...]:
    """Return the page's submit button as the clicks of a `Goal`; empty if it has none."""
    buttons = [e for e in page.all("button") if e.name in ("Submit", "Login", "OK")]
    return ((buttons[0].bid,),) if buttons else ()


def random_name(rng: random.Random) -> str:
    """A pronounceable capitalised name of two syllables and an ending (`Bratona`)."""
    syllables = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(1, 2))]
    return ("".join(syllables) + rng.choice(_CODAS)).capitalize()


def random_code(rng: random.Random) -> str:
    """Letters and digits of both cases, two to six long (`a9Xk`)."""
    return "".join(rng.choice(string.ascii_letters + string.digits) for _ in range(rng.randint(2, 6)))
