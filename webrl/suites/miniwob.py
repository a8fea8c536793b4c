"""MiniWoB++ as a suite: task types, their splits, and the tasks of a run.

A task is (page, seed, instruction). Training seeds, held-out seeds and the seeds of held-out types
never overlap (neither as task seeds nor as the page seeds that BrowserGym makes of them), and no type is
in two sets, regardless of the run's seed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from webrl.config import RunConfig, plugins
from webrl.errors import DataError, UsageError
from webrl.rollouts.sites import MiniwobSite, page_seed
from webrl.rollouts.suite import API_VERSION, Expert, Suite
from webrl.types import Task

TRAIN_SITES: tuple[str, ...] = (
    "miniwob.click-button", "miniwob.click-dialog-2", "miniwob.click-tab", "miniwob.focus-text-2",
    "miniwob.click-collapsible", "miniwob.click-option", "miniwob.choose-list", "miniwob.enter-text",
    "miniwob.click-checkboxes", "miniwob.form-sequence-3", "miniwob.enter-password", "miniwob.login-user",
    "miniwob.read-table", "miniwob.form-sequence-2", "miniwob.enter-date", "miniwob.text-transform",
    "miniwob.read-table-2", "miniwob.phone-book", "miniwob.enter-time", "miniwob.find-word",
)  # fmt: skip
"""Training task types in growing difficulty: one click, a choice and a click, text entry, look-up, several pages."""

HELDOUT_SITES: tuple[str, ...] = (
    "miniwob.unicode-test", "miniwob.click-dialog", "miniwob.click-scroll-list", "miniwob.enter-text-dynamic",
    "miniwob.login-user-popup",
)  # fmt: skip
"""Task types that are never trained on; each has a relative among the training types."""

TRAIN_SEEDS = range(1_000_000)
"""Task seeds of training and demonstrations."""
EVAL_SEEDS = range(1_000_000, 2_000_000)
"""Task seeds of the evaluation on training types."""
HELDOUT_SEEDS = range(2_000_000, 3_000_000)
"""Task seeds of the evaluation on held-out types."""


def _known(sites: Sequence[str]) -> tuple[str, ...]:
    try:
        _ = [MiniwobSite(site) for site in sites]
    except DataError as error:
        raise UsageError(str(error)) from None
    return tuple(sites)


def _tasks(sites: Sequence[str], seeds: range, num_tasks: int, draw: int | str, split: str) -> list[Task]:
    """Return `num_tasks` tasks, cycling through the sites; each draws its page seeds without repetition. Raises
    UsageError: a site has fewer different pages.
    """
    count = -(-num_tasks // len(sites))
    drawn: dict[str, dict[int, int]] = {site: {} for site in sites}  # by page seed
    for site, by_page in drawn.items():
        rng = random.Random(f"{site}/{seeds.start}/{draw}")
        for _ in range(200 * count + 1000):
            if len(by_page) == count:
                break
            candidate = rng.choice(seeds)
            if is_split_seed(candidate, seeds):
                by_page.setdefault(page_seed(candidate), candidate)
        else:
            raise UsageError(f"{count} tasks of {site!r} requested, more than there are; request fewer")
    rows = zip(*(drawn[site].values() for site in sites), strict=True)  # a site may be named twice
    chosen = [pair for row in rows for pair in zip(sites, row, strict=True)][:num_tasks]
    return [Task(f"{site}.{seed}", site, seed, split=split) for site, seed in chosen]


def is_split_seed(seed: int, seeds: range) -> bool:
    """Whether a task seed belongs to a split.

    BrowserGym folds task seeds into a million page seeds, so two task seeds can give the same page; the
    page seed's last digit is therefore part of the split: 0 for evaluation, 1 for held-out types, else training.
    """
    digit = page_seed(seed) % 10
    return seed in seeds and {EVAL_SEEDS: digit == 0, HELDOUT_SEEDS: digit == 1, TRAIN_SEEDS: digit > 1}[seeds]


class MiniWoB(Suite):
    """Pages that a seed makes, which reward themselves."""

    name = "miniwob"
    api_version = API_VERSION
    has_page_seeds = True
    is_stateless = True
    draws_fresh = True

    def training_tasks(self, config: RunConfig, draw: int = 0) -> list[Task]:
        """The pages' own instructions at training seeds, types in turn; each draw has different pages."""
        sites, name = _known(config.tasks.train_sites or TRAIN_SITES), f"{config.seed}.{draw}" if draw else config.seed
        return _tasks(sites, TRAIN_SEEDS, config.tasks.num_seed_tasks, name, "train")

    def eval_tasks(self, config: RunConfig) -> list[Task]:
        """Their seeds are not training seeds; only those of this run are held out."""
        tasks, seed = config.tasks, config.seed
        seen, unseen = _known(tasks.train_sites or TRAIN_SITES), _known(tasks.heldout_sites or HELDOUT_SITES)
        if shared := sorted(set(seen) & set(unseen)):
            raise UsageError(f"{shared[0]!r} is in both train_sites and heldout_sites; leave it in one of them")
        held_out = _tasks(unseen, HELDOUT_SEEDS, tasks.num_heldout_tasks, seed, "eval_heldout")
        return [*_tasks(seen, EVAL_SEEDS, tasks.num_eval_tasks, seed, "eval"), *held_out]

    def check_settings(self, config: RunConfig) -> None:
        """Raises UsageError: a page that there is not, or one that is both trained on and held out."""
        if config.tasks.train_sites or config.tasks.heldout_sites:
            try:
                none = config.tasks.model_copy(update={"num_eval_tasks": 0, "num_heldout_tasks": 0})
                self.eval_tasks(config.model_copy(update={"tasks": none}))
            except UsageError as error:
                raise UsageError(f"tasks.train_sites, tasks.heldout_sites: {error}") from None

    def fresh_seed(self, taken: Collection[int], rng: random.Random) -> int:
        while True:
            seed = rng.choice(TRAIN_SEEDS)
            if seed not in taken and is_split_seed(seed, TRAIN_SEEDS):
                return seed

    def named_tasks(self, types: Sequence[str], seeds: Sequence[int], seed: int) -> list[Task]:
        return _tasks(_known(list(dict.fromkeys(types))), TRAIN_SEEDS, len(types), seed, "train")

    def demonstration_types(self, config: RunConfig) -> Sequence[str]:
        return config.tasks.train_sites or TRAIN_SITES

    def expert(self, task_type: str) -> Expert | None:
        return dict[str, Expert](plugins.load(plugins.HOOKS, "miniwob-experts")()).get(task_type)
