"""Browsers kept through a run serve stage after stage, come back after a crash, and end with the run."""

import asyncio
import os
import signal

import psutil
import pytest
from processes import BROWSER, descendants, wait_until
from rollouts_builders import Scripted, miniwob

from webrl.config import RolloutConfig, RunConfig
from webrl.rollouts.collect import collect, initial_pages, open_pool
from webrl.rollouts.pool import EnvPool, keep_browsers, run, start_early
from webrl.runs.store import read_records
from webrl.types import Status, Trajectory

pytestmark = pytest.mark.browser
CONFIG = RunConfig.model_validate({"rollout": {"envs_per_worker": 2, "max_steps": 2, "max_retries": 2}})
OTHERS = set()


@pytest.fixture(autouse=True)
def others():
    """What other files' tests share between them in this process is not counted."""
    OTHERS.clear()
    OTHERS.update(workers())


def workers():
    """Process ids of this process's browser workers."""
    return {p.pid for p in descendants(os.getpid()) if any("rollouts.worker" in part for part in command(p))} - OTHERS


def command(process):
    """A process's command line; empty once it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # or a zombie
        return []


def play(out, *pages):
    """A stage that collects; the trajectories."""
    tasks = [miniwob(page, seed) for seed, page in enumerate(pages)]
    run(collect(tasks, CONFIG, Scripted("noop(0)"), out, phase=0, prefix="p"))
    return sorted(read_records(out, Trajectory), key=lambda t: t.trajectory_id)


def test_stages_of_a_run_share_browsers_and_see_what_fresh_ones_show(tmp_path):
    pages = ("click-button", "enter-text", "click-tab", "login-user")
    fresh = play(tmp_path / "fresh.jsonl", *pages)
    assert not workers()
    with keep_browsers():
        assert not workers()  # started at first use
        play(tmp_path / "first.jsonl", "click-checkboxes", "choose-list", "enter-date")
        first = workers()
        found = run(initial_pages([miniwob("click-button", 7)], CONFIG.rollout))
        kept = play(tmp_path / "second.jsonl", *pages)
        assert len(first) == 1
        assert workers() == first
    assert found[0] is not None
    assert [[s.observation for s in t.steps] for t in kept] == [[s.observation for s in t.steps] for t in fresh]
    assert [t.instruction for t in kept] == [t.instruction for t in fresh]
    assert not workers()


def test_browsers_start_while_a_stage_loads_its_model(tmp_path):
    two = RunConfig(rollout=RolloutConfig(num_workers=2, envs_per_worker=2))

    def wait_for_chromium():
        wait_until(workers, 120)  # a process that has just begun has no command line yet
        (worker,) = workers()
        wait_until(lambda: descendants(worker, BROWSER), 120)

    async def load():
        await start_early(two.rollout, 1)
        wait_for_chromium()  # holds the event loop, as loading a model does

    with keep_browsers():
        run(load())
        (early,) = workers()
        run(collect([miniwob("click-tab", 1)], two, Scripted("noop(0)"), tmp_path / "t.jsonl", phase=0, prefix="p"))
        assert workers() == {early}
    run(start_early(two.rollout, 1))  # where nobody keeps them there is nothing to start
    assert not workers()


@pytest.mark.slow
def test_a_worker_killed_between_two_stages_is_replaced(tmp_path):
    with keep_browsers():
        play(tmp_path / "first.jsonl", "click-button")
        (first,) = workers()
        os.killpg(first, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [], timeout=10)
        (trajectory,) = play(tmp_path / "second.jsonl", "enter-text")
        assert trajectory.status is not Status.ENV_ERROR
        assert workers().isdisjoint({first})
    assert not workers()


def test_other_settings_get_other_browsers_in_their_place_and_an_error_in_a_stage_ends_them(tmp_path):
    async def kind(settings):
        async with open_pool(settings, 1) as pool:
            return pool

    def fail():
        with keep_browsers():
            play(tmp_path / "first.jsonl", "click-button")
            first, others = workers(), (CONFIG.rollout, RolloutConfig(envs_per_worker=3), CONFIG.rollout)
            pools.extend(run(kind(settings)) for settings in others)
            assert first
            assert not workers() & first
            raise ZeroDivisionError

    pools = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert isinstance(pools[0], EnvPool)
    assert len({id(pool) for pool in pools}) == 3
    assert not workers()


def test_a_pool_that_is_lent_is_neither_shared_nor_ended_by_another_borrower():
    async def both():
        async with open_pool(CONFIG.rollout, 1) as one, one.env() as env:
            await env.reset(miniwob("click-button"))
            async with open_pool(RolloutConfig(envs_per_worker=3), 1) as other:
                assert other is not one
            return (await env.step("noop(0)")).error

    with keep_browsers():
        assert run(both()) == ""


def test_outside_a_run_nothing_is_kept():
    async def loop():
        return asyncio.get_running_loop()

    assert run(loop()) is not run(loop())
    with keep_browsers():
        first = run(loop())
        with keep_browsers():
            assert run(loop()) is first
