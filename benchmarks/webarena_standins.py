"""The WebArena path on loopback stand-ins: all tasks instantiate, the scripted ones are scored right, steps are fast.

    python benchmarks/webarena_standins.py [--steps 12] [--envs 4]

Needs `make webarena` and a Chromium, no network. The stand-ins (packages/webrl-webarena/tests/standins) have the
log-in forms and the markup that the tasks' evaluators read; they say nothing about how an agent does on the real sites.
The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages" / "webrl-webarena" / "tests"))

from standins.experts import DO_NOTHING, SCRIPTS, find  # noqa: E402
from standins.play import evaluator_kinds, failures, lite_tasks, opened, play  # noqa: E402
from standins.world import World  # noqa: E402

from webrl.cli.command import end_clearly  # noqa: E402
from webrl.config.extras import require  # noqa: E402

TIMED_TASKS = {44: "url_match: the cheapest validation there is", 419: "program_html: the evaluator opens a page"}
LINKS = ("Issues", "Projects")


def main() -> None:
    """Run everything, print a report, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="timed steps a task and environment")
    parser.add_argument("--envs", type=int, default=4, help="environments that play side by side")
    parser.add_argument("--stock", type=int, metavar="TASK", help=argparse.SUPPRESS)
    args = parser.parse_args()
    require("webarena", "benchmarks/webarena_standins.py")
    if args.stock is not None:
        print(json.dumps(stock_steps(args.stock, args.steps)))
        return
    with tempfile.TemporaryDirectory() as folder, World(Path(folder)) as world:
        result = instantiate(world) | solve(world, args.envs) | compare(world, args.steps)
    print(json.dumps(result))


def instantiate(world: World) -> dict[str, Any]:
    """Build every task of both suites, as BrowserGym's own classes and as ours."""
    from webrl_site.sites import resolve
    from webrl_webarena.sites import SITES
    from webrl_webarena.tasks import config_of, load_suite, sites_of

    os.environ.update(world.variables())
    from browsergym.webarena.config import TASK_IDS as FULL
    from browsergym.webarena.task import GenericWebArenaTask
    from browsergym.webarenalite.config import TASK_IDS as LITE
    from browsergym.webarenalite.task import WebArenaLiteTask

    urls = {site.name: site.url for site in world.sites}
    counts = {}
    suites = (("webarena_lite", LITE, WebArenaLiteTask), ("webarena", FULL, GenericWebArenaTask))
    for suite, numbers, task_class in suites:
        stock = [task_class(seed=0, task_id=number).task_configs[0] for number in numbers]
        ours = load_suite(suite)  # type: ignore[arg-type]
        by_number = {int(task.task_id.rpartition(".")[2]): task for task in ours}
        for number, config in zip(numbers, stock, strict=True):
            task = by_number[number]
            given = {name: urls[name] for name in sites_of(task)}
            assert resolve(config_of(task), given, task.task_id, SITES) == config, (
                f"{task.task_id} differs from BrowserGym's"
            )
        counts[suite] = len(ours)
        print(f"{suite}: {len(ours)} tasks instantiate, equal to BrowserGym's", flush=True)
    return {"tasks_instantiated": sum(counts.values()), "instantiated": counts}


def solve(world: World, envs: int) -> dict[str, Any]:
    """Play the scripted tasks from reset to validated score: by experts, and by an agent that does nothing."""
    tasks = {number: task for number, task in lite_tasks().items() if number in SCRIPTS}
    start = time.perf_counter()
    expert = asyncio.run(play(world, tasks, None, num_envs=envs))
    seconds = time.perf_counter() - start
    asked = len(world.judge.questions)
    world.reset()
    idle = asyncio.run(play(world, tasks, DO_NOTHING, num_envs=envs))
    world.reset()
    solved = [n for n, t in expert.items() if t.env_reward == 1]
    unsolved = [n for n, t in idle.items() if t.env_reward == 0]
    for line in failures({n: t for n, t in expert.items() if n not in solved}):
        print(f"expert failed {line}")
    kinds = sorted({kind for task in tasks.values() for kind in evaluator_kinds(task.extra["webarena"]["eval"])})
    every = {kind for task in lite_tasks().values() for kind in evaluator_kinds(task.extra["webarena"]["eval"])}
    sites = sorted({site for task in tasks.values() for site in task.extra["webarena"]["sites"]})
    print(f"{len(tasks)} tasks on {', '.join(sites)}: expert {len(solved)}/{len(tasks)}, do-nothing agent "
          f"{len(tasks) - len(unsolved)}/{len(tasks)}; {seconds:.0f} s, judge asked {asked} times")  # fmt: skip
    print("evaluators: " + "; ".join(kinds), flush=True)
    return {
        "tasks_run": len(tasks),
        "expert_solved": len(solved),
        "do_nothing_solved": len(tasks) - len(unsolved),
        "evaluator_types_run": kinds,
        "evaluator_types_missing": sorted(every - set(kinds)),
        "sites_run": sites,
        "logins_run": sorted({"shopping", "shopping_admin", "reddit", "gitlab"} & set(sites)),
    }


def compare(world: World, steps: int) -> dict[str, Any]:
    """Seconds a step and a reset, ours and BrowserGym's, on the same pages with the same actions."""
    ratios, details = [], {}
    for number, why in TIMED_TASKS.items():
        stock = run_stock(world, number, steps)
        ours = asyncio.run(our_steps(world, number, steps))
        medians = {name: statistics.median(times["steps"]) for name, times in (("stock", stock), ("ours", ours))}
        ratio = medians["stock"] / medians["ours"]
        ratios.append(ratio)
        print(
            f"task {number} ({why}): step {medians['stock']:.3f} s stock, {medians['ours']:.3f} s ours, "
            f"ratio {ratio:.1f}; reset {stock['reset']:.2f} s stock (log-in form), {ours['reset']:.2f} s (minted)",
            flush=True,
        )
        details[str(number)] = {"stock_step_s": medians["stock"], "step_s": medians["ours"], "ratio": round(ratio, 1),
                                "stock_reset_s": stock["reset"], "reset_s": ours["reset"]}  # fmt: skip
    return {"step_ratio_vs_stock": round(min(ratios), 1), "timed": details}


async def our_steps(world: World, number: int, steps: int) -> dict[str, Any]:
    """Times of our environment; the log-in is minted before, as in any run after its first episode."""
    async with opened(world.config()) as make:
        env, task = make(), lite_tasks()[number]
        await env.reset(task)
        start = time.perf_counter()
        text = (await env.reset(task)).text
        times: dict[str, Any] = {"reset": time.perf_counter() - start, "steps": []}
        for index in range(steps):
            action = f"click({find(text, 'link', LINKS[index % 2])!r})"
            start = time.perf_counter()
            result = await env.step(action)
            times["steps"].append(time.perf_counter() - start)
            assert not result.error, result.error
            text = result.observation.text
    return times


def run_stock(world: World, number: int, steps: int) -> dict[str, Any]:
    """Times of BrowserGym's own environment, in a process of its own."""
    command = [sys.executable, __file__, "--stock", str(number), "--steps", str(steps)]
    env = {**os.environ, **world.variables(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"stock BrowserGym failed: {done.stderr[-2000:]}")
    times: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return times


def stock_steps(number: int, steps: int) -> dict[str, Any]:
    """BrowserGym's environment as it comes: slow_mo 1000, log-in form at reset, validation at each step."""
    import stock_browsergym as stock

    stock.patch_browser()
    from browsergym.core.env import BrowserEnv
    from browsergym.webarenalite.task import WebArenaLiteTask

    env = BrowserEnv(task_entrypoint=WebArenaLiteTask, task_kwargs={"task_id": number}, headless=True)
    start = time.perf_counter()
    observation, _ = env.reset(seed=0)
    times: dict[str, Any] = {"reset": time.perf_counter() - start, "steps": []}
    for index in range(steps):
        action = f"click({find(stock.text_of(observation), 'link', LINKS[index % 2])!r})"
        start = time.perf_counter()
        observation, *_ = env.step(action)
        times["steps"].append(time.perf_counter() - start)
        assert not observation["last_action_error"], observation["last_action_error"]
    env.close()
    return times


if __name__ == "__main__":
    sys.exit(end_clearly(sys.argv[0], main))
