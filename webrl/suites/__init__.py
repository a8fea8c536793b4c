"""Which tasks a run starts from and is evaluated on, by `tasks.suite`."""

from __future__ import annotations

import random
from collections.abc import Collection

from webrl.config import RunConfig
from webrl.suites import miniwob
from webrl.types import Task


def has_page_seeds(config: RunConfig) -> bool:
    """True where a seed makes a page (MiniWoB): every generated instruction then gets a page of its own."""
    return config.tasks.suite == "miniwob"


def seed_tasks(config: RunConfig, phase: int = 0) -> list[Task]:
    """The suite's own tasks for a phase: those of phase 0, unless `tasks.source` is fresh."""
    if has_page_seeds(config):
        return miniwob.seed_tasks(config.tasks, config.seed, phase if config.tasks.source == "fresh" else 0)
    from webrl.suites.webarena.tasks import training_tasks

    return training_tasks(config)


def eval_tasks(config: RunConfig) -> list[Task]:
    """Held-out tasks, those of held-out task types last; the same in every phase."""
    if has_page_seeds(config):
        return [*miniwob.eval_tasks(config.tasks, config.seed), *miniwob.heldout_tasks(config.tasks, config.seed)]
    from webrl.suites.webarena.tasks import evaluation_tasks

    return evaluation_tasks(config.tasks)


def held_out(config: RunConfig) -> list[Task]:
    """Everything that an evaluation of this suite may ask: never trained on, however few tasks this run evaluates.

    (MiniWoB's evaluation seeds are no training seeds, so those of this run are enough there.)
    """
    suite = config.tasks.suite
    if suite == "miniwob":
        return eval_tasks(config)
    from webrl.suites.webarena.tasks import load_suite

    return load_suite(suite)


def fresh_page(taken: Collection[int], rng: random.Random) -> int:
    """A training page seed that is not taken."""
    while True:
        seed = rng.choice(miniwob.TRAIN_SEEDS)
        if seed not in taken and miniwob.is_split_seed(seed, miniwob.TRAIN_SEEDS):
            return seed
