"""Record scripted experts in the real browser: `webrl record-demos`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import find_suite, suite_at
from webrl.types import Task

DEMONSTRATION_SEED = 10_000
"""Added to the seed that draws page seeds, so that demonstrations and a run's tasks are drawn independently."""


class ExpertPolicy:
    """A scripted expert as a policy."""

    def __init__(self, site: str) -> None:
        self.fingerprint = f"expert:{site}"
        expert = suite_at(site).expert(site)
        if expert is None:
            raise UsageError(f"no scripted expert for {site!r}")
        self._expert = expert

    async def act(self, turn: Turn) -> PolicyOutput:
        """Return the expert's next action."""
        # The whole response: an action may follow a note.
        worked = [step.response for step in turn.history if not step.error]
        action = self._expert.plan(turn.instruction, turn.observation, worked)
        return PolicyOutput((), (), (), action or "send_msg_to_user('infeasible')", turn.observation)


def expert_tasks(config: RunConfig, per_type: int) -> list[Task]:
    """What the experts of the config's suite are to play: training tasks that no run with a small seed draws. Raises
    UsageError: no experts, or a type that is not known or held out; DataError: a type without expert, a bad file.
    """
    suite = find_suite(config.tasks.suite)
    types = suite.demonstration_types(config)
    if not any(map(suite.expert, types)):
        raise UsageError(f"tasks.suite={suite.name} has no scripted experts for {', '.join(types)}; use --by-hand")
    drawn = config.tasks.model_copy(update={"num_seed_tasks": per_type * len(types)})
    seed = DEMONSTRATION_SEED + config.seed
    tasks = suite.training_tasks(config.model_copy(update={"tasks": drawn, "seed": seed}))
    if lacking := sorted({task.site for task in tasks if suite.expert(task.site) is None}):
        raise DataError(f"no scripted expert for {', '.join(lacking)}")
    return tasks


async def record(
    tasks: Sequence[Task], config: RunConfig, out: Path, *, phase: int = 0, prefix: str | None = None
) -> None:
    """Let each task's expert play it; trajectories go to `out` (resumed if it exists), named after it by default.
    Raises StageError as `collect`: more episodes failed than `rollout.max_failed` allows.
    """
    experts = {site: ExpertPolicy(site) for site in sorted({task.site for task in tasks})}
    allowed = config.rollout.max_failed
    await collect(tasks, config, experts, out, phase=phase, prefix=prefix or out.stem, max_failed=allowed)
