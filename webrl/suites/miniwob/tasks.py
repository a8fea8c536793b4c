"""MiniWoB++ as the embedded world: task types, their splits, and the tasks of a run.

A task is (page, seed, instruction). Training seeds, held-out seeds and the seeds of held-out types
never meet (neither as task seeds nor as the page seeds that BrowserGym makes of them), and no type is
in two sets, whatever the run's own seed is.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Sequence
from functools import cache

from webrl.config import TasksConfig
from webrl.errors import UsageError
from webrl.rollouts.miniwob import page_names, page_seed
from webrl.types import Lineage, Task

TRAIN_SITES: tuple[str, ...] = tuple(
    f"miniwob.{name}"
    for name in (
        "click-button",
        "click-dialog-2",
        "click-tab",
        "focus-text-2",
        "click-collapsible",
        "click-option",
        "choose-list",
        "enter-text",
        "click-checkboxes",
        "form-sequence-3",
        "enter-password",
        "login-user",
        "read-table",
        "form-sequence-2",
        "enter-date",
        "text-transform",
        "read-table-2",
        "phone-book",
        "enter-time",
        "find-word",
    )
)
"""Training task types in growing difficulty: one click, a choice and a click, text entry, look-up, several pages."""

HELDOUT_SITES: tuple[str, ...] = tuple(
    f"miniwob.{name}"
    for name in (
        "unicode-test",
        "click-dialog",
        "click-scroll-list",
        "enter-text-dynamic",
        "login-user-popup",
    )
)
"""Task types that are never trained on; each has a relative among the training types."""

TRAIN_SEEDS = range(1_000_000)
"""Task seeds of training and demonstrations."""
EVAL_SEEDS = range(1_000_000, 2_000_000)
"""Task seeds of the evaluation on training types."""
HELDOUT_SEEDS = range(2_000_000, 3_000_000)
"""Task seeds of the evaluation on held-out types."""


def seed_tasks(config: TasksConfig, seed: int, phase: int = 0) -> list[Task]:
    """The pages' own instructions at training seeds, types in turn; each phase has pages of its own."""
    draw = f"{seed}.{phase}" if phase else str(seed)
    return _tasks(_train_sites(config), TRAIN_SEEDS, config.num_seed_tasks, draw, "train")


def eval_tasks(config: TasksConfig, seed: int) -> list[Task]:
    """Held-out seeds of the training types, types in turn."""
    return _tasks(_train_sites(config), EVAL_SEEDS, config.num_eval_tasks, str(seed), "eval")


def heldout_tasks(config: TasksConfig, seed: int) -> list[Task]:
    """Task types that are never trained on, types in turn."""
    sites = _known(config.heldout_sites or HELDOUT_SITES)
    shared = sorted(set(sites) & set(_train_sites(config)))
    if shared:
        raise UsageError(f"{shared[0]!r} is in both train_sites and heldout_sites; leave it in one of them")
    return _tasks(sites, HELDOUT_SEEDS, config.num_heldout_tasks, str(seed), "eval_heldout")


@cache
def known_sites() -> tuple[str, ...]:
    """Every page of the installed `miniwob` package under its BrowserGym name."""
    return tuple(sorted(f"miniwob.{name}" for name in page_names()))


def _train_sites(config: TasksConfig) -> tuple[str, ...]:
    return _known(config.train_sites or TRAIN_SITES)


def _known(sites: Sequence[str]) -> tuple[str, ...]:
    for site in sites:
        if site not in known_sites():
            nearest = difflib.get_close_matches(site, known_sites(), n=1, cutoff=0)
            raise UsageError(f"unknown MiniWoB page {site!r}; the nearest is {nearest[0]!r}")
    return tuple(sites)


def _tasks(sites: Sequence[str], seeds: range, num_tasks: int, draw: str, split: str) -> list[Task]:
    """`num_tasks` tasks that go round the sites; each site draws its page seeds without repetition."""
    drawn = {site: _draw(site, seeds, -(-num_tasks // len(sites)), draw) for site in sites}
    tasks = []
    for i in range(num_tasks):
        site = sites[i % len(sites)]
        seed = drawn[site][i // len(sites)]
        task_id = f"{site}.{seed}"
        tasks.append(Task(task_id=task_id, site=site, seed=seed, split=split, lineage=Lineage(strategy="seed")))
    return tasks


def is_split_seed(seed: int, seeds: range) -> bool:
    """Whether a task seed belongs to a split.

    BrowserGym folds task seeds into a million page seeds, so two task seeds can give the same page; the
    page seed's last digit is therefore part of the split: 0 for evaluation, 1 for held-out types, else training.
    """
    digit = page_seed(seed) % 10
    wanted = {EVAL_SEEDS: digit == 0, HELDOUT_SEEDS: digit == 1, TRAIN_SEEDS: digit > 1}
    return seed in seeds and wanted[seeds]


def _draw(site: str, seeds: range, count: int, draw: str) -> list[int]:
    rng = random.Random(f"{site}/{seeds.start}/{draw}")
    drawn: dict[int, int] = {}
    for _ in range(200 * count + 1000):
        if len(drawn) == count:
            return list(drawn.values())
        candidate = rng.choice(seeds)
        if is_split_seed(candidate, seeds):
            drawn.setdefault(page_seed(candidate), candidate)
    raise UsageError(f"{count} tasks of {site!r} asked for; there are not so many different ones, ask for fewer")
