"""Where seeds come from: run folders, instruction files, and what is wrong in them."""

from collections import Counter
from dataclasses import replace

import orjson
import pytest

from webrl.config import RunConfig, load_config
from webrl.runs.folder import RunFolder
from webrl.runs.store import Appender, read_records, write_records
from webrl.stages import Context, filter_generated
from webrl.tasks.curriculum import shared_out
from webrl.tasks.failures import load_failures
from webrl.types import Label, Status, Step, Task, Trajectory


def trajectory(name, status=Status.PAGE_ENDED):
    """One click on a page; `site/name` is on another site than click-button."""
    step = Step(index=0, observation="[13] button 'ok'", response="click('13')", action="click('13')")
    site = name.split("/")[0] if "/" in name else "click-button"
    task, asked = Task(task_id=name, site=f"miniwob.{site}", seed=4), 'Click on the "no" button.'
    return Trajectory(f"p00-{name}", task, asked, 0, (step,), "after", status, env_reward=1.0)


def write_phase(folder, rewards, **statuses):
    """A phase folder with one trajectory a reward."""
    played = (trajectory(name, statuses.get(name, Status.PAGE_ENDED)) for name in rewards)
    write_records(folder / "trajectories.jsonl", played)
    labels = [Label(trajectory_id=f"p00-{name}", p_yes=0.5, reward=reward) for name, reward in rewards.items()]
    write_records(folder / "labels.jsonl", labels)


def test_failures_are_what_the_outcome_model_judged_zero_in_the_newest_judged_phase(tmp_path):
    write_phase(tmp_path / "phase_00", {"old": 0})
    write_phase(tmp_path / "phase_01", {"done": 1, "failed": 0, "unjudged": None, "broken": 0}, broken=Status.ENV_ERROR)
    (tmp_path / "phase_02").mkdir()
    found = load_failures(tmp_path)
    (failure,) = found.failures
    assert failure.task.task_id == "failed"
    assert failure.task.instruction == 'Click on the "no" button.'
    assert failure.page == "[13] button 'ok'"
    assert not found.from_seeds


def test_a_site_that_the_newest_phase_did_not_attempt_brings_its_last_failures(tmp_path):
    """Else a site that a filter empties once is lost to the run."""
    write_phase(tmp_path / "phase_10.bak", {"tab/copy": 0})
    write_phase(tmp_path / "phase_09", {"tab/old": 0, "list/lost": 0, "list/done": 1, "box/solved": 0})
    write_phase(tmp_path / "phase_10", {"tab/a": 0, "tab/b": 0, "tab/c": 1, "box/solved": 1, "list/unjudged": None})
    found = load_failures(tmp_path)
    assert [failure.task.task_id for failure in found.failures] == ["tab/a", "tab/b", "list/lost"]
    rate = 4 * 3 / 6  # three of six episodes failed; four more at that rate
    assert found.shares() == {"miniwob.tab": (2 + rate) / (3 + 4), "miniwob.list": (1 + rate) / (2 + 4)}
    before = load_failures(tmp_path, before=10)
    assert [failure.task.task_id for failure in before.failures] == ["tab/old", "list/lost", "box/solved"]
    assert before.shares() == {"miniwob.tab": (1 + 3) / 5, "miniwob.list": (1 + 3) / 6, "miniwob.box": (1 + 3) / 5}


def test_by_learnability_a_site_that_always_fails_gets_little_and_one_that_fails_half_the_time_most(tmp_path):
    half = {f"tab/{n}": n % 2 for n in range(20)}
    rare = {f"box/{n}": int(n == 0) for n in range(20)}
    never = {f"list/{n}": 0 for n in range(20)}
    write_phase(tmp_path, half | rare | never)
    found = load_failures(tmp_path)
    prior = 4 * 49 / 60
    failing = {"miniwob.tab": (10 + prior) / 24, "miniwob.box": (19 + prior) / 24, "miniwob.list": (20 + prior) / 24}
    assert found.shares("learnability") == {site: rate * (1 - rate) for site, rate in failing.items()}
    tab, box, never_solved = found.shares("learnability").values()
    assert tab > 2 * box > 2.4 * never_solved > 0


def test_fresh_pages_go_to_sites_without_a_failure_too(tmp_path):
    write_phase(tmp_path, {"tab/a": 0, "tab/b": 0, "list/a": 1, "list/b": 1})
    found = load_failures(tmp_path)
    assert found.shares() == {"miniwob.tab": (2 + 2) / 6}, "new instructions are written from failures"
    assert found.shares(every_site=True) == {"miniwob.tab": 4 / 6, "miniwob.list": 2 / 6}
    write_phase(tmp_path, {"tab/a": 0, "tab/b": 0, "list/a": 0})
    assert load_failures(tmp_path).shares("learnability") == {"miniwob.tab": 1.0, "miniwob.list": 1.0}, "all fail"


def test_attempts_at_one_task_weigh_as_one_task(tmp_path):
    """Else a task that was tried eight times would be as certain as eight."""
    write_phase(tmp_path, {"tab/a": 0, "list/a": 0, "list/b": 1})
    once = load_failures(tmp_path).shares()
    names = [f"p00-tab/a-r{n}" for n in range(1, 8)]
    with Appender(tmp_path / "trajectories.jsonl") as played, Appender(tmp_path / "labels.jsonl") as labels:
        for name in names:
            played.append(replace(trajectory("tab/a"), trajectory_id=name))
            labels.append(Label(trajectory_id=name, p_yes=0.5, reward=0))
    found = load_failures(tmp_path)
    assert len(found.failures) == 9
    assert found.shares() == once


def test_without_failures_the_attempted_tasks_are_the_seeds_and_it_says_so(tmp_path, caplog):
    write_phase(tmp_path, {"a": 1, "b": 1})
    found = load_failures(tmp_path)
    assert found.from_seeds
    assert [f.task.task_id for f in found.failures] == ["a", "b"]
    assert "nothing failed; the 2 attempted tasks are used as seeds" in caplog.text


def test_an_instruction_file_is_read_and_its_bad_lines_are_listed_with_their_numbers(tmp_path, caplog):
    path = tmp_path / "failures.jsonl"
    lines = [
        orjson.dumps({"task": "Open the cart", "web": "shopping"}),
        orjson.dumps({"task": "Open it", "web": "shopping", "page": "[1] link 'Cart'", "seed": 3, "task_id": "x"}),
        b'{"task": "no site"}',
        b"\xff\xfe not utf-8",
        b'{"task": "torn',
        b"[1, 2]",
        orjson.dumps({"task": "again", "web": "shopping", "task_id": "x"}),
        orjson.dumps({"task": "bad seed", "web": "shopping", "seed": "three"}),
        orjson.dumps({"task_id": "y", "site": "shopping", "instruction": "Close it", "page": "[2] link 'Cart'"}),
        orjson.dumps({"task_id": "z", "site": "shopping"}),
    ]
    path.write_bytes(b"\n".join(lines))
    found = load_failures(path)
    tasks = [(f.task.site, f.task.instruction, f.task.seed) for f in found.failures]
    assert tasks == [("shopping", "Open the cart", 0), ("shopping", "Open it", 3), ("shopping", "Close it", 0)]
    assert found.failures[2].page == "[2] link 'Cart'"
    assert [record.message.split(":")[1] for record in caplog.records] == ["3", "4", "5", "6", "7", "8", "10"]
    assert "`instruction` must be non-empty text, found None" in caplog.records[-1].message
    assert "duplicate task_id 'x'" in caplog.records[4].message


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
