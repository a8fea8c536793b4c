"""Memory of controller, workers, browsers and OpenEnv server over thousands of episodes: is it flat?

`python benchmarks/chaos_memory.py [--episodes 5000] [--modes local,server]`. Real rollouts (`collect`, as the rollout
stage calls it) of the demo's tasks with a policy that clicks some element or other: `local` with two workers of four
pages, replaced every 500 episodes as by default; `server` over OpenEnv with one server of four sessions. Every hundred
episodes the proportional set size of each group of processes is taken. Printed are, for each, the medians of the first
and of the last fifth (the first hundred episodes, in which everything starts, left out) and a line fitted by least
squares, in MB per 1,000 episodes; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from webrl.config import RunConfig, load_config
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import seed_tasks
from webrl.types import Trajectory

ROOT = Path(__file__).parent.parent
EVERY = 100
BID = re.compile(r"\[(\w+)\]")


class ClicksAnything:
    """Clicks an element of the page, or says that it is done; costs nothing."""

    fingerprint = "clicks anything"

    async def act(self, turn: Turn) -> PolicyOutput:
        """Answer one page."""
        bids = BID.findall(turn.observation)
        clicks = bids and not turn.history
        text = f"click('{random.Random(turn.seed).choice(bids)}')" if clicks else "send_msg_to_user('done')"
        return PolicyOutput((), (), (), text, turn.observation)


class Curves:
    """MB by group of processes, every `EVERY` episodes."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self.episodes: list[int] = []
        self.groups: dict[str, list[float]] = {}
        self._count = 0

    def count(self, _: Trajectory) -> None:
        """One more episode."""
        self._count += 1
        if self._count % EVERY == 0:
            self.episodes.append(self._count)
            sizes = group_sizes(os.getpid(), self._server)
            for name, size in sizes.items():
                self.groups.setdefault(name, []).append(size)
            print(
                f"  {self._count}: {', '.join(f'{k} {v:.1f}' for k, v in sizes.items())}", file=sys.stderr, flush=True
            )

    def figures(self) -> dict[str, dict[str, float]]:
        """First and last fifth, and the slope, of each group."""
        fifth = max(1, (len(self.episodes) - 1) // 5)
        found = {}
        for name, values in self.groups.items():
            slope = float(np.polyfit(self.episodes[1:], values[1:], 1)[0]) * 1000
            found[name] = {
                "first_fifth_mb": round(statistics.median(values[1 : 1 + fifth]), 1),
                "last_fifth_mb": round(statistics.median(values[-fifth:]), 1),
                "mb_per_1000": round(slope, 2),
            }
        return found


def group_sizes(controller: int, server: int | None) -> dict[str, float]:
    """MB of proportional set size: this process, its workers and their browsers, or the server's."""
    sizes = {"controller": pss_mb(psutil.Process(controller))}
    below = psutil.Process(server or controller).children(recursive=True)
    if server is not None:
        sizes["server"] = pss_mb(psutil.Process(server))
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            command = process.cmdline()
            if "chaos_memory.py" in " ".join(command) or "serve-env" in command:
                continue
            name = "workers" if "webrl.rollouts.worker" in command else "browsers and drivers"
            sizes[name] = sizes.get(name, 0.0) + pss_mb(process)
    return sizes


def pss_mb(process: psutil.Process) -> float:
    """Proportional set size, or resident set size where the system has no other; 0 of one that has just ended."""
    try:
        info = process.memory_full_info()
        return float(getattr(info, "pss", info.rss)) / 2**20
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0.0


@contextlib.asynccontextmanager
async def surroundings(mode: str) -> AsyncIterator[tuple[list[str], int | None]]:
    """Options of the rollout, and the server's process id if there is one."""
    if mode == "local":
        yield ["rollout.num_workers=2", "rollout.envs_per_worker=4"], None
        return
    command = [sys.executable, "-m", "webrl.cli", "serve-env", "rollout.num_workers=1", "rollout.envs_per_worker=4"]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - no rush
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[-1]
        options = ["rollout.env=openenv", f"rollout.urls=[{url}]", "rollout.num_workers=1", "rollout.envs_per_worker=4"]
        yield options, server.pid
    finally:
        server.terminate()
        server.wait(30)


async def play(mode: str, num_episodes: int) -> dict[str, dict[str, float]]:
    """Play that many episodes and give the figures."""
    async with surroundings(mode) as (options, server):
        settings = [f"tasks.num_seed_tasks={num_episodes}", "rollout.max_steps=2", "rollout.recycle_after=500"]
        config: RunConfig = load_config(ROOT / "configs" / "demo.yaml", [*options, *settings])
        curves = Curves(server)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "trajectories.jsonl"
            tasks = seed_tasks(config)
            await collect(tasks, config, ClicksAnything(), out, phase=0, prefix="m", on_episode=curves.count)
        return curves.figures()


def main() -> None:
    """Command line; see the module docstring. Each mode in a process of its own, so that neither sees the other's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=5000, help="in each mode (default: 5000)")
    parser.add_argument("--modes", default="local,server", help="local, server (default: both)")
    args = parser.parse_args()
    modes = args.modes.split(",")
    if len(modes) == 1:
        print(json.dumps(asyncio.run(play(modes[0], args.episodes))))
        return
    results: dict[str, Any] = {}
    for mode in modes:
        command = [sys.executable, __file__, "--episodes", str(args.episodes), "--modes", mode]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        results[mode] = json.loads(done.stdout.splitlines()[-1])
        for group, figures in results[mode].items():
            print(f"{mode}: {group}: {', '.join(f'{k} {v}' for k, v in figures.items())}", flush=True)
    print(json.dumps({"episodes": args.episodes} | results))


if __name__ == "__main__":
    main()
