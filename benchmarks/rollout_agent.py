"""Whole episodes with the tiny actor in process: agent steps per second, and where the time goes.

`python benchmarks/rollout_agent.py [--seconds 20]`, or as part `agent` of `rollout.py`. Plays the demo's seed tasks
with the demo's settings, about as many as fit into the time. Printed are the shares of an episode's time spent in the
browser, in the model (waiting for a place in its batch included) and elsewhere (resets, waiting for a page), and the
shares of the machine's CPU time that this process (the model) and the browsers took.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from rollout import CpuMeter

from webrl.config import RunConfig, load_config
from webrl.llm import open_model
from webrl.llm.policy import ModelPolicy
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import seed_tasks
from webrl.runs.store import read_records
from webrl.types import Trajectory

ROOT = Path(__file__).parent.parent
EPISODES_PER_S = 8
"""What two cores reach, roughly: it sets how many episodes are played."""


def measure(seconds: float) -> dict[str, float]:
    """`agent_steps_per_s` and the shares of time."""
    num_tasks = max(16, round(EPISODES_PER_S * seconds))
    config = load_config(
        ROOT / "configs" / "demo.yaml", [f"tasks.num_seed_tasks={num_tasks}", f"models.actor={ROOT}/data/tiny/actor"]
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(_play(config, Path(folder)))
    print("agent: " + ", ".join(f"{key} {value:.3g}" for key, value in figures.items()), flush=True)
    return figures


async def _play(config: RunConfig, folder: Path) -> dict[str, float]:
    tasks = seed_tasks(config)
    async with open_model(config.models.actor, config.rollout.engine, config.models) as model:
        policy = ModelPolicy(model, config, training=True)
        await collect(tasks[:8], config, policy, folder / "warm.jsonl", phase=0, prefix="w")
        wall = time.perf_counter()
        with CpuMeter() as meter:
            await collect(tasks, config, policy, folder / "t.jsonl", phase=0, prefix="p")
        wall, own = time.perf_counter() - wall, meter.by_kind()["benchmark"]
    played = list(read_records(folder / "t.jsonl", Trajectory))
    steps = [step for t in played for step in t.steps]
    total = sum(t.seconds for t in played)
    in_model, in_browser = (sum(step.seconds[part] for step in steps) / total for part in ("policy", "browser"))
    cores = os.cpu_count() or 1
    return {
        "agent_steps_per_s": len(steps) / wall,
        "agent_episodes_per_s": len(played) / wall,
        "agent_time_in_model": in_model,
        "agent_time_in_browser": in_browser,
        "agent_time_elsewhere": 1 - in_model - in_browser,
        "agent_cpu_of_model": own / wall / cores,
        "agent_cpu_of_browsers": (meter.seconds - own) / wall / cores,
    }


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="rough length")
    print(json.dumps({key: round(value, 3) for key, value in measure(parser.parse_args().seconds).items()}))


if __name__ == "__main__":
    main()
