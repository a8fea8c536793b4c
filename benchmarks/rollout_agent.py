"""Whole episodes with the tiny actor in process: agent steps and episodes per second.

`python benchmarks/rollout_agent.py [--seconds 20]`. Plays the demo's seed tasks
with the demo's settings, about as many as fit into the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

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
    """`agent_steps_per_s` and `agent_episodes_per_s`."""
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
        await collect(tasks, config, policy, folder / "t.jsonl", phase=0, prefix="p")
        wall = time.perf_counter() - wall
    played = list(read_records(folder / "t.jsonl", Trajectory))
    return {
        "agent_steps_per_s": sum(len(t.steps) for t in played) / wall,
        "agent_episodes_per_s": len(played) / wall,
    }


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="rough length")
    print(json.dumps({key: round(value, 3) for key, value in measure(parser.parse_args().seconds).items()}))


if __name__ == "__main__":
    main()
