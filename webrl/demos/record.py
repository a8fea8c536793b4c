"""Record scripted experts, and experts that slip, in the real browser: `webrl record-demos`."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from webrl.config import RunConfig, TasksConfig
from webrl.demos.arena import ARENA_EXPERTS
from webrl.demos.arena.script import ArenaExpert
from webrl.demos.experts import EXPERTS, Expert, expert_for
from webrl.errors import DataError, UsageError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.breaker import open_breaker
from webrl.rollouts.collect import collect
from webrl.suites.arena.draw import TEMPLATES
from webrl.suites.arena.tasks import training_tasks
from webrl.suites.miniwob import TRAIN_SITES, seed_tasks
from webrl.suites.mix import parts
from webrl.suites.world import WORLD
from webrl.types import Task, Trajectory

DEMONSTRATION_SEED = 10_000
"""Added to the seed that draws page seeds, so that demonstrations and a run's tasks are drawn apart."""


class ExpertPolicy:
    """A scripted expert as a policy; with probability `slip` a step goes wrong, as a careless annotator's would."""

    def __init__(self, site: str, slip: float, seed: int) -> None:
        self.fingerprint = f"expert:{site}:slip={slip}"
        self._expert: Expert | ArenaExpert = ARENA_EXPERTS.get(site) or expert_for(site)
        self._slip, self._rng = slip, random.Random(f"{site}:{slip}:{seed}")

    async def act(self, turn: Turn) -> PolicyOutput:
        """The expert's next action, or a slip drawn from the policy's own generator (`turn.seed` is not used)."""
        # The whole of what it wrote: an action may stand below a note.
        worked = [step.response for step in turn.history if not step.error]
        action = self._expert.plan(turn.instruction, turn.observation, worked)
        action = action or "send_msg_to_user('infeasible')"
        if self._rng.random() < self._slip:
            action = slip_action(action, turn.observation, self._rng)
        return PolicyOutput((), (), (), action, turn.observation)


def slip_action(action: str, observation: str, rng: random.Random) -> str:
    """A plausible mistake: another element, a mistyped text, another option, or stopping early."""
    bids = re.findall(r"\[(\w+)\] (?:button|link|checkbox|radio|textbox|tab|combobox|menuitem|listitem)", observation)
    kind = rng.random()
    match = re.match(r"(fill|select_option)\('(\w+)', '(.*)'\)$", action)
    if match and kind < 0.6:
        name, bid, text = match.groups()
        options = re.findall(r"option '([^']+)'", observation)
        other = rng.choice(options) if name == "select_option" and options else _mistype(text, rng)
        return f"{name}('{bid}', '{other}')"
    if kind > 0.92 or not bids:
        return "send_msg_to_user('done')"
    return f"click('{rng.choice(bids)}')"


def expert_tasks(config: RunConfig, per_type: int) -> list[Task]:
    """What the experts of the config's suites are to play.

    Raises:
        UsageError: a suite without experts, a type that is not known, or held out.
        DataError: see `demonstration_tasks`, `arena_demonstrations`.
    """
    lacking = [suite for suite in config.tasks.suites if suite not in ("miniwob", "arena")]
    if lacking:
        raise UsageError(
            f"tasks.suite={lacking[0]} has no scripted experts; use tasks.suite=miniwob or arena, or --by-hand"
        )
    tasks: list[Task] = []
    for part in parts(config):
        if part.tasks.suite == "arena":
            tasks += arena_demonstrations(part, per_type)
        else:
            tasks += demonstration_tasks(part.tasks.train_sites or TRAIN_SITES, per_type, part.seed)
    return tasks


def demonstration_tasks(sites: Sequence[str], per_site: int, seed: int) -> list[Task]:
    """Pages with their own instructions at training seeds that no run with a small seed draws.

    Raises:
        DataError: a task type without expert (those that have one are listed).
    """
    lacking = sorted(set(sites) - EXPERTS.keys())
    if lacking:
        raise DataError(
            f"no scripted expert for {', '.join(lacking)}; there are experts for: {', '.join(sorted(EXPERTS))}"
        )
    config = TasksConfig(train_sites=tuple(sites), num_seed_tasks=per_site * len(sites))
    return seed_tasks(config, DEMONSTRATION_SEED + seed)


def arena_demonstrations(config: RunConfig, per_template: int) -> list[Task]:
    """Tasks of the arena's training templates, drawn with a seed that no run with a small one has.

    Raises:
        UsageError: a template that is not known, or held out.
        DataError: a training file that is not understood, or holds tasks of no template.
    """
    num_types = len(config.tasks.train_sites) or sum(not template.held_out for template in TEMPLATES)
    tasks = config.tasks.model_copy(update={"num_seed_tasks": per_template * num_types})
    drawn = training_tasks(config.model_copy(update={"tasks": tasks}), DEMONSTRATION_SEED + config.seed)
    lacking = sorted({task.site for task in drawn} - ARENA_EXPERTS.keys())
    if lacking:
        raise DataError(f"no scripted expert for {', '.join(lacking)}; there are experts for the arena's own templates")
    return drawn


def proposed_tasks(recorded: Iterable[Trajectory], seed: int) -> list[Task]:
    """The recorded pages again, each with an instruction that the scripted proposer writes for it."""
    tasks = []
    for trajectory in recorded:
        rng = random.Random(f"{seed}:{trajectory.task.task_id}")
        instruction = expert_for(trajectory.task.site).propose(trajectory.steps[0].observation, rng)
        if instruction:
            task_id = f"{trajectory.task.task_id}.proposed"
            tasks.append(replace(trajectory.task, task_id=task_id, instruction=instruction))
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
        StageError: more episodes failed than `rollout.max_failed` allows (`rollouts/breaker.py`).
    """
    breaker = open_breaker(out, len(tasks), config.rollout)
    experts = {site: ExpertPolicy(site, slip, seed) for site in sorted({task.site for task in tasks})}
    name = prefix or out.stem
    await collect(tasks, config, experts, out, phase=phase, prefix=name, world=WORLD, on_episode=breaker)


def _mistype(text: str, rng: random.Random) -> str:
    if len(text) < 2 or rng.random() < 0.2:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8)))
    at = rng.randrange(len(text))
    return text[:at] + rng.choice(("", text[at] * 2, rng.choice("aeiorstn"))) + text[at + 1 :]
