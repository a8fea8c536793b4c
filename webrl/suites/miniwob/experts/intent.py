"""An intent: wordings with slots, the goal they mean on a page, and how to choose slots for a page."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from webrl.suites.miniwob.experts.goal import Goal
from webrl.suites.miniwob.experts.page import Page

T = TypeVar("T")
Slots = dict[str, str]
_POSITION = r"\d+(?:st|nd|rd|th)"
_SLOT_PATTERNS = {"nth": _POSITION, "where": _POSITION, "n": r"\d+", "mm": r"\d\d", "dd": r"\d\d", "yyyy": r"\d{4}"}


@dataclass(frozen=True)
class Intent:
    """One thing that can be asked of a page.

    Example: `Intent(('Click on the "{label}" button.',), goal=…, propose=…)`
    """

    templates: tuple[str, ...]
    """Wordings, the usual one first; slots are `{name}`."""
    goal: Callable[[Slots, Page], Goal | None]
    """What it means on this page; None if it cannot be done there."""
    propose: Callable[[Page, random.Random], Slots | None]
    """Slots for a new instruction about this page; None if it offers nothing."""

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


def no_slots(_page: Page, _rng: random.Random) -> Slots:
    """`Intent.propose` of what leaves nothing open."""
    return {}


def ordinal(number: int) -> str:
    """1 → `1st`, 2 → `2nd`, 3 → `3rd`, 4 → `4th` (one digit, as the pages count)."""
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number, 'th')}"


def nth(items: Sequence[T], position: str) -> T | None:
    """The item that `1st`, `2nd`, … names; None if there are fewer."""
    index = int(re.sub(r"\D", "", position)) - 1
    return items[index] if 0 <= index < len(items) else None
