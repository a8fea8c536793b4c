"""What a stage needs of the arena around its episodes: that it is up, and can be asked what task files ask of it.

API: `async with open_sites(config, tasks):` around a rollout or an evaluation.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from webrl.arena.client import Arena, ArenaError
from webrl.arena.running import template_path
from webrl.config import RunConfig
from webrl.errors import DataError, UsageError
from webrl.rollouts.browser import Browser, first_line
from webrl.suites.arena.scoring import CHECK_TIMEOUT_S
from webrl.suites.arena.tasks import eval_of
from webrl.suites.web.checks import first_value
from webrl.types import Task


@contextlib.asynccontextmanager
async def open_sites(config: RunConfig, tasks: Iterable[Task]) -> AsyncIterator[None]:
    """Raises UsageError where no arena runs, DataError where a task file asks what no session can answer: no episode
    is worth starting then.
    """
    settings = config.rollout.arena
    try:
        arena = Arena.running(settings.folder)
    except ArenaError as error:
        raise UsageError(f"tasks.suite=arena: {error}") from None
    if settings.train_files or settings.eval_files:
        await _try(tasks, arena)
    yield


async def _try(tasks: Iterable[Task], arena: Arena) -> None:
    """Ask each query and locator once: one that cannot run would leave its task without a score for ever."""
    evaluations = [(task.task_id, evaluation) for task in tasks if (evaluation := eval_of(task))]
    checks = [(name, check) for name, data in evaluations for check in data.get("database", ())]
    queries = {(check.get("site", "shop"), check["query"]): name for name, check in checks}
    await asyncio.to_thread(_try_queries, queries, arena.folder, CHECK_TIMEOUT_S)
    targets = [(name, target) for name, data in evaluations for target in data.get("program_html", ())]
    if locators := {target["locator"]: name for name, target in targets if target["locator"].strip()}:
        await _try_locators(locators)


def _try_queries(queries: dict[tuple[str, str], str], folder: Path, timeout_s: float) -> None:
    for (site, query), name in queries.items():
        try:
            first_value(template_path(folder, site), query, timeout_s)
        except sqlite3.Error as error:
            raise DataError(f"task {name!r}: the query {query!r:.200} does not run on the arena: {error}") from None


async def _try_locators(locators: dict[str, str]) -> None:
    """On an empty page, where nothing is found: what is no JavaScript, or no selector, is a SyntaxError there too."""
    from playwright.async_api import Error

    async with Browser() as browser:
        page: Any = await (await browser.new_context()).new_page()
        for locator, name in locators.items():
            try:
                await page.evaluate(f"() => {locator}")
            except Error as error:
                if "SyntaxError" in str(error):
                    problem = first_line(error)
                    raise DataError(f"task {name!r}: the locator {locator!r:.200} cannot be read: {problem}") from None
