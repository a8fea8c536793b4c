"""Record scripted experts, and experts that slip, in the real browser: `webrl record-demos`."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import suite_at
from webrl.suites import parts
from webrl.types import Task

DEMONSTRATION_SEED = 10_000
"""Added to the seed that draws page seeds, so that demonstrations and a run's tasks are drawn independently."""


class ExpertPolicy:
    """A scripted expert as a policy; with probability `slip` a step is wrong, as a careless annotator's would be."""

    def __init__(self, site: str, slip: float, seed: int) -> None:
        self.fingerprint = f"expert:{site}:slip={slip}"
        expert = suite_at(site).expert(site)
        if expert is None:
            raise UsageError(f"no scripted expert for {site!r}")
        self._expert = expert
        self._slip, self._rng = slip, random.Random(f"{site}:{slip}:{seed}")

    async def act(self, turn: Turn) -> PolicyOutput:
        """Return the expert's next action, or a slip drawn from the policy's generator (`turn.seed` is unused)."""
        # The whole response: an action may follow a note.
        worked = [step.response for step in turn.history if not step.error]
        action = self._expert.plan(turn.instruction, turn.observation, worked)
        action = action or "send_msg_to_user('infeasible')"
        if self._rng.random() < self._slip:
            action = slip_action(action, turn.observation, self._rng)
        return PolicyOutput((), (), (), action, turn.observation)


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


def expert_tasks(config: RunConfig, per_type: int) -> list[Task]:
    """What the experts of the config's suites are to play: training tasks that no run with a small seed draws.

    Raises:
        UsageError: a suite without experts, a type that is not known, or held out.
        DataError: a task type without expert; a training file that is not understood.
    """
    tasks: list[Task] = []
    for suite, part in parts(config):
        types = suite.demonstration_types(part)
        if not any(map(suite.expert, types)):
            raise UsageError(f"tasks.suite={suite.name} has no scripted experts for {', '.join(types)}; use --by-hand")
        drawn = part.tasks.model_copy(update={"num_seed_tasks": per_type * len(types)})
        mine = suite.training_tasks(part.model_copy(update={"tasks": drawn, "seed": DEMONSTRATION_SEED + part.seed}))
        if lacking := sorted({task.site for task in mine if suite.expert(task.site) is None}):
            raise DataError(f"no scripted expert for {', '.join(lacking)}")
        tasks += mine
    return tasks


async def record(
    tasks: Sequence[Task],
    config: RunConfig,
    out: Path,
    *,
    slip: float = 0.0,
    seed: int,
    phase: int = 0,
    prefix: str | None = None,
) -> None:
    """Let each task's expert play it; trajectories go to `out` (resumed if it exists), named after it by default.

    Raises:
        StageError: more episodes failed than `rollout.max_failed` allows (`rollouts/collect.py`).
    """
    experts = {site: ExpertPolicy(site, slip, seed) for site in sorted({task.site for task in tasks})}
    allowed = config.rollout.max_failed
    await collect(tasks, config, experts, out, phase=phase, prefix=prefix or out.stem, max_failed=allowed)
