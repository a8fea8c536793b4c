"""The first page of each task, without acting: what the generator writes for and the critic's band is measured at."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.collect import open_pool
from webrl.rollouts.interface import Observation
from webrl.runs.progress import progress
from webrl.types import Task

logger = logging.getLogger(__name__)


async def initial_pages(tasks: Sequence[Task], config: RolloutConfig) -> list[Observation | None]:
    """Reset to each task's initial state and look at it, in the order given; None where the page failed.

    Raises:
        DataError: a task that names no known page.
        BrowserMissing: no Chromium.
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
