"""Suites and tasks that are not the server's own."""

import pytest
from openenv_builders import client, server
from toy_builders import toy_package
from toy_suite import COLORS, ToyExpert

from webrl.config import RunConfig, plugins
from webrl.rollouts.suite import PAGES, Suite, find_suite, suite_at
from webrl.types import Task
from webrl_webarena.task_files import held_out_of


@pytest.mark.browser
def test_a_suite_of_another_package_is_served(tmp_path, monkeypatch):
    with toy_package(tmp_path, monkeypatch), server("tasks.suite=toy", num_sessions=1) as (url, _), client(url) as env:
        for seed, task in ((4, {}), (5, {"task_name": "toy.press"})):
            seen = env.reset(seed=seed, **task).observation
            assert seen["goal"] == f"Press {COLORS[seed % 3]}."
            step = env.step({"action_str": ToyExpert().plan(seen["goal"], seen["text"], [])})
            assert (step.reward, step.done) == (1.0, True)


@pytest.mark.webarena
def test_tasks_of_webarenas_sites_are_held_against_the_suite_of_the_config():
    task = Task("t", site="gitlab", start_url="__GITLAB__", instruction="Close the issue")
    assert len(held_out_of(RunConfig(tasks={"suite": "webarena"}), [task])) == 812


def test_every_suite_of_webrl_s_own_is_found_by_its_name_and_its_tasks_sites():
    own = {name for brought in plugins.COMPANIONS.values() for name in brought.get(plugins.SUITES, ())}
    assert {*own, "miniwob"} <= set(plugins.names(plugins.SUITES))
    for name in {*own, "miniwob"}:
        assert isinstance(find_suite(name), Suite)
        assert suite_at(f"{name}.page") is find_suite(name)
    assert suite_at("gitlab").name == suite_at("map+wikipedia").name == "webarena_lite"
    assert suite_at("shopping.example.org") is suite_at("somewhere") is PAGES


def test_what_companions_bring_is_what_the_core_says_that_they_bring():
    """So that a companion that is missing is named for everything that it has."""
    for group in (plugins.SUITES, plugins.SITES, plugins.ENVIRONMENTS, plugins.COMMANDS, plugins.HOOKS):
        brought = {name for companion in plugins.COMPANIONS.values() for name in companion.get(group, ())}
        assert brought | ({"miniwob"} if group == plugins.SUITES else set()) == set(plugins.names(group))
        for name in plugins.names(group):
            plugins.load(group, name)
