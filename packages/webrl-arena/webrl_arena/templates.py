"""What a template of the arena's tasks is: words with slots, what fills them, how success is measured, how it is done.

API: `all_templates()`, `by_type()`, `Template`. What is drawn and checked is in `templates.yaml`, the words
are in `world/data/instructions.yaml`, the experts' scripts in `experts.yaml`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any

from webrl_arena.draws import Chosen, Entities, drawn
from webrl_arena.evals import Eval, measured
from webrl_arena.script import Script, notes_in, script_of
from webrl_arena.world.content import load_words, load_yaml
from webrl_site.experts import DONE, read_page

STAFF = "staff"
WAIT = "noop(1000)"
"""What an expert does while a page has not come, and no step of its script."""
MAX_WAITS = 5
"""In a row."""


@dataclass(frozen=True)
class Template:
    """One kind of task, and the expert that plays it."""

    site: str
    """`shop` (the storefront, as a customer), `shop_admin` (the dashboard, as staff) …; across sites, such as
    `forum+shop`, it begins at the first."""
    name: str
    how: dict[str, Any] = field(repr=False, hash=False)
    """What is drawn, said and checked, as `templates.yaml` has it."""

    @property
    def held_out(self) -> bool:
        """Whether it is never trained on."""
        return bool(self.how.get("held_out"))

    def draw(self, e: Entities, rng: random.Random) -> tuple[dict[str, str], str, Eval] | None:
        """Fill the slots with entities of a split; None where those that were drawn do not go together.

        Returns:
            The slots; the e-mail address of the customer who is logged in, or `STAFF`; how success is measured.
        """
        chosen = Chosen()
        for name, what in self.how["draw"].items():
            found = drawn(what, e, rng, chosen)
            if found is None:
                return None
            setattr(chosen, name, found)
        slots = {name: text.format(**vars(chosen)) for name, text in self.how["slots"].items()}
        login = self.how["login"].format(**vars(chosen)) if "login" in self.how else getattr(chosen, "login", STAFF)
        chosen.slots = SimpleNamespace(**slots)
        return slots, login, measured(self.how["checks"], chosen)

    @property
    def key(self) -> str:
        """The task type: `arena.shop.price`."""
        return f"arena.{self.site}.{self.name}"

    @property
    def script(self) -> Script:
        """How it is done."""
        return script_of(self.site, self.name)

    @cached_property
    def wordings(self) -> tuple[str, ...]:
        """Return instructions with `{slot}`s; each says the same."""
        found: tuple[str, ...] = vars(load_words("instructions"))[self.site][self.name]
        return found

    @cached_property
    def _patterns(self) -> tuple[re.Pattern[str], ...]:
        split = [re.split(r"\{(\w+)\}", wording) for wording in self.wordings]
        named = ((f"(?P<{part}>.+?)" if i % 2 else re.escape(part) for i, part in enumerate(parts)) for parts in split)
        return tuple(re.compile("".join(parts), re.DOTALL) for parts in named)

    def read(self, instruction: str) -> dict[str, str] | None:
        """Read the slots of an instruction in one of the template's wordings; None if it is in none."""
        for pattern in self._patterns:
            if match := pattern.fullmatch(instruction.strip()):
                return match.groupdict()
        return None

    def plan(self, instruction: str, observation: str, history: Sequence[str]) -> str | None:
        """Return the next action; `send_msg_to_user('done')` if nothing is left; None if it cannot be done here.

        The expert is as far in its script as actions have worked; one that failed is tried again. Where a page lacks
        what the next step needs, it may still be loading, on a busy machine: the expert waits, up to `MAX_WAITS` times.
        It does not wait for a note that none of the actions has written down.

        Args:
            history: the actions that have worked, waits included.
        """
        slots = self.read(instruction)
        if slots is None:
            return None
        if notes := [note for text in history for note in notes_in(text)]:
            slots["note"] = notes[-1]
        done = len(history) - list(history).count(WAIT)
        try:
            action = self.script[done](read_page(observation), slots) if done < len(self.script) else DONE
        except KeyError as missing:
            if missing.args != ("note",):
                raise
            return None
        waited_out = list(history[-MAX_WAITS:]) == [WAIT] * MAX_WAITS
        return WAIT if action is None and not waited_out else action


@cache
def all_templates() -> tuple[Template, ...]:
    """Return the templates, in the order in which tasks are drawn."""
    sites: dict[str, dict[str, dict[str, Any]]] = load_yaml("templates.yaml")
    return tuple(Template(site, name, how) for site, names in sites.items() for name, how in names.items())


@cache
def by_type() -> dict[str, Template]:
    """Return the templates by their keys."""
    return {template.key: template for template in all_templates()}
