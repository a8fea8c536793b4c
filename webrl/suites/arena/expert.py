"""Plays a template by its script.

The expert is as far in its script as actions have worked; one that came back with an error is tried again. Where a page
has not what the next step needs, it may still be on its way, on a busy machine: the expert waits, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from webrl.suites.arena.script import NOTE
from webrl.suites.arena.templates import Template
from webrl.suites.miniwob.experts.goal import DONE
from webrl.suites.miniwob.experts.page import read_page

WAIT = "noop(1000)"
"""What an expert does while a page has not come, and no step of its script."""
MAX_WAITS = 5
"""In a row."""


@dataclass(frozen=True)
class ArenaExpert:
    """Plays a template."""

    template: Template

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """The next action; `send_msg_to_user('done')` if nothing is left; None if it cannot be done here.

        Args:
            history: the actions that have worked, waits included.
        """
        slots = self.template.read(instruction)
        if slots is None:
            return None
        notes = [note for text in history for note in notes_in(text)]
        slots |= {"note": notes[-1]} if notes else {}
        steps, done = self.template.script(slots), len(history) - list(history).count(WAIT)
        action = steps[done](read_page(observation)) if done < len(steps) else DONE
        waited_out = list(history[-MAX_WAITS:]) == [WAIT] * MAX_WAITS
        return WAIT if action is None and not waited_out else action


def notes_in(text: str) -> list[str]:
    """What an answer writes down above its action."""
    return [line.removeprefix(NOTE) for line in text.split("\n") if line.startswith(NOTE)]
