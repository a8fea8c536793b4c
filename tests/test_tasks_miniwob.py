"""Task types, splits, and tasks of the embedded world."""

from collections import Counter
from itertools import combinations

import pytest
from numpy.random import RandomState

from webrl.config import RunConfig, TasksConfig
from webrl.rollouts.sites import page_names, page_seed
from webrl.rollouts.suite import seed_tasks
from webrl.suites.miniwob import (
    EVAL_SEEDS,
    HELDOUT_SEEDS,
    HELDOUT_SITES,
    TRAIN_SEEDS,
    TRAIN_SITES,
    MiniWoB,
    is_split_seed,
)

SUITE = MiniWoB()


def run(seed=0, **tasks) -> RunConfig:
    return RunConfig(seed=seed, tasks=TasksConfig(**tasks))


def test_training_and_held_out_types_are_disjoint_and_known() -> None:
    assert len(TRAIN_SITES) >= 14
    assert not set(TRAIN_SITES) & set(HELDOUT_SITES)
    assert len(set(TRAIN_SITES)) == len(TRAIN_SITES)
    assert set(TRAIN_SITES) | set(HELDOUT_SITES) <= {f"miniwob.{name}" for name in page_names()}


def test_task_seeds_and_page_seeds_of_the_splits_never_meet() -> None:
    splits = (TRAIN_SEEDS, EVAL_SEEDS, HELDOUT_SEEDS)
    for seeds in splits:
        for seed in seeds[:2000:10]:
            owners = [other for other in splits if is_split_seed(seed, other)]
            assert len(owners) <= 1
            assert set(owners) <= {seeds}
    digits = {seeds: {page_seed(seed) % 10 for seed in seeds[:500] if is_split_seed(seed, seeds)} for seeds in splits}
    assert digits == {TRAIN_SEEDS: set(range(2, 10)), EVAL_SEEDS: {0}, HELDOUT_SEEDS: {1}}


def test_page_seed_is_what_browsergym_derives() -> None:
    for seed in (0, 17, 2_999_999):
        assert page_seed(seed) == RandomState(seed).randint(0, 1_000_000)


@pytest.mark.parametrize("run_seeds", [(0, 0), (0, 1), (3, 99)])
def test_no_page_of_training_is_met_again_in_evaluation(run_seeds: tuple[int, int]) -> None:
    configs = [run(seed, num_seed_tasks=210, num_eval_tasks=210) for seed in run_seeds]
    held = SUITE.eval_tasks(configs[1])
    trained = {(t.site, page_seed(t.seed)) for t in SUITE.training_tasks(configs[0])}
    evaluated = {(t.site, page_seed(t.seed)) for t in held if t.split == "eval"}
    heldout = {(t.site, page_seed(t.seed)) for t in held if t.split == "eval_heldout"}
    assert len(trained) == 210
    assert len(evaluated) == 210
    assert not trained & evaluated
    assert not {site for site, _ in heldout} & {site for site, _ in trained | evaluated}


def test_tasks_are_balanced_over_types_and_have_their_split() -> None:
    for tasks, split, count in (
        (SUITE.training_tasks(run()), "train", 240),
        (SUITE.eval_tasks(run())[:240], "eval", 240),
        (SUITE.eval_tasks(run())[240:], "eval_heldout", 60),
    ):
        assert len(tasks) == count == len({t.task_id for t in tasks})
        assert {t.split for t in tasks} == {split}
        assert all(t.instruction is None for t in tasks)
        per_site = Counter(t.site for t in tasks)
        assert max(per_site.values()) - min(per_site.values()) <= 1


def test_tasks_depend_on_the_seed_and_on_nothing_else() -> None:
    assert SUITE.training_tasks(run(5)) == SUITE.training_tasks(run(5))
    assert SUITE.training_tasks(run(5)) != SUITE.training_tasks(run(6))
    few, many = (SUITE.eval_tasks(run(5, num_eval_tasks=count)) for count in (42, 84))
    assert few[:42] == many[:42]


def test_chosen_sites_replace_the_default_ones() -> None:
    sites = ("miniwob.click-button", "miniwob.enter-text")
    tasks = SUITE.training_tasks(run(train_sites=sites, num_seed_tasks=5))
    assert [t.site for t in tasks] == [*sites, *sites, sites[0]]
    twice = SUITE.training_tasks(run(train_sites=(sites[0], *sites), num_seed_tasks=6))
    assert [t.site for t in twice] == [sites[0], *sites, sites[0], *sites]


def test_each_phase_of_a_run_without_curriculum_can_have_fresh_pages() -> None:
    pages = [{(t.site, page_seed(t.seed)) for t in SUITE.training_tasks(run(), phase)} for phase in (0, 1, 2)]
    assert all(len(a & b) <= 1 for a, b in combinations(pages, 2))  # 12 of 800,000 pages a type
    assert [t.site for t in SUITE.training_tasks(run(), 1)] == [t.site for t in SUITE.training_tasks(run())]
    config = run(source="fixed")
    assert seed_tasks(config, 3) == seed_tasks(config)
    assert seed_tasks(run(source="fresh"), 3) != seed_tasks(config)
