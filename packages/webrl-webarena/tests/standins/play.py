"""Plays tasks on the stand-ins, from reset to validated score."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import cache
from typing import Any

from webrl.config import RolloutConfig
from webrl.rollouts.browser import Browser
from webrl.rollouts.episode import run_episode
from webrl.rollouts.suite import score_episode
from webrl.types import Task, Trajectory
from webrl_webarena.env import SiteAccess, WebArenaEnv
from webrl_webarena.tasks import load_suite

from .experts import SCRIPTS, Script, Scripted
from .world import World


def training_task(task_id: str, site: str, instruction: str) -> Task:
    """A task without a reference at a site's start page."""
    return Task(task_id, site, instruction=instruction, start_url=f"__{site.upper()}__")


@cache
def lite_tasks() -> dict[int, Task]:
    """WebArena-Lite by BrowserGym's task number."""
    return {int(task.task_id.rpartition(".")[2]): task for task in load_suite("webarena_lite")}


def evaluator_kinds(config: dict[str, Any]) -> list[str]:
    """What the evaluators of a task do, e.g. `string_match/fuzzy_match` or `program_html/last/exact_match`."""
    kinds = []
    if "string_match" in config["eval_types"]:
        kinds += [f"string_match/{approach}" for approach in config["reference_answers"]]
    if "url_match" in config["eval_types"]:
        kinds.append("url_match")
    for target in config["program_html"] if "program_html" in config["eval_types"] else ():
        url = "func" if target["url"].startswith("func") else "last" if target["url"] == "last" else "url"
        locator = "page" if not target["locator"].strip() else "func" if target["locator"].startswith("func:") else "js"
        kinds += [f"program_html/{url}/{locator}/{approach}" for approach in target["required_contents"]]
    return kinds


def few_of_every_kind(tasks: Mapping[int, Task]) -> dict[int, Task]:
    """Tasks that are together on all sites (and pairs of sites), and are scored in every way and by every function."""

    def covered(task: Task) -> set[str]:
        evaluation = task.extra["webarena"]["eval"]
        functions = re.findall(r"func:(\w+)", str(evaluation["program_html"]))
        return {task.site, *evaluator_kinds(evaluation), *functions}

    left = {number: covered(task) for number, task in tasks.items()}
    wanted, chosen = set().union(*left.values()), {}
    while wanted:
        best = max(left, key=lambda number: len(left[number] & wanted))
        chosen[best] = tasks[best]
        wanted -= left.pop(best)
    return chosen


@asynccontextmanager
async def opened(
    config: RolloutConfig, open_browser: Callable[[], AbstractAsyncContextManager[Browser]] = Browser
) -> AsyncIterator[Callable[[], WebArenaEnv]]:
    """Makes environments on one browser, with one access to the sites."""
    access = SiteAccess(config.webarena)
    async with open_browser() as browser, AsyncExitStack() as closing:
        closing.push_async_callback(access.evaluator.close)

        def make() -> WebArenaEnv:
            env = WebArenaEnv(browser, config, access)
            closing.push_async_callback(env.close)
            return env

        yield make


async def play(
    world: World,
    tasks: Mapping[int, Task],
    script: Script | None,
    config: RolloutConfig | None = None,
    num_envs: int = 1,
    open_browser: Callable[[], AbstractAsyncContextManager[Browser]] = Browser,
) -> dict[int, Trajectory]:
    """Play each task with its expert (`script` None) or with one script for all."""
    config = config or world.config(max_steps=15)
    urls = {site.name: site.url for site in world.sites}
    queue, found = list(tasks.items()), dict[int, Trajectory]()
    async with opened(config, open_browser) as make:

        async def player() -> None:
            env = make()
            while queue:
                number, task = queue.pop(0)
                policy = Scripted(script or SCRIPTS[number], urls)
                trajectory = await run_episode(env, policy, task, config, trajectory_id=task.task_id)
                found[number] = await score_episode(env, trajectory)

        await asyncio.gather(*(player() for _ in range(num_envs)))
    return found


def scores(found: Mapping[int, Trajectory]) -> dict[int, float | None]:
    return {number: trajectory.env_reward for number, trajectory in sorted(found.items())}


def failures(found: Mapping[int, Trajectory]) -> Sequence[str]:
    return [
        f"{n}: {t.status} {t.message} {t.env_error} {[(s.action, s.error) for s in t.steps]}" for n, t in found.items()
    ]
