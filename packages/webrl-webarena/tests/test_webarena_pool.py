"""The rollout stage on WebArena: worker processes, leases between them, scores in the trajectories."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from standins.experts import SCRIPTS, Scripted
from standins.play import lite_tasks
from standins.world import World

from webrl.config import validate_config
from webrl.llm.interface import Turn
from webrl.rollouts.collect import collect
from webrl.runs.store import read_records
from webrl.suites import open_sites
from webrl.types import Task, Trajectory
from webrl_webarena.tasks import instruction_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.webarena,
]


class Experts:
    """One policy for all: it knows the script by the instruction."""

    fingerprint = "experts"

    def __init__(self, scripts: dict[str, Any]) -> None:
        self.scripts = scripts

    async def act(self, turn: Turn) -> Any:
        return await Scripted(self.scripts[turn.instruction]).act(turn)


def roll_out(world: World, tasks: list[Task], scripts: dict[str, Any]) -> dict[str, Trajectory]:
    rollout = {"num_workers": 2, "envs_per_worker": 2, "max_steps": 12, "webarena": world.webarena()}
    config = validate_config({"tasks": {"suite": "webarena_lite"}, "rollout": rollout}, "test")
    out = world.folder / "trajectories.jsonl"

    async def run() -> None:
        async with open_sites(config, tasks):
            await collect(tasks, config, Experts(scripts), out, phase=0, prefix="e00")

    asyncio.run(run())
    return {t.task.task_id: t for t in read_records(out, Trajectory)}


def test_scored_tasks_are_played_and_scored_in_worker_processes(world: World):
    numbers = (44, 182, 419, 476, 485)  # three of them write on the same site
    tasks = {number: lite_tasks()[number] for number in numbers}
    scripts = {instruction_of(task): SCRIPTS[number] for number, task in tasks.items()}
    found = roll_out(world, list(tasks.values()), scripts)
    assert {t.env_reward for t in found.values()} == {1.0}, [(t.status, t.message, t.env_error) for t in found.values()]
    assert world.reset_service.num_resets == 1
    assert world.gitlab.log.count("POST /users/sign_in") == 2  # the check after the reset, and one for all episodes
