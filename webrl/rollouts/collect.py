"""The rollout stage: play every task once, write trajectories as they end, resume after a kill.

Trajectory ids are `<prefix>-<task_id>`, with `-r1`, `-r2`, … for a task that occurs again. Ids already in the output
are skipped.

With `max_failed` it stops when too many episodes fail for reasons that are not the agent's, before hours go into
useless data: as soon as the share is certain to be exceeded. The failed episodes stay in the file, so that you can see
why they failed; the next call finds the share exceeded, removes them, and plays them again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from webrl.config import RolloutConfig, RunConfig, plugins
from webrl.config.redaction import redact
from webrl.errors import BrowserError, DataError, StageError
from webrl.evaluate import success_so_far
from webrl.llm.interface import Policy
from webrl.rollouts.episode import SaveScreenshot, repeat_after_crash, run_episode
from webrl.rollouts.interface import Observation, Pool
from webrl.rollouts.pool import EnvPool, borrow
from webrl.rollouts.suite import suite_of
from webrl.runs import store
from webrl.runs.clock import progress
from webrl.runs.disk import file_name, full_disk_named, sync_tree
from webrl.types import Status, Task, Trajectory

logger = logging.getLogger(__name__)


async def collect(
    tasks: Sequence[Task],
    config: RunConfig,
    policy: Policy | Mapping[str, Policy],
    out: Path,
    *,
    phase: int,
    prefix: str,
    draws: str | None = None,
    max_failed: float | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
) -> Counter[str]:
    """Play all tasks; every one ends as exactly one line of `out`. Returns the number of episodes by status.

    Args:
        policy: of all tasks, or of each task's site.
        out: JSONL of Trajectory, appended to.
        draws: replaces `prefix` in the seeds of the draws: two calls that share it draw alike task by task (common
            random numbers). Default: the prefix.
        max_failed: share of the episodes that may fail; None: all.

    Raises:
        DataError: a task that names no known page, or two episodes of one name (before anything starts), or an
            unreadable `out`.
        UsageError: tasks or settings that `config.rollout.env` or `.backend` does not serve.
        BrowserMissing: no Chromium.
        StageError: more than `max_failed` of the episodes have failed.
    """
    for task in tasks:
        suite_of(task).check(task, config.rollout)
    statuses: Counter[str] = Counter()
    solved: Counter[bool] = Counter()  # of the episodes that have an environment reward
    episodes = name_episodes(tasks, prefix)
    num, allowed = len(episodes), math.inf if max_failed is None else max_failed * len(episodes)
    done: set[str] = set()

    def count(trajectory: Trajectory) -> None:
        statuses[str(trajectory.status)] += 1
        if trajectory.env_reward is not None:
            solved[trajectory.env_reward > 0] += 1

    if out.exists():
        store.cut_torn_line(out)
        num_failed = 0
        if max_failed is not None:
            num_failed = sum(not t.status.finished for t in store.read_records(out, Trajectory))
        if num_failed > allowed:
            logger.warning("%s: %d failed episodes are played again", out, num_failed)
            store.write_records(out, (t for t in store.read_records(out, Trajectory) if t.status.finished))
        for trajectory in store.read_records(out, Trajectory):
            done.add(trajectory.trajectory_id)
            count(trajectory)
    left = {name: task for name, task in episodes if name not in done}
    over = " over all suites" if len({suite_of(task) for task in tasks}) > 1 else ""

    with store.Appender(out) as file, progress(num, f"rollout {prefix}", "episodes", initial=num - len(left)) as bar:

        def record(trajectory: Trajectory) -> None:
            file.append(without_secrets(trajectory))
            count(trajectory)
            failed = {name: number for name, number in sorted(statuses.items()) if not Status(name).finished}
            num_failed = sum(failed.values())
            success = f"success{over} {success_so_far(solved[True], solved.total())}" if solved else ""
            bar.set_postfix_str(", ".join(filter(None, [success, f"failed {num_failed}" if num_failed else ""])))
            bar.update(1)
            if on_episode:
                on_episode(trajectory)
            if not trajectory.status.finished and num_failed > allowed:
                kinds = ", ".join(f"{name} {number}" for name, number in failed.items())
                raise StageError(
                    f"{out}: {num_failed} of {num} episodes failed for reasons other than the agent "
                    f"({kinds}), more than rollout.max_failed={max_failed:g} allows; the last, "
                    f"{trajectory.trajectory_id}: {trajectory.message:.300}; fix that, and the same command plays the "
                    "failed ones again"
                )

        async def play(pool: Pool, name: str, task: Task) -> Trajectory:
            async with pool.env() as env:
                trajectory = await run_episode(
                    env,
                    policy[task.site] if isinstance(policy, Mapping) else policy,
                    task,
                    config.rollout,
                    trajectory_id=name,
                    phase=phase,
                    seed=config.seed,
                    draws=name.replace(prefix, draws or prefix, 1),
                    save_screenshot=screenshot_saver(config.rollout, out, name),
                )
                return await suite_of(task).finish(env, trajectory)

        async def work(pool: Pool, queue: Iterator[tuple[str, Task]]) -> None:
            for name, task in queue:
                trajectory = await repeat_after_crash(partial(play, pool, name, task), config.rollout, name)
                if any(step.screenshot for step in trajectory.steps):  # on the disk before the line that names them
                    await asyncio.to_thread(sync_tree, screenshot_folder(out, name))
                record(trajectory)

        if left:
            async with open_pool(config.rollout, len(left)) as pool:
                queue = iter(left.items())
                workers = [asyncio.create_task(work(pool, queue)) for _ in range(min(pool.size, len(left)))]
                try:
                    await asyncio.gather(*workers)
                finally:
                    for worker in workers:
                        worker.cancel()
                    await asyncio.gather(*workers, return_exceptions=True)
    return statuses


def without_secrets(trajectory: Trajectory) -> Trajectory:
    """Errors quote the addresses that they happened at, and a site's own may hold a password."""
    steps = tuple(dataclasses.replace(s, url=redact(s.url), error=redact(s.error)) for s in trajectory.steps)
    return dataclasses.replace(trajectory, steps=steps, message=redact(trajectory.message))


@contextlib.asynccontextmanager
async def open_pool(config: RolloutConfig, num_episodes: int | None = None) -> AsyncIterator[Pool]:
    """The environments that `config` needs, kept ones if there are any; no more of them than episodes. Raises
    ExtraMissing, UsageError: what offers `rollout.env` is not installed, or not usable.
    """
    whole = config
    if num_episodes is not None and num_episodes < config.num_workers * config.envs_per_worker:
        workers = min(config.num_workers, num_episodes)
        per_worker = math.ceil(num_episodes / workers)
        config = config.model_copy(update={"num_workers": workers, "envs_per_worker": per_worker})
    if config.env != "browser":
        async with plugins.load(plugins.ENVIRONMENTS, config.env)(config) as remote:
            yield remote
    elif config.backend == "ray":
        with plugins.load(plugins.HOOKS, "ray-workers")() as make_worker:
            async with EnvPool(config, make_worker) as pool:
                yield pool
    else:
        async with borrow(whole) as kept:
            if kept is not None:
                yield kept
                return
            async with EnvPool(config) as pool:
                yield pool


def screenshot_folder(out: Path, name: str) -> Path:
    """Return the folder of an episode's screenshots, next to the file of trajectories."""
    return out.parent / "screenshots" / file_name(name)


def screenshot_saver(config: RolloutConfig, out: Path, name: str) -> SaveScreenshot | None:
    """Return the function that saves an episode's screenshots; None if none are to be saved."""
    if not config.screenshots:
        return None
    folder = screenshot_folder(out, name)

    def save(png: bytes, index: int) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{index:03d}.png"
        with full_disk_named(path):
            path.write_bytes(png)
        return str(path.relative_to(out.parent.parent))

    return save


def name_episodes(tasks: Sequence[Task], prefix: str) -> list[tuple[str, Task]]:
    """(trajectory id, task) of each attempt; those at one task are numbered. Raises DataError: two have one name."""
    seen: Counter[str] = Counter()
    episodes: dict[str, Task] = {}
    for task in tasks:
        repeat = seen[task.task_id]
        seen[task.task_id] += 1
        name = f"{prefix}-{task.task_id}" + (f"-r{repeat}" if repeat else "")
        if name in episodes:
            raise DataError(f"two episodes would be named {name!r}: no task id may be another one plus -rN")
        episodes[name] = task
    return list(episodes.items())


async def initial_pages(tasks: Sequence[Task], config: RolloutConfig) -> list[Observation | None]:
    """What each task's initial state shows, in the order given; None if the page failed. Raises DataError: a task that
    names no known page; BrowserMissing.
    """
    if not tasks:
        return []
    async with open_pool(config, len(tasks)) as pool:
        with progress(len(tasks), "initial pages", "pages") as bar:

            async def look(task: Task) -> Observation | None:
                for attempt in range(config.max_retries + 1):
                    try:
                        async with pool.env() as env:
                            observation = await env.reset(task)
                            bar.update()
                            return observation
                    except BrowserError as error:
                        logger.warning("%s: attempt %d failed: %s", task.task_id, attempt + 1, error)
                bar.update()
                return None

            return list(await asyncio.gather(*(look(task) for task in tasks)))
