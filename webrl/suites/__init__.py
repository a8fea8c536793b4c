"""Which tasks a run starts from and is evaluated on, by `tasks.suite`, and what else differs outside episodes.

(How a suite's episodes start and end: `webrl.rollouts.suite`. `world.py` lists the suites for that.)
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.evaluate import summarize_evaluation
from webrl.suites import miniwob
from webrl.suites.webarena import tasks as webarena
from webrl.types import Task, Trajectory


def has_page_seeds(config: RunConfig) -> bool:
    """True where a seed makes a page (MiniWoB): every generated instruction then gets a page of its own."""
    return config.tasks.suite == "miniwob"


def is_seeded(task: Task) -> bool:
    """Whether the task's seed makes its page: a site that is addressed by name, not by URL or task file."""
    return task.start_url is None and not webarena.is_webarena(task)


def instruction_of(task: Task) -> str:
    """What the agent is asked to do, as far as it is known before the page is open ("" on a MiniWoB page)."""
    return webarena.instruction_of(task)


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suite's own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    if has_page_seeds(config):
        return miniwob.seed_tasks(config.tasks, config.seed, phase if config.tasks.source == "fresh" else 0)
    return webarena.training_tasks(config)


def eval_tasks(config: RunConfig) -> list[Task]:
    """Held-out tasks, those of held-out task types last; the same in every phase."""
    if has_page_seeds(config):
        return [*miniwob.eval_tasks(config.tasks, config.seed), *miniwob.heldout_tasks(config.tasks, config.seed)]
    return webarena.evaluation_tasks(config.tasks)


def held_out(config: RunConfig) -> list[Task]:
    """Everything that an evaluation of this suite may ask: never trained on, however few tasks this run evaluates.

    (MiniWoB's evaluation seeds are no training seeds, so those of this run are enough there.)
    """
    suite = config.tasks.suite
    return eval_tasks(config) if suite == "miniwob" else webarena.load_suite(suite)


def held_out_beside(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """As `held_out`, where `tasks` may be of another suite than the config's: on WebArena's sites its Lite version."""
    if has_page_seeds(config) and any(map(webarena.is_webarena, tasks)):
        return webarena.load_suite("webarena_lite")
    return held_out(config)


def fresh_page(taken: Collection[int], rng: random.Random) -> int:
    """A training page seed that is not taken."""
    while True:
        seed = rng.choice(miniwob.TRAIN_SEEDS)
        if seed not in taken and miniwob.is_split_seed(seed, miniwob.TRAIN_SEEDS):
            return seed


def open_sites(config: RunConfig, tasks: Sequence[Task]) -> AbstractAsyncContextManager[None]:
    """Hold, and reset, what the tasks' episodes share with the world outside this run; around all of them."""
    from webrl.suites.webarena.session import open_sites as open_webarena

    return open_webarena(config, tasks)


def summarize(config: RunConfig, trajectories: Sequence[Trajectory], folder: Path) -> dict[str, Any]:
    """An evaluation's counts; files that the suite's users expect of one go to `folder`, a phase's."""
    confidence = config.evaluate.confidence
    if has_page_seeds(config):
        return summarize_evaluation(trajectories, confidence)
    from webrl.suites.webarena import report

    report.write_task_files(trajectories, folder / "eval_tasks")
    if config.rollout.webarena.vab_traces:
        report.write_traces(trajectories, folder / "vab")
    judged = [trajectory for trajectory in trajectories if not report.is_unjudged(trajectory)]
    return summarize_evaluation(judged, confidence) | {"webarena": report.summarize(trajectories, confidence)}
