"""Environment speed: ours against stock BrowserGym and against the direct loop, memory, growth over many episodes.

`python benchmarks/rollout.py [--seconds 20] [--episodes 2000] [--only stock,ours,...]`
`python benchmarks/rollout.py --short`: ours and the direct loop in turn, with the accessibility tree, in two minutes

All parts play the same MiniWoB pages, episodes of at most ten steps, with a null policy: a scripted action that fits a
random element (the direct loop, which reads nothing, clicks anywhere). Beside steps per second stands the CPU time a
step takes in all processes together, which says more on a machine that does other things as well.

The last line of the output is one JSON object; parts left out are null in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from stock_browsergym import scripted_action  # noqa: E402

from webrl.config import RolloutConfig  # noqa: E402
from webrl.rollouts.interface import Env  # noqa: E402
from webrl.rollouts.pool import EnvPool  # noqa: E402
from webrl.types import Task  # noqa: E402

PAGES = (
    *("click-button", "login-user", "click-checkboxes", "enter-text", "email-inbox", "click-tab"),
    *("click-link", "navigate-tree", "click-option", "form-sequence", "search-engine", "choose-list"),
)
EPISODE_STEPS = 10
NUM_ENVS = 8


async def play_episode(env: Env, rng: random.Random) -> int:
    """One episode of the null policy; gives its steps."""
    page, seed = rng.choice(PAGES), rng.randrange(10**6)
    steps = 0
    text = (await env.reset(Task(task_id="benchmark", site=f"miniwob.{page}", seed=seed))).text
    for _ in range(EPISODE_STEPS):
        steps += 1
        result = await env.step(scripted_action(text, rng))
        text = result.observation.text
        if result.done:
            break
    return steps


async def play_pool(
    config: RolloutConfig, stop: Callable[[int], bool], on_episode: Callable[[int, EnvPool], None] | None = None
) -> tuple[int, float]:
    """Keep all environments of a pool busy until `stop(episodes)`; (steps, seconds) after everything has started."""
    async with EnvPool(config) as pool:
        size = pool.size
        totals = {"steps": 0, "episodes": 0}
        begun: list[float] = []
        ready = asyncio.Barrier(size)

        async def player(number: int) -> None:
            rng = random.Random(number)
            async with pool.env() as env:
                await play_episode(env, rng)
            await ready.wait()
            begun.append(time.perf_counter())
            while not stop(totals["episodes"]):
                async with pool.env() as env:
                    steps = await play_episode(env, rng)
                totals["steps"] += steps
                totals["episodes"] += 1
                if on_episode:
                    on_episode(totals["episodes"], pool)

        await asyncio.gather(*(player(number) for number in range(size)))
        return totals["steps"], time.perf_counter() - min(begun)


class CpuMeter:
    """CPU seconds of this process and all below it, those that end meanwhile included (sampled)."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}
        self._before: dict[tuple[int, float], float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> CpuMeter:
        self.begin_again()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def begin_again(self) -> None:
        """Count from now on."""
        self._sample()
        self._before = dict(self._seen)

    @property
    def seconds(self) -> float:
        """So far."""
        return sum(spent - self._before.get(key, 0.0) for key, spent in list(self._seen.items()))

    def _run(self) -> None:
        while not self._over.wait(0.3):
            self._sample()
        self._sample()

    def _sample(self) -> None:
        me = psutil.Process()
        for process in [me, *me.children(recursive=True)]:
            try:
                key = process.pid, process.create_time()
                times = process.cpu_times()
                self._seen[key] = times.user + times.system
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue


@dataclass(frozen=True)
class Rate:
    """How fast something went."""

    steps_per_s: float
    cpu_ms: float
    """CPU milliseconds a step, start-up included for stock BrowserGym's processes alone."""

    def __str__(self) -> str:
        return f"{self.steps_per_s:.1f} ({self.cpu_ms:.1f} CPU-ms)"


def measure_ours(seconds: float, form: str, num_workers: int, envs_per_worker: int) -> Rate:
    """Our pool."""

    async def run(meter: CpuMeter) -> tuple[int, float]:
        end: list[float] = []

        def over(_: int) -> bool:
            if not end:
                end.append(time.perf_counter() + seconds)
                meter.begin_again()
            return time.perf_counter() >= end[0]

        config = RolloutConfig(num_workers=num_workers, envs_per_worker=envs_per_worker, observation=form)  # type: ignore[arg-type]
        return await play_pool(config, over)

    with CpuMeter() as meter:
        steps, spent = asyncio.run(run(meter))
    return Rate(steps / spent, 1000 * meter.seconds / steps)


def measure_stock(seconds: float, num_processes: int) -> Rate:
    """Stock BrowserGym with one environment a process."""
    command = [
        sys.executable,
        HERE / "stock_browsergym.py",
        "loop",
        "--pages",
        ",".join(PAGES),
        "--seconds",
        str(seconds),
    ]
    return run_together([command] * num_processes)


def measure_direct(seconds: float, num_processes: int, form: str) -> Rate:
    """The direct Playwright loop: the limit that an environment built on Playwright can come near."""
    command = [sys.executable, __file__, "--direct", form, "--seconds", str(seconds)]
    return run_together([command] * num_processes)


def run_together(commands: Sequence[Sequence[Any]]) -> Rate:
    """Processes side by side, each of which prints its steps and seconds last, and its CPU seconds if it knows them."""
    with CpuMeter() as meter:
        answers = _answers(commands)
    steps = sum(answer["steps"] for answer in answers)
    spent = sum(a["cpu_seconds"] for a in answers) if "cpu_seconds" in answers[0] else meter.seconds
    return Rate(sum(a["steps"] / a["seconds"] for a in answers), 1000 * spent / max(1, steps))


def measure_in_turn(seconds: float, rounds: int, num_workers: int) -> dict[str, float]:
    """Ours and the direct loop in turn, both after their start: what else the machine does slows both."""
    rates: dict[str, list[Rate]] = {"ours": [], "limit": []}
    for number in range(rounds):
        for name in list(rates)[:: 1 if number % 2 else -1]:
            ours = name == "ours"
            rate = (
                measure_ours(seconds, "axtree", num_workers, NUM_ENVS // num_workers)
                if ours
                else measure_direct(seconds, num_workers, "axtree")
            )
            rates[name].append(rate)
            print(f"{name:5} {rate}", flush=True)
    mean = {name: sum(r.steps_per_s for r in found) / rounds for name, found in rates.items()}
    cpu = {
        name: sum(r.cpu_ms * r.steps_per_s for r in found) / sum(r.steps_per_s for r in found)
        for name, found in rates.items()
    }
    print(
        f"ours {mean['ours']:.1f} steps/s ({cpu['ours']:.1f} CPU-ms), direct loop {mean['limit']:.1f} "
        f"({cpu['limit']:.1f} CPU-ms): {mean['ours'] / mean['limit']:.2f} of its steps, "
        f"{cpu['limit'] / cpu['ours']:.2f} by CPU time"
    )
    return {
        "steps_per_s": mean["ours"],
        "cpu_ms": cpu["ours"],
        "limit_steps_per_s": mean["limit"],
        "limit_cpu_ms": cpu["limit"],
        "ratio_vs_limit": mean["ours"] / mean["limit"],
    }


def _answers(commands: Sequence[Sequence[Any]]) -> list[dict[str, float]]:
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for command in commands]
    answers = []
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            raise SystemExit(f"a benchmark process ended with {process.returncode}")
        answers.append(json.loads(output.splitlines()[-1]))
    return answers


async def direct_loop(seconds: float, form: str) -> dict[str, float]:
    """One click and one look a step, reset inside the page, one page after the other; no checks of any kind.

    `axtree` takes the full accessibility tree over a DevTools session that stays open, `html` the document's source.
    """
    from webrl.rollouts.browser import Browser
    from webrl.rollouts.sites import miniwob_root

    async with Browser() as browser:
        context = await browser.new_context(viewport={"width": 332, "height": 214})
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        rng = random.Random(0)
        steps = 0
        with CpuMeter() as meter:
            start = time.perf_counter()
            for number, name in enumerate(PAGES, 1):
                await page.goto((miniwob_root() / "miniwob" / f"{name}.html").as_uri())
                while time.perf_counter() - start < seconds * number / len(PAGES):
                    steps += await _direct_episode(page, session, form, rng)
            spent = time.perf_counter() - start
        await context.close()
        return {"steps": steps, "seconds": spent, "cpu_seconds": meter.seconds}


async def _direct_episode(page: Any, session: Any, form: str, rng: random.Random) -> int:
    await page.evaluate(f"Math.seedrandom({rng.randrange(10**6)}); core.startEpisodeReal()")
    for step in range(1, EPISODE_STEPS + 1):
        await page.mouse.click(rng.randrange(5, 155), rng.randrange(55, 200))
        if form == "axtree":
            await session.send("Accessibility.getFullAXTree")
            done = await page.evaluate("WOB_DONE_GLOBAL")
        else:
            seen = await page.evaluate("[document.body.outerHTML, WOB_RAW_REWARD_GLOBAL, WOB_DONE_GLOBAL]")
            done = seen[2]
        if done:
            return step
    return EPISODE_STEPS


def pss_mb(pids: Sequence[int]) -> float:
    """Proportional set size (resident set size where the system has no other) of process trees, in MB."""
    total = 0
    for pid in pids:
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            try:
                info = process.memory_full_info()
                total += getattr(info, "pss", info.rss)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
    return total / 2**20


def measure_memory(num_episodes: int) -> tuple[float, list[tuple[int, float]]]:
    """Memory an environment at eight environments after 100 episodes, and the curve (episodes, MB an environment)."""
    curve: list[tuple[int, float]] = []
    every = max(1, min(100, num_episodes // 20))

    def look(episodes: int, pool: EnvPool) -> None:
        if episodes % every == 0:
            curve.append((episodes, round(pss_mb(pool.worker_pids) / NUM_ENVS, 1)))
            print(f"  {episodes:5d} episodes: {curve[-1][1]:6.1f} MB an environment", flush=True)

    config = RolloutConfig(num_workers=2, envs_per_worker=NUM_ENVS // 2)
    asyncio.run(play_pool(config, lambda episodes: episodes >= num_episodes, look))
    return next(mb for episodes, mb in curve if episodes >= min(100, num_episodes)), curve


def main() -> None:
    """Command line; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="length of each measurement")
    parser.add_argument("--episodes", type=int, default=2000, help="length of the memory curve")
    parser.add_argument("--only", default="stock,limit,ours,memory", help="parts to run")
    parser.add_argument("--short", action="store_true", help="ours and the direct loop in turn, and nothing else")
    parser.add_argument("--rounds", type=int, default=4, help="turns of --short")
    parser.add_argument("--direct", choices=["axtree", "html"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.direct:
        print(json.dumps(asyncio.run(direct_loop(options.seconds, options.direct))))
        return
    if options.short:
        print(
            json.dumps(_rounded(measure_in_turn(options.seconds / 2, options.rounds, _cores()) | {"cores": _cores()}))
        )
        return
    print(json.dumps(measure(set(options.only.split(",")), options.seconds, options.episodes)))


def measure(parts: set[str], seconds: float, num_episodes: int) -> dict[str, Any]:
    """All figures; prints as it goes."""
    cores = _cores()
    keys = ("stock_steps_per_s", "steps_per_s", "ratio_vs_stock", "limit_steps_per_s", "pss_mb_per_env")
    figures: dict[str, Any] = dict.fromkeys(keys)
    figures["cores"] = cores
    if "stock" in parts:
        rates = {n: measure_stock(seconds, n) for n in (1, 2, 4, 8)}
        _table("stock BrowserGym, steps/s by processes", rates)
        best = max(rates.values(), key=lambda rate: rate.steps_per_s)
        figures |= {"stock_steps_per_s": best.steps_per_s, "stock_cpu_ms": best.cpu_ms}
    if "limit" in parts:
        rates = {form: measure_direct(seconds, cores, form) for form in ("axtree", "html")}
        _table(f"direct Playwright loop on {cores} cores, steps/s", rates)
        figures |= {"limit_steps_per_s": rates["axtree"].steps_per_s, "limit_cpu_ms": rates["axtree"].cpu_ms}
        figures |= {"limit_html_steps_per_s": rates["html"].steps_per_s, "limit_html_cpu_ms": rates["html"].cpu_ms}
    if "ours" in parts:
        rates = {form: measure_ours(seconds, form, cores, NUM_ENVS // 2) for form in ("axtree", "html")}
        _table(f"ours, {cores} workers x {NUM_ENVS // 2} environments, steps/s", rates)
        figures |= {"steps_per_s": rates["axtree"].steps_per_s, "cpu_ms": rates["axtree"].cpu_ms}
        figures |= {"html_steps_per_s": rates["html"].steps_per_s, "html_cpu_ms": rates["html"].cpu_ms}
    if figures["stock_steps_per_s"] and figures["steps_per_s"]:
        figures["ratio_vs_stock"] = figures["steps_per_s"] / figures["stock_steps_per_s"]
        print(f"ours / stock: {figures['ratio_vs_stock']:.1f}")
    if "memory" in parts:
        print("memory, eight environments:")
        figures["pss_mb_per_env"], curve = measure_memory(num_episodes)
        figures["pss_curve"] = curve
    return _rounded(figures)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}


def _table(title: str, rates: dict[Any, Rate]) -> None:
    print(title + ": " + ", ".join(f"{key}: {rate}" for key, rate in rates.items()), flush=True)


if __name__ == "__main__":
    main()
