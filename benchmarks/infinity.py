"""Apps of WebArena-Infinity under `tasks.suite=web`: what doing nothing scores, and what the solved state scores.

    python benchmarks/infinity.py CLONE/apps/* --tasks 10

Of every app's held-out tasks (`real-tasks.json`) some, spread evenly, are each opened in a real browser against a
server of their own. They are scored as they stand; then the app's own sanity check, which knows each task's end state,
changes the state at the server, and they are scored again. A task is sound if that gives 0 and 1. Last line: JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

from webrl.config import load_config
from webrl.rollouts.browser import Browser
from webrl.suites.web.env import WebEnv
from webrl.suites.web.infinity import is_app, write_app
from webrl.suites.web.tasks import heldout_tasks, training_tasks
from webrl.types import Task


def solvers(app: Path) -> dict[str, Any]:
    """The functions of the app's sanity check that bring the state of a task about, by task id."""
    for name in ("sanity_check_real.py", "sanity_check.py"):
        if not (app / name).is_file():
            continue
        spec = importlib.util.spec_from_file_location(f"sanity_{app.name}", app / name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for value in vars(module).values():
            if isinstance(value, dict) and value and all(callable(solve) for solve in value.values()):
                return value
    return {}


async def try_task(env: WebEnv, task: Task, solve: Any) -> tuple[str, str, float]:
    """How it scores idle and solved, and the seconds until its first page was there."""
    start = time.perf_counter()
    await env.reset(task)
    ready = time.perf_counter() - start
    idle = await env.finish()
    if solve is None:
        return _word(idle), "no solver", ready
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{env._server.port}", trust_env=False) as client:
        state = (await client.get("/api/state")).json()
        changed = solve(state)
        (await client.put("/api/state", json=state if changed is None else changed)).raise_for_status()
    return _word(idle), _word(await env.finish()), ready


def _word(score: Any) -> str:
    return f"undecided ({score.note})" if score.reward is None else str(int(score.reward))


async def try_app(app: Path, folder: Path, num_tasks: int, at_a_time: int) -> dict[str, Any]:
    """Counts of one app."""
    out = folder / f"{app.name}.yaml"
    write_app(app, out, app.name)
    config = load_config(out)
    known, tasks = solvers(app), heldout_tasks(config)
    chosen = tasks[:: max(1, len(tasks) // num_tasks)][:num_tasks]
    ends: list[tuple[str, str, float]] = []
    unsound: list[str] = []
    async with Browser() as browser:
        waiting = iter(chosen)

        async def play() -> None:
            env = WebEnv(browser, config.rollout)
            try:
                for task in waiting:
                    end = await try_task(env, task, known.get(task.task_id.rpartition("-")[2]))
                    ends.append(end)
                    if end[:2] != ("0", "1"):
                        unsound.append(f"{task.task_id}: idle {end[0]}, solved {end[1]}")
            finally:
                await env.close()

        await asyncio.gather(*(play() for _ in range(at_a_time)))
    idle, solved = (Counter(end[place].partition(" (")[0] for end in ends) for place in (0, 1))
    ready = sorted(end[2] for end in ends)
    print(f"{app.name}: {len(training_tasks(config))} + {len(tasks)} tasks; of {len(ends)} held-out ones idle ", end="")
    print(f"{dict(idle)}, solved {dict(solved)}; first page after {ready[len(ready) // 2]:.1f} s (median)", flush=True)
    for line in unsound:
        print(f"  {line}")
    return {"tasks": len(ends), "idle": idle, "solved": solved}


def main() -> None:
    """Try every app."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("apps", type=Path, nargs="+", help="folders of apps; others are passed over")
    parser.add_argument("--tasks", type=int, default=10, help="held-out tasks of each (default: 10)")
    parser.add_argument("--at-a-time", type=int, default=2, help="episodes at a time (default: 2)")
    args = parser.parse_args()
    idle: Counter[str] = Counter()
    solved: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for app in filter(is_app, args.apps):
            found = asyncio.run(try_app(app, Path(folder), args.tasks, args.at_a_time))
            idle += found["idle"]
            solved += found["solved"]
    print(json.dumps({"tasks": idle.total(), "idle": idle, "solved": solved}))


if __name__ == "__main__":
    main()
