"""Scripted experts for the MiniWoB pages we train and evaluate on: they see an agent's text and write its actions.

They record demonstrations. The reinforcement-learning loop never sees them: only demonstrations and benchmarks do.

Left out, because the text of the page or BrowserGym's reward makes them impossible: what only colour, shape,
size or position shows; click-link, click-tab-2, click-collapsible-2, multi-layouts, order-food, find-greatest
(the things to click are text without a bid); click-widget (text input and textarea print alike); email and
social-media (nameless icons); odd-or-even (marks are not shown); navigate-tree (files and folders print alike,
a wrong one ends the episode); search-engine (its links change the address, for which BrowserGym gives 0);
click-test-2, click-button-sequence and button-delay (one button covers the other at every fifth seed).
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import yaml

from webrl.errors import UsageError
from webrl.suites.miniwob.experts.intents import GOALS, ContactIntent, Intent, Slots
from webrl.suites.miniwob.experts.page import read_page


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
        found, page = self.match(instruction), read_page(observation)
        if found is None:
            return None
        cancel = page.named("Cancel", "button") if self.popup else []
        if cancel:
            return f"click({cancel[0].bid!r})"
        return found[0].next_action(found[1], page, history)

    def match(self, instruction: str) -> tuple[Intent, Slots] | None:
        """The intent whose wording an instruction has, with its slots."""
        for intent in self.intents:
            slots = intent.match(instruction)
            if slots is not None:
                return intent, slots
        return None


@cache
def experts() -> dict[str, Expert]:
    """Every page's expert, by the page's BrowserGym name, with the intents of `intents.yaml`."""
    data = yaml.safe_load(Path(__file__).with_name("intents.yaml").read_text(encoding="utf-8"))
    known: dict[str, Intent] = {}
    for name, entry in data["intents"].items():
        wordings = tuple(entry["wordings"])
        if "goal" in entry:
            ((function, options),) = entry["goal"].items()
            known[name] = Intent(name, wordings, partial(GOALS[function], **options))
        else:
            known[name] = ContactIntent(name, wordings)
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
