"""Experts that slip, as careless annotators do: what the shipped models learn mistakes from."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from webrl.config import RunConfig
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.collect import collect
from webrl.types import Task
from webrl_site.record import ExpertPolicy


class CarelessExpert(ExpertPolicy):
    """With probability `slip` a step is wrong."""

    def __init__(self, site: str, slip: float, seed: int) -> None:
        super().__init__(site)
        self.fingerprint = f"expert:{site}:slip={slip}"
        self._slip, self._rng = slip, random.Random(f"{site}:{slip}:{seed}")

    async def act(self, turn: Turn) -> PolicyOutput:
        """Return the expert's next action, or a slip drawn from the policy's generator (`turn.seed` is unused)."""
        output = await super().act(turn)
        if self._rng.random() < self._slip:
            output = replace(output, text=slip_action(output.text, turn.observation, self._rng))
        return output


async def record_slips(tasks: Sequence[Task], config: RunConfig, out: Path, slip: float, seed: int) -> None:
    """Let each task's expert play it, carelessly; trajectories go to `out`, resumed if it exists."""
    experts = {site: CarelessExpert(site, slip, seed) for site in sorted({task.site for task in tasks})}
    allowed = config.rollout.max_failed
    await collect(tasks, config, experts, out, phase=0, prefix=out.stem, max_failed=allowed)


def slip_action(action: str, observation: str, rng: random.Random) -> str:
    """Make a plausible mistake: another element, a mistyped text, another option, or stopping early."""
    bids = re.findall(r"\[(\w+)\] (?:button|link|checkbox|radio|textbox|tab|combobox|menuitem|listitem)", observation)
    kind = rng.random()
    match = re.match(r"(fill|select_option)\('(\w+)', '(.*)'\)$", action)
    if match and kind < 0.6:
        name, bid, text = match.groups()
        options = re.findall(r"option '([^']+)'", observation)
        if name == "select_option" and options:
            other = rng.choice(options)
        elif len(text) < 2 or rng.random() < 0.2:
            other = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8)))
        else:
            at = rng.randrange(len(text))
            typed = rng.choice(("", text[at] * 2, rng.choice("aeiorstn")))
            other = text[:at] + typed + text[at + 1 :]
        return f"{name}('{bid}', '{other}')"
    if kind > 0.92 or not bids:
        return "send_msg_to_user('done')"
    return f"click('{rng.choice(bids)}')"
