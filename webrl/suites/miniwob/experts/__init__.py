"""Scripted experts for the MiniWoB pages we train and evaluate on: they see an agent's text and write its actions.

They record demonstrations, propose instructions, and tell valid and accomplished ones apart. The
reinforcement-learning loop never sees them: only demonstrations and benchmarks do.

Left out, because the text of the page or BrowserGym's reward makes them impossible: what only colour, shape,
size or position shows; click-link, click-tab-2, click-collapsible-2, multi-layouts, order-food, find-greatest
(the things to click are text without a bid); click-widget (text input and textarea print alike); email and
social-media (nameless icons); odd-or-even (marks are not shown); navigate-tree (files and folders print alike,
a wrong one ends the episode); search-engine (its links change the address, for which BrowserGym gives 0);
click-test-2, click-button-sequence and button-delay (one button covers the other at every fifth seed).
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from webrl.errors import UsageError
from webrl.suites.miniwob.experts.goal import Intent, Slots
from webrl.suites.miniwob.experts.intents import DRAWS, GOALS, ContactIntent
from webrl.suites.miniwob.experts.page import read_page

_OWN_WORDING = 0.6


@dataclass(frozen=True)
class Expert:
    """What one MiniWoB page can be asked to do, and how to do it."""

    site: str
    """BrowserGym name, `miniwob.click-button`."""
    intents: tuple[Intent, ...]
    """The page's own intent first, then what else it can be used for."""
    popup: bool = False
    """True if a pop-up may come up; it is closed with its Cancel button first."""

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """The next action; `send_msg_to_user('done')` if nothing is left; None if it cannot be done here.

        `history` holds the actions that were carried out: leave out those that came back with an error
        (a click that timed out on a busy machine), and they are tried again.
        """
        found, page = self._match(instruction), read_page(observation)
        if found is None:
            return None
        cancel = page.named("Cancel", "button") if self.popup else []
        if cancel:
            return f"click({cancel[0].bid!r})"
        return found[0].next_action(found[1], page, history)

    def propose(self, observation: str, rng: random.Random, *, own_share: float = 0.0) -> str | None:
        """Return a new feasible instruction for this page; None if it offers nothing.

        Args:
            own_share: probability of the page's own intent in its own words, with another target.
        """
        page = read_page(observation)
        own = rng.random() < own_share
        # The page's own intent is as likely as all others together.
        weights = [max(1, len(self.intents) - 1), *[1] * (len(self.intents) - 1)]
        intent = self.intents[0] if own else rng.choices(self.intents, weights)[0]
        slots = intent.propose(page, rng)
        if slots is None or not intent.feasible(slots, page):
            return None
        others = intent.templates[1:]
        wording = rng.choice(others) if others and not own and rng.random() > _OWN_WORDING else intent.templates[0]
        return wording.format(**slots)

    def is_valid(self, instruction: str, observation: str) -> bool:
        """Return whether an instruction is understood and feasible, as far as the first page shows."""
        found = self._match(instruction)
        return found is not None and found[0].feasible(found[1], read_page(observation))

    def accomplished(
        self, instruction: str, actions: Sequence[str], observations: Sequence[str], final_observation: str
    ) -> bool:
        """Return whether the actions did exactly what the instruction says, independent of the page's reward.

        Args:
            instruction: The episode's instruction.
            actions: One per observation; unreadable ones count as nothing done.
            observations: The page before each action, the initial page first.
            final_observation: The page after the last action.
        """
        found = self._match(instruction)
        if found is None or len(actions) != len(observations):
            return False
        kept = [(a, read_page(o)) for a, o in zip(actions, observations, strict=True)]
        if self.popup:
            kept = [(a, p) for a, p in kept if not p.named("Cancel", "button")]
        intent, slots = found
        return intent.accomplished(slots, [p for _, p in kept], [a for a, _ in kept], read_page(final_observation))

    def _match(self, instruction: str) -> tuple[Intent, Slots] | None:
        for intent in self.intents:
            slots = intent.match(instruction)
            if slots is not None:
                return intent, slots
        return None


@cache
def experts() -> dict[str, Expert]:
    """Every page's expert, by the page's BrowserGym name, with the intents of `intents.yaml`."""
    data = yaml.safe_load(Path(__file__).with_name("intents.yaml").read_text(encoding="utf-8"))

    def bind(functions: dict[str, Callable[..., Any]], call: dict[str, dict[str, Any]]) -> Callable[..., Any]:
        ((name, options),) = call.items()
        return partial(functions[name], **options)

    known: dict[str, Intent] = {}
    for name, entry in data["intents"].items():
        draws = {slot: bind(DRAWS, call) for slot, call in entry.get("slots", {}).items()}
        wordings = tuple(entry["wordings"])
        goal = entry.get("goal")
        known[name] = Intent(wordings, draws, bind(GOALS, goal)) if goal else ContactIntent(wordings, draws)
    return {
        f"miniwob.{page}": Expert(f"miniwob.{page}", tuple(known[name] for name in names), page == "login-user-popup")
        for page, names in data["pages"].items()
    }


def expert_for(site: str) -> Expert:
    """The expert of a page (`miniwob.click-button`).

    Raises:
        UsageError: no expert knows this page; the nearest is named.
    """
    if site not in experts():
        nearest = difflib.get_close_matches(site, experts(), n=1, cutoff=0)
        raise UsageError(f"no scripted expert for {site!r}; the nearest is {nearest[0]!r}")
    return experts()[site]
