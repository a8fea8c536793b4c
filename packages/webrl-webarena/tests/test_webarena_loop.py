"""The whole loop on the stand-ins: training tasks, generation by an API, filters with the critic's band, evaluation."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from curriculum_builders import ChatServer
from standins.world import World

from webrl.runs.store import read_json, read_records
from webrl.types import Task, Trajectory
from webrl_webarena.tasks import instruction_of, load_suite

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.webarena]
SEEDS = {
    "gitlab": "Close my oldest issue in the first project",
    "reddit": "Post a hello to the forum about books",
    "shopping": "Put the cheapest mouse into my cart",
}


def writer(question: str, number: int) -> str:
    """Feasible is everything; every third new instruction is one of the evaluation's, in other words."""
    if question.endswith("Feasible (YES or NO):"):
        return "YES"
    site = question.splitlines()[0].removeprefix("Site: ")
    asked = next(task for task in load_suite("webarena_lite") if task.site == site)
    return instruction_of(asked) if number % 3 == 0 else f"Open page number {number} of the list on {site}"


def write_config(world: World, folder: Path, url: str) -> Path:
    seeds = folder / "seeds.jsonl"
    seeds.write_text("".join(json.dumps({"task": text, "web": site}) + "\n" for site, text in SEEDS.items()))
    rollout = {"max_steps": 2, "max_new_tokens": 16, "envs_per_worker": 3}
    config: dict[str, Any] = {
        "name": "wa", "runs_dir": str(folder / "runs"), "num_phases": 1, "trackers": [],
        "models": {"max_prompt_tokens": 1500},
        "tasks": {"suite": "webarena_lite", "num_seed_tasks": 3, "num_eval_tasks": 5},
        "generate": {"num_tasks": 12, "tasks_per_prompt": 1,
                     "engine": {"kind": "openai", "urls": [url], "model_name": "writer"}},
        "filter": {"value_low": 0.0, "value_high": 1.0}, "accept": {"tasks": 2},
        "rollout": rollout | {"webarena": world.webarena(train_files=[str(seeds)])},
    }  # fmt: skip
    path = folder / "wa.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_a_phase_runs_end_to_end_and_keeps_evaluation_apart(world: World, tmp_path: Path):
    async def run() -> tuple[int | None, str, str]:
        async with ChatServer(writer).running() as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "webrl.cli", "run", str(write_config(world, tmp_path, server.url)),
                cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            out, errors = await process.communicate()
            return process.returncode, out.decode(), errors.decode()

    code, out, errors = asyncio.run(run())
    assert code == 0, errors[-3000:]
    assert "without crashes" in out
    run_folder = tmp_path / "runs" / "wa"
    start, phase = read_json(run_folder / "summary.json")["phases"]
    assert start["num_kept"] == start["num_rollouts"] == 3
    assert phase["num_generated"] == phase["num_kept"] + sum(phase["dropped"].values()) == 12
    assert phase["dropped"]["leakage"] >= 2
    assert phase["num_rollouts"] == phase["num_kept"]
    assert phase["eval"]["webarena"]["headline"]["episodes"] == 5
    folder = run_folder / "phase_01"
    assert phase["filter_notes"] == {}
    tasks = list(read_records(folder / "tasks.jsonl", Task))
    assert {task.start_url for task in tasks} <= {f"__{site.upper()}__" for site in SEEDS}
    assert {task.lineage.model for task in tasks} == {"writer"}
    for trajectory in read_records(folder / "trajectories.jsonl", Trajectory):
        assert trajectory.status.finished, trajectory.message
        assert (trajectory.env_reward, trajectory.env_error) == (None, "")
    assert len(list((folder / "eval_tasks").iterdir())) == 5
