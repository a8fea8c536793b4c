"""Fresh tasks of a phase, more of the types that need them (`tasks.shares`)."""

from collections import Counter

import pytest
from test_tasks_generate_failures import write_phase

from webrl.config import RunConfig, load_config
from webrl.runs.folder import RunFolder
from webrl.runs.store import read_records
from webrl.stages import Context, filter_generated
from webrl.tasks.curriculum import shared_out
from webrl.types import Task

SITES = ("miniwob.click-tab", "miniwob.click-option", "miniwob.enter-text")


def settings(*more: str) -> RunConfig:
    sites = f"tasks.train_sites=[{', '.join(SITES)}]"
    return load_config("demo", ["tasks.source=fresh", "tasks.num_seed_tasks=40", sites, *more])


def counted(tasks: list[Task]) -> dict[str, int]:
    return dict(Counter(task.site for task in tasks))


def test_a_type_gets_tasks_in_proportion_to_its_weight() -> None:
    tasks = shared_out(settings(), 2, {SITES[0]: 0.1, SITES[1]: 0.3, SITES[2]: 0.4})
    assert counted(tasks) == {SITES[0]: 5, SITES[1]: 15, SITES[2]: 20}
    assert len({task.task_id for task in tasks}) == 40
    assert {task.split for task in tasks} == {"train"}
    assert not {t.task_id for t in tasks} & {t.task_id for t in shared_out(settings(), 3, dict.fromkeys(SITES, 1.0))}


def test_a_type_that_was_never_judged_gets_the_mean_weight_and_no_weight_at_all_is_evenly() -> None:
    assert counted(shared_out(settings(), 1, {SITES[0]: 0.0, SITES[1]: 0.5})) == {SITES[1]: 27, SITES[2]: 13}
    assert counted(shared_out(settings(), 1, dict.fromkeys(SITES, 0.0))) == {SITES[0]: 14, SITES[1]: 13, SITES[2]: 13}


def test_fewer_tasks_than_types_go_to_the_types_of_the_highest_weights() -> None:
    weights = {SITES[0]: 0.1, SITES[1]: 0.3, SITES[2]: 0.4}
    assert counted(shared_out(settings("tasks.num_seed_tasks=2"), 1, weights)) == {SITES[1]: 1, SITES[2]: 1}
    unnamed = load_config("demo", ["tasks.source=fresh", "tasks.num_seed_tasks=4", "tasks.train_sites=[]"])
    assert sum(counted(shared_out(unnamed, 1, {"miniwob.click-button": 0.5, "miniwob.click-tab": 0.1})).values()) == 4


@pytest.mark.companion("arena")
def test_places_of_a_type_with_too_few_different_tasks_go_to_the_others() -> None:
    few, many = "arena.mail.archive", "arena.shop.price"
    of_two = ["tasks.source=fresh", "tasks.num_seed_tasks=200", f"tasks.train_sites=[{few}, {many}]"]
    found = counted(shared_out(load_config("arena", of_two), 1, {few: 1.0, many: 0.1}))
    assert sum(found.values()) == 200
    assert found[few] < 100, "its weight asks for 182 of them"


def test_a_phase_takes_the_rates_of_the_labels_before_it(tmp_path) -> None:
    config = settings("tasks.shares=failures", f"runs_dir={tmp_path}", "name=shared")
    run = RunFolder(config.run_dir)
    sites = [site.removeprefix("miniwob.") for site in SITES]
    outcomes = {f"{sites[0]}/{n}": 0 for n in range(8)} | {f"{sites[1]}/{n}": 1 for n in range(8)}
    write_phase(run.phase(0).path, outcomes | {f"{sites[2]}/{n}": n % 2 for n in range(8)})
    filter_generated(Context(config, run, 1))
    # Failure rates 1, 0 and 1/2, each with four episodes more at the common rate of 1/2: 10, 2 and 6 of 12.
    assert counted(list(read_records(run.phase(1).tasks, Task))) == {SITES[0]: 22, SITES[1]: 5, SITES[2]: 13}
