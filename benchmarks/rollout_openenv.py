"""What OpenEnv adds: CPU time a step over in-process at eight sessions, and latency against the number of sessions.

`python benchmarks/rollout_openenv.py [--seconds 10]`. Both sides play the same
pages with the same null policy and observe text. In-process: environments on one browser in this process. OpenEnv: a
server as `webrl serve-env` starts it, with one worker, and our client in this process. CPU time is that of all
processes together (client, server, worker, Playwright's driver, Chromium). At eight sessions the sides take turns,
`ROUNDS` times, so that what else the machine does falls on both. `openenv_overhead_ms` is the difference.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import json
import operator
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
from rollout import HERE, play_episode

from webrl.config import RolloutConfig
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv
from webrl.rollouts.interface import Env, Observation, StepResult
from webrl.types import Task
from webrl_serve.openenv.client import RemotePool

SESSIONS = (1, 2, 4, 8)
ROUNDS = 3


@dataclass(frozen=True)
class Figures:
    """One measurement, or several together."""

    cpu_s: float
    """CPU seconds of all processes, resets included."""
    seconds: float
    """How long it took."""
    times: list[float]
    """Seconds from action to observation, of each step."""

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds a step."""
        return 1000 * self.cpu_s / len(self.times)

    @property
    def latency_ms(self) -> float:
        """Median milliseconds of a step."""
        return 1000 * statistics.median(self.times)

    @property
    def steps_per_s(self) -> float:
        """Of all sessions together."""
        return len(self.times) / self.seconds

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.cpu_s + other.cpu_s, self.seconds + other.seconds, self.times + other.times)


def cpu_seconds() -> float:
    """CPU seconds so far of this process and all below it."""
    total = 0.0
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            times = process.cpu_times()
            total += times.user + times.system
    return total


class Timed:
    """An environment whose steps are timed."""

    def __init__(self, env: Env, times: list[float]) -> None:
        self._env = env
        self._times = times

    async def reset(self, task: Task) -> Observation:
        """Not timed."""
        return await self._env.reset(task)

    async def step(self, action_text: str) -> StepResult:
        """Timed."""
        start = time.perf_counter()
        result = await self._env.step(action_text)
        self._times.append(time.perf_counter() - start)
        return result

    async def close(self) -> None:
        """Close the environment."""
        await self._env.close()


async def play(envs: Sequence[Env], seconds: float) -> Figures:
    """Keep `envs` busy, after one episode each that does not count."""
    await asyncio.gather(*(play_episode(env, random.Random(-1 - n)) for n, env in enumerate(envs)))
    times: list[float] = []
    end = time.perf_counter() + seconds

    async def player(number: int) -> None:
        env, rng = Timed(envs[number], times), random.Random(number)
        while time.perf_counter() < end:
            await play_episode(env, rng)

    before, start = cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(player(number) for number in range(len(envs))))
    spent, after = time.perf_counter() - start, cpu_seconds()
    return Figures(after - before, spent, times)


async def in_process(num_sessions: int, seconds: float) -> Figures:
    """Environments on one browser in this process."""
    async with Browser() as browser:
        envs = [BrowserEnv(browser, RolloutConfig()) for _ in range(num_sessions)]
        figures = await play(envs, seconds)
        await asyncio.gather(*(env.close() for env in envs))
        return figures


async def over_openenv(url: str, num_sessions: int, seconds: float) -> Figures:
    """Sessions on a server."""
    config = RolloutConfig(env="openenv", urls=(url,), num_workers=1, envs_per_worker=num_sessions)
    async with RemotePool(config) as pool, contextlib.AsyncExitStack() as stack:
        return await play([await stack.enter_async_context(pool.env()) for _ in range(num_sessions)], seconds)


@contextlib.contextmanager
def server(num_sessions: int, *options: str) -> Iterator[str]:
    """`webrl serve-env` on a free port of loopback; gives its URL."""
    settings = ["rollout.num_workers=1", f"rollout.envs_per_worker={num_sessions}"]
    settings += ["rollout.recycle_after=1000000"]  # a worker that ends takes its CPU time along
    process = subprocess.Popen(
        [sys.executable, "-m", "webrl.cli", "serve-env", "--port", "0", *options, *settings],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def measure(seconds: float) -> dict[str, float]:
    """`openenv_overhead_ms` and what it is made of; prints latency against the number of sessions."""
    figures: dict[str, float] = {}
    most = max(SESSIONS)
    with server(most) as url:
        for num_sessions in SESSIONS:
            rounds = ROUNDS if num_sessions == most else 1
            pairs = [
                (asyncio.run(in_process(num_sessions, seconds)), asyncio.run(over_openenv(url, num_sessions, seconds)))
                for _ in range(rounds)
            ]
            local, remote = (functools.reduce(operator.add, side) for side in zip(*pairs, strict=True))
            print(
                f"{num_sessions} sessions: latency {local.latency_ms:.1f} ms in process, {remote.latency_ms:.1f} over"
                f" OpenEnv; CPU {local.cpu_ms:.1f} and {remote.cpu_ms:.1f} ms a step;"
                f" {local.steps_per_s:.0f} and {remote.steps_per_s:.0f} steps/s",
                flush=True,
            )
            figures[f"in_process_latency_ms_{num_sessions}"] = local.latency_ms
            figures[f"openenv_latency_ms_{num_sessions}"] = remote.latency_ms
    figures |= {
        "in_process_cpu_ms": local.cpu_ms,
        "openenv_cpu_ms": remote.cpu_ms,
        "openenv_overhead_ms": remote.cpu_ms - local.cpu_ms,
    }
    return {name: round(value, 2) for name, value in figures.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="length of each measurement")
    print(json.dumps(measure(parser.parse_args().seconds)))
