"""The filter that keeps evaluation apart from training: nothing that an evaluation asks is ever trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from webrl.rollouts.suite import suite_of
from webrl.tasks.dedupe import find_copies, state_of
from webrl.types import Task

Drop = tuple[str, str] | None
"""(reason, detail) of a drop, or None for a task that stays."""


def leaks(tasks: Sequence[Task], heldout: Sequence[Task], threshold: float) -> list[Drop]:
    """Drop what an evaluation would meet again.

    That is everything of a held-out task type. On a site whose seeds make its pages it is a held-out (site, seed), too;
    on other sites a held-out instruction or a near duplicate of one, whatever the initial state; one that needs several
    sites counts on each of them.
    """
    states = {state_of(task)[:2] for task in heldout if suite_of(task).is_seeded(task)}
    closed = {task.site for task in heldout if task.split == "eval_heldout"}
    asked = _held_out_instructions(tasks, heldout, threshold)
    drops: list[Drop] = []
    for task in tasks:
        suite = suite_of(task)
        if (kind := suite.task_type(task)) in closed:
            drops.append(("leakage", f"site {kind} is held out"))
        elif suite.is_seeded(task) and state_of(task)[:2] in states:
            drops.append(("leakage", f"seed {task.seed} of {task.site} is held out"))
        elif task.task_id in asked:
            drops.append(("leakage", f"held-out instruction: {asked[task.task_id]}"))
        else:
            drops.append(None)
    return drops


def _held_out_instructions(tasks: Sequence[Task], heldout: Sequence[Task], threshold: float) -> dict[str, str]:
    """Task id -> the held-out instruction that it repeats; seeded sites are left out."""
    candidates = _on_each_site(tasks)
    found = zip(candidates, find_copies(candidates, _on_each_site(heldout), threshold), strict=True)
    return {task.task_id: match.instruction for task, match in found if match is not None}


def _on_each_site(tasks: Sequence[Task]) -> list[Task]:
    """What is asked on sites that are addressed by URL; a cross-site task once for each of its sites."""
    return [
        replace(task, site=site, instruction=suite.instruction_of(task))
        for task in tasks
        if not (suite := suite_of(task)).is_seeded(task)
        for site in suite.sites_of(task)
    ]
