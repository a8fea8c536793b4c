"""Addresses, placeholders and task files: what is accepted, and what is said about the rest."""

import json
from pathlib import Path

import pytest
from standins.play import training_task

from webrl.config import RunConfig, validate_config
from webrl.errors import DataError, UsageError
from webrl.rollouts.suite import find_suite, suite_of
from webrl.runs.folder import PhaseFolder
from webrl.runs.store import read_records
from webrl.tasks.curriculum import select_seeds
from webrl.tasks.filter import Dropped
from webrl.types import Task
from webrl_site.sites import placeholders, resolve
from webrl_webarena.settings import WebArenaConfig
from webrl_webarena.sites import SITES, check_url, find_sites, host_of
from webrl_webarena.suite import WebArena
from webrl_webarena.task_files import read_task_file, read_training_file
from webrl_webarena.tasks import (
    config_of,
    instruction_of,
    interleave,
    is_scored,
    load_suite,
    sites_of,
    training_tasks,
    writes,
)

GOOD = {
    "sites": ["shopping"],
    "task_id": 7,
    "start_url": "__SHOPPING__/a.html",
    "intent": "Add this to my cart",
    "eval": {
        "eval_types": ["program_html"],
        "reference_answers": None,
        "reference_url": "",
        "program_html": [{"url": "__SHOPPING__/cart", "locator": "", "required_contents": {"must_include": ["a"]}}],
    },
}


def write(folder: Path, *tasks: object, name: str = "tasks.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(list(tasks)))
    return path


def test_browsergym_s_and_vab_s_variables_are_both_read_and_the_config_wins():
    environ = {
        "WA_SHOPPING": "http://a:1/",
        "SHOPPING": "http://b",
        "MAP": "http://m:3000",
        "GITLAB": "http://g, http://h",
    }
    config = WebArenaConfig.model_validate({"sites": {"map": "https://own"}})
    sites = find_sites(config, environ)
    assert sites.urls == {"shopping": ("http://a:1",), "map": ("https://own",), "gitlab": ("http://g", "http://h")}
    assert find_sites(config, {"WA_FULL_RESET": "http://r:7565"}).reset_urls == ("http://r:7565",)


def test_hosts_are_compared_with_their_port_and_one_without_scheme_is_refused_with_the_fix():
    assert host_of("http://User:x@Host:80/p?q") == "host:80"
    with pytest.raises(
        UsageError, match=r"WA_REDDIT = 'my\.host:9999' is not a web address; write http://my\.host:9999"
    ):
        find_sites(WebArenaConfig(), {"WA_REDDIT": "my.host:9999"})
    with pytest.raises(UsageError, match="only http:// and https://"):
        check_url("ftp://x", "WA_MAP")
    for url in ("http://HOST:PORT", "http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:3000?key=1"):
        with pytest.raises(UsageError, match=r"WA_MAP = .* is not a web address; "):
            check_url(url, "WA_MAP")


def test_missing_sites_are_all_named_with_their_variables():
    with pytest.raises(UsageError, match="no address for gitlab, map: set WA_GITLAB, WA_MAP"):
        find_sites(WebArenaConfig(), {"WA_REDDIT": "http://r"}).require(["reddit", "gitlab", "map"])


def test_placeholders_are_put_in_and_what_stays_is_an_error():
    urls = {"shopping_admin": "http://h:7780/admin", "map": "http://m"}
    assert resolve({"a": ["__SHOPPING_ADMIN__/x", "func:f('__last_url__')", 3]}, urls, "t", SITES) == {
        "a": ["http://h:7780/admin/x", "func:f('__last_url__')", 3]
    }
    assert placeholders({"x": "__MAP__ |AND| __SHOPPING_ADMIN__"}) == {"map", "shopping_admin"}
    with pytest.raises(DataError, match="t: __REDDIT__ is unresolved"):
        resolve("__REDDIT__/f", urls, "t", SITES)
    with pytest.raises(DataError, match="unknown site __CLASSIFIEDS__"):
        resolve("__CLASSIFIEDS__", urls, "t", SITES)


def test_a_task_file_gives_scored_tasks_that_survive_json(tmp_path):
    (task,) = read_task_file(write(tmp_path, GOOD))
    assert task.task_id == "tasks.7"
    assert task.instruction is None
    assert instruction_of(task) == "Add this to my cart"
    assert is_scored(task)
    assert writes(task)
    assert Task.from_json(task.to_json()) == task


def test_generated_task_files_have_no_reference(tmp_path):
    answers = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "N/A"}, "string_note": ""}
    (task,) = read_task_file(write(tmp_path, {**GOOD, "eval": {**GOOD["eval"], **answers}}))
    assert not is_scored(task)
    assert task.instruction == "Add this to my cart"


@pytest.mark.webarena
def test_the_suites_have_165_and_812_tasks_interleaved_by_site():
    lite, full = load_suite("webarena_lite"), load_suite("webarena")
    assert (len(lite), len(full)) == (165, 812)
    assert all(map(is_scored, lite + full))
    assert len({task.site for task in lite[:9]}) == 9
    assert sum(len(sites_of(task)) > 1 for task in lite) == 10
    cross = next(task for task in lite if task.task_id == "webarenalite.741")
    assert sites_of(cross) == ("map", "wikipedia")


@pytest.mark.webarena
def test_reading_tasks_are_told_from_writing_ones():
    lite = {task.task_id: task for task in load_suite("webarena_lite")}
    assert not writes(lite["webarenalite.44"])  # Check out my todos
    assert not writes(lite["webarenalite.762"])  # nobody can change the map
    assert writes(lite["webarenalite.470"])  # Cancel order 302
    assert not writes(training_task("t", "reddit", "What is the newest post?"))
    assert writes(training_task("t", "reddit", "Upvote the newest post"))


def test_interleaving_keeps_each_site_s_own_order():
    tasks = [training_task(f"t{i}", site, "show") for i, site in enumerate(["map", "map", "gitlab", "map"])]
    assert [task.task_id for task in interleave(tasks)] == ["t0", "t2", "t1", "t3"]


def test_training_files_of_all_three_formats_are_read(tmp_path):
    released = write(tmp_path, {"intent": " Show it ", "sites": ["gitlab"], "start_url": "__GITLAB__"}, name="a.json")
    (task,) = read_training_file(released)
    assert (task.site, task.instruction, task.start_url) == ("gitlab", "Show it", "__GITLAB__")
    lines = tmp_path / "b.jsonl"
    lines.write_text('{"task": "Find x", "web": "CMS"}\n\n{"task": "y", "web": "map"}\n')
    assert [t.site for t in read_training_file(lines)] == ["shopping_admin", "map"]
    (stripped,) = read_training_file(write(tmp_path, GOOD, name="c.json"))
    assert not is_scored(stripped)
    assert config_of(stripped)["eval"]["eval_types"] == []


def test_task_and_training_files_are_checked(tmp_path):
    with pytest.raises(DataError, match=r"tasks\.json: task 1 is not in WebArena's format: KeyError\('eval'\)"):
        read_task_file(write(tmp_path, GOOD, {"task_id": 1, "start_url": ""}))
    for sites in (7, "shopping", None, {}, []):
        with pytest.raises(DataError, match=r"tasks\.json: task 0: `sites` must be a list of site names, found"):
            read_training_file(write(tmp_path, {"intent": "Go.", "sites": sites}))
    lines = tmp_path / "b.jsonl"
    lines.write_text('{"task": "x", "web": "map"}\n{"task": "x", "web": "moon"}\n')
    with pytest.raises(DataError, match=r"b\.jsonl:2: unknown site 'moon'"):
        read_training_file(lines)
    with pytest.raises(DataError, match="no instruction in 'intent' or 'task'"):
        read_training_file(write(tmp_path, {"sites": ["map"]}))


def config(**webarena: object) -> RunConfig:
    return validate_config(
        {"tasks": {"suite": "webarena_lite", "num_seed_tasks": 2}, "rollout": {"webarena": webarena}}, "t"
    )


def test_phase_0_draws_its_tasks_by_seed_and_drops_repeats(tmp_path):
    tasks = [{"intent": f"Show {i % 4}", "sites": ["map"], "start_url": "__MAP__"} for i in range(8)]
    settings = config(train_files=[str(write(tmp_path, *tasks))])
    drawn = training_tasks(settings)
    assert len({instruction_of(task) for task in drawn}) == 2
    assert drawn == training_tasks(settings)


@pytest.mark.webarena
def test_phase_0_does_not_train_on_what_an_evaluation_asks(tmp_path):
    asked = next(task for task in load_suite("webarena_lite") if task.site == "gitlab")
    tasks = [{"intent": text, "sites": ["gitlab"]} for text in (instruction_of(asked), "Close my oldest issue")]
    settings = config(train_files=[str(write(tmp_path, *tasks))])
    few = settings.model_copy(update={"tasks": settings.tasks.model_copy(update={"num_eval_tasks": 1})})
    counts = select_seeds(few, PhaseFolder(tmp_path, 0))
    assert counts == {"num_kept": 1, "dropped": {"leakage": 1}}
    assert [task.instruction for task in read_records(tmp_path / "tasks.jsonl", Task)] == ["Close my oldest issue"]
    (dropped,) = read_records(tmp_path / "dropped.jsonl", Dropped)
    assert dropped.detail == f"held-out instruction: {instruction_of(asked)}"


def test_phase_0_without_instructions_says_where_to_get_them():
    with pytest.raises(UsageError, match=r"train_files.*WebArena-Lite_info\.json"):
        training_tasks(config())


@pytest.mark.webarena
def test_evaluation_takes_the_whole_suite_or_its_first_tasks():
    lite = find_suite("webarena_lite")
    assert len(lite.eval_tasks(config())) == 165
    few = config().model_copy(update={"tasks": config().tasks.model_copy(update={"num_eval_tasks": 5})})
    assert len({task.site for task in lite.eval_tasks(few)}) == 5


def test_tasks_of_other_worlds_are_not_ours():
    assert suite_of(Task("a", "miniwob.click-button")).name == "miniwob"
    assert isinstance(suite_of(Task("a", "map+wikipedia")), WebArena)
