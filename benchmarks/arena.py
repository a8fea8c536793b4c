"""The arena: how soon it is up, how long a session takes to make, and how fast its shop is played.

`python benchmarks/arena.py [--seconds 20]`

Starts an arena of its own in a temporary folder. Players are null policies (a scripted action that fits a random
element, episodes of at most ten steps), half of them customers, half the staff. Ours begins every episode with a new
session and drops it afterwards; stock BrowserGym, which cannot, plays on in one session a process. The shop's server
runs on the same cores as the browsers, for both. Beside steps per second stands the CPU time that a step takes in all
processes together, which says more on a machine that does other things as well.

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from rollout import EPISODE_STEPS, CpuMeter, Rate, pss_mb, run_together  # noqa: E402
from stock_browsergym import scripted_action  # noqa: E402

from webrl.config import RolloutConfig  # noqa: E402
from webrl.rollouts.pool import EnvPool  # noqa: E402
from webrl.types import Task  # noqa: E402
from webrl_arena.settings import ArenaConfig  # noqa: E402
from webrl_arena.world import running  # noqa: E402
from webrl_arena.world.client import Arena  # noqa: E402
from webrl_arena.world.content import catalogue  # noqa: E402

NUM_WORKERS = 2
NUM_ROLLOUTS = 16
NUM_RESETS = 200
USERS = ("staff", f"customer:{catalogue().customers[0].email}")


def measure_resets(arena: Arena) -> dict[str, float]:
    """Milliseconds until a session with a log-in is there."""
    made = []
    for number in range(NUM_RESETS):
        begun = time.perf_counter()
        session = arena.open(USERS[number % 2])
        made.append(1000 * (time.perf_counter() - begun))
        arena.drop(session)
    return {"reset_ms": statistics.median(made), "reset_p95_ms": statistics.quantiles(made, n=20)[-1]}


async def measure_ours(arena: Arena, seconds: float, meter: CpuMeter) -> dict[str, float]:
    """Our pool with as many rollouts at once, each in a session of its own, as a run plays them."""
    steps = 0
    played = {"arena": ArenaConfig(folder=arena.folder), "num_workers": NUM_WORKERS}
    config = RolloutConfig(envs_per_worker=NUM_ROLLOUTS // NUM_WORKERS, **played)
    async with EnvPool(config) as pool:
        begun: list[float] = []
        ready = asyncio.Barrier(NUM_ROLLOUTS)

        async def player(number: int) -> None:
            nonlocal steps
            rng = random.Random(number)
            await episode(number, rng, 1)
            await ready.wait()
            if not begun:
                meter.begin_again()
            begun.append(time.perf_counter())
            while time.perf_counter() < begun[0] + seconds:
                done = await episode(number, rng, EPISODE_STEPS)
                steps += done

        async def episode(number: int, rng: random.Random, num_steps: int) -> int:
            async with pool.env() as env:
                text = (await env.reset(_task(number))).text
                for _ in range(num_steps):
                    text = (await env.step(scripted_action(text, rng))).observation.text
                await env.close()
            return num_steps

        await asyncio.gather(*(player(number) for number in range(NUM_ROLLOUTS)))
        spent, cpu_s = time.perf_counter() - begun[0], meter.seconds
        memory = pss_mb([*pool.worker_pids, arena.state.pid])
    figures = {"steps_per_s": steps / spent, "cpu_ms": 1000 * cpu_s / steps}
    return {**figures, "parallel_rollouts": NUM_ROLLOUTS, "memory_gib": memory / 1024}


def _task(number: int) -> Task:
    user = USERS[number % len(USERS)]
    start = "__SHOP_ADMIN__/" if user == "staff" else "__SHOP__/"
    extra = {"arena": {"login": user.removeprefix("customer:")}}
    return Task(task_id="benchmark", site="arena.shop", instruction="look around", start_url=start, extra=extra)


def measure_stock(arena: Arena, seconds: float, num_processes: int) -> Rate:
    """Stock BrowserGym with one environment a process."""
    sessions = [arena.open(USERS[number % 2]) for number in range(num_processes)]
    script = HERE / "stock_browsergym.py"
    return run_together(
        [[sys.executable, script, "loop", "--pages", s.enter_url, "--seconds", str(seconds)] for s in sessions]
    )


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            for key in ("first_up_s", "up_s"):  # the first makes the database
                running.stop(folder)
                begun = time.perf_counter()
                running.start(folder, 0, NUM_WORKERS)
                figures[key] = time.perf_counter() - begun
            arena = Arena.running(folder)
            figures |= measure_resets(arena)
            stock = {number: measure_stock(arena, options.seconds, number) for number in (2, 4)}
            print("stock BrowserGym, steps/s by processes:", ", ".join(f"{n}: {rate}" for n, rate in stock.items()))
            best = max(stock.values(), key=lambda rate: rate.steps_per_s)
            figures |= {"stock_steps_per_s": best.steps_per_s, "stock_cpu_ms": best.cpu_ms}
            with CpuMeter() as meter:
                figures |= asyncio.run(measure_ours(arena, options.seconds, meter))
        finally:
            running.stop(folder)
    figures["ratio_vs_stock"] = figures["steps_per_s"] / figures["stock_steps_per_s"]
    print(json.dumps({key: round(value, 2) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
