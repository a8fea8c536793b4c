"""Generate tasks from a file of failures, without a browser: new instructions for the pages that the file holds.

Uses the functions of the curriculum stages, except that a new task starts where its first seed did. The output lines
have `task` and `web` as in the released code, plus this package's own fields.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from webrl.config import RunConfig
from webrl.errors import DataError, ExtraMissing, ModelError
from webrl.llm import open_model
from webrl.llm.check import check_model
from webrl.rollouts.suite import Suite, find_suite, in_turn, suite_of
from webrl.runs.disk import atomic_path
from webrl.runs.lock import hold_output
from webrl.runs.store import read_lines
from webrl.tasks.failures import load_failures, task_of_line
from webrl.tasks.filter import Drop, FilterReport, check_feasibility, filter_tasks, load_rules
from webrl.tasks.generate import generate_tasks, initial_page_texts, plan_requests
from webrl.types import Task

logger = logging.getLogger(__name__)


async def generate_from_file(config: RunConfig, source: Path, out: Path) -> tuple[dict[str, Any], FilterReport]:
    """Read failures, query the model, filter, write the kept tasks to `out` (the answers go next to it).

    Returns:
        Counts of the generation, and the result of the filters: the critic's band needs a run and is skipped.

    Raises:
        DataError: no usable line in `source`.
        UsageError: rules that cannot be read.
        ModelError: the generator is unusable, its endpoint is down (the same call resumes from there), or none of
            its answers is an instruction.
        StageError: another process writes this output.
    """
    failures = load_failures(source)
    load_rules(config.filter.rules)  # before a lock and a folder are made, and the model is loaded
    rng = random.Random(config.seed)
    # At the initial states of their first seeds, and conditioned on pages if the file has any.
    has_pages = any(failure.page for failure in failures.failures)
    planned = plan_requests(failures, config.generate, rng, per_page=lambda _: has_pages)
    requests = [r if r.target else replace(r, target=r.failures[0].task, page=r.failures[0].page) for r in planned]
    cache = out.with_name(f".{out.stem}.answers.jsonl")
    if config.generate.engine.kind != "openai":
        check_model(config.models.generator, sees=False, prompt_format="chat", use=config.generate.engine.kind)
    async with AsyncExitStack() as stack:
        stack.enter_context(hold_output(out))
        opened = open_model(config.models.generator, config.generate.engine, config.models)
        model = await stack.enter_async_context(opened)
        tasks, counts = await generate_tasks(requests, model, config, phase=0, rng=rng, cache=cache)
        if requests and not tasks:
            raise ModelError(
                f"none of {len(requests)} answers of {model.name} holds an instruction ({counts['answer_problems']}); "
                f"they are in {cache}; another generator, or another --seed, may do better"
            )
        known = [failure.task for failure in failures.failures]
        try:  # the evaluation set of the config's suite; on WebArena sites that of WebArena-Lite, if it is installed
            heldout = held_out_of(config, tasks)
        except (DataError, ExtraMissing) as error:
            logger.warning("held-out instructions are not searched for: %s", error)
            heldout = []

        async def judge(left: Sequence[Task]) -> tuple[list[Drop], str]:
            return await check_feasibility(left, initial_page_texts(requests, left), model, config, cache)

        filtered = await filter_tasks(tasks, known=known, heldout=heldout, config=config.filter, judge=judge)
        write_instructions(out, filtered.kept)
    return {"generated": len(tasks)} | counts | {"from_seeds": failures.from_seeds}, filtered


def held_out_of(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """Everything that an evaluation may ask, of the tasks' own suites where none of them is akin to the config's."""
    theirs, own = dict.fromkeys(map(suite_of, tasks)), find_suite(config.tasks.suite)
    # Akin is the same one, or one that extends the same suite, as WebArena's two do: their sites are the same.
    line = {*type(own).__mro__} - {*Suite.__mro__}
    if theirs and not any(line & {*type(each).__mro__} for each in theirs):
        return in_turn(suite.heldout_tasks(config) for suite in theirs)
    return own.heldout_tasks(config)


def write_instructions(path: Path, tasks: Iterable[Task]) -> None:
    """Write instruction lines (`task`, `web`, and ours)."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        for task in tasks:
            line = {"task": task.instruction, "web": task.site, "seed": task.seed, "start_url": task.start_url}
            ours = {"task_id": task.task_id, "lineage": task.lineage.to_json()}
            file.write(orjson.dumps({**line, **ours}, option=orjson.OPT_APPEND_NEWLINE))


def read_instructions(path: Path) -> list[Task]:
    """Tasks of an instruction file (`task`, `web`), or of a file of our tasks (`generated.jsonl`, `tasks.jsonl`).

    Raises:
        DataError: missing file, or a line that is neither (path and line are quoted).
    """
    tasks = []
    for number, data in read_lines(path):
        try:
            is_ours = isinstance(data, dict) and {"site", "task_id"} <= data.keys() and "web" not in data
            tasks.append(Task.from_json(data) if is_ours else task_of_line(data, f"{path.stem}-{number}"))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return tasks
