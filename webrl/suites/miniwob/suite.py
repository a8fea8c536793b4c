"""MiniWoB++ as a suite."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from webrl.config import RunConfig, TasksConfig
from webrl.errors import UsageError
from webrl.rollouts.suite import API_VERSION, Expert, Suite
from webrl.suites.miniwob.tasks import TRAIN_SEEDS, TRAIN_SITES, eval_tasks, heldout_tasks, is_split_seed, seed_tasks
from webrl.types import Task


class MiniWoB(Suite):
    """Pages that a seed makes, which reward themselves."""

    name = "miniwob"
    api_version = API_VERSION
    has_page_seeds = True
    is_stateless = True
    draws_fresh = True

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        return seed_tasks(config.tasks, config.seed, draw)

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        """Their seeds are no training seeds, so those of this run are all that is held out."""
        return [*eval_tasks(config.tasks, config.seed), *heldout_tasks(config.tasks, config.seed)]

    def check_settings(self, config: RunConfig, *, mixed: bool) -> None:
        """Raises UsageError: a page that there is not, or one that is both trained on and held out."""
        if config.tasks.train_sites or config.tasks.heldout_sites:
            try:
                heldout_tasks(config.tasks.model_copy(update={"num_heldout_tasks": 0}), config.seed)
            except UsageError as error:
                raise UsageError(f"tasks.train_sites, tasks.heldout_sites: {error}") from None

    def fresh_seed(self, taken: Collection[int], rng: random.Random) -> int:
        while True:
            seed = rng.choice(TRAIN_SEEDS)
            if seed not in taken and is_split_seed(seed, TRAIN_SEEDS):
                return seed

    def named_tasks(self, types: Sequence[str], seeds: Sequence[int], seed: int) -> list[Task]:
        return seed_tasks(TasksConfig(train_sites=tuple(dict.fromkeys(types)), num_seed_tasks=len(types)), seed)

    def demonstration_types(self, config: RunConfig) -> Sequence[str]:
        return config.tasks.train_sites or TRAIN_SITES

    def expert(self, task_type: str) -> Expert | None:
        from webrl.suites.miniwob.experts import EXPERTS

        return EXPERTS.get(task_type)
