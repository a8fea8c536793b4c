"""Task files: WebArena's format (the suites, VAB's generated ones), both ways; and lists of instructions, which
`scripts/gen_task.py` writes for a file of failures.

API: `read_task_file(path) -> list[Task]` (with references), `read_training_file(path) -> list[Task]` (instructions
alone). Raises DataError quoting file and position.

`write_task_file(path, tasks)` writes generated instructions for tools that read VAB-WebArena-Lite's format. They have
no reference answer: an entry says `string_match` with the answer "N/A", and its outcome comes from the outcome model.
`read_task_file` reads such files back as training tasks.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from webrl.config import RunConfig
from webrl.errors import DataError, ExtraMissing, ModelError
from webrl.llm import open_model
from webrl.llm.check import check_model
from webrl.rollouts.suite import Suite, find_suite, in_turn, suite_of
from webrl.runs.lock import hold_output
from webrl.runs.store import read_json, read_lines, write_json, write_records
from webrl.tasks.failures import load_failures, task_of_line
from webrl.tasks.filter import Drop, FilterReport, check_feasibility, filter_tasks, load_rules
from webrl.tasks.generate import generate_tasks, initial_page_texts, plan_requests
from webrl.types import Task
from webrl_site.sites import placeholders
from webrl_webarena.sites import SITES

logger = logging.getLogger(__name__)
READ_ONLY = frozenset(("map", "wikipedia"))
"""Sites that have no log-in, and nothing to write."""
# The released generator's names for the sites.
_OTHER_NAMES = {"cms": "shopping_admin", "oss": "shopping", "openstreetmap": "map", "onestopshop": "shopping"}


def read_task_file(path: Path, *, prefix: str | None = None) -> list[Task]:
    """Tasks of a file in WebArena's format, a list of objects."""
    return [_task(item, f"{path}: task {n}", prefix or path.stem) for n, item in enumerate(read_json(path))]


def _task(data: Any, where: str, prefix: str) -> Task:
    try:
        answers, note = data["eval"]["reference_answers"], data["eval"].get("string_note")
        # Task files mark generated instructions with the answer "N/A" and without a reason for it.
        is_generated = answers == {"exact_match": "N/A"} and not note
        return Task(
            # BrowserGym registers Lite tasks under WebArena's numbers.
            task_id=f"{prefix}.{data.get('old_task_id', data['task_id'])}",
            site="+".join(sorted(data["sites"])),
            instruction=data["intent"] if is_generated else None,
            start_url=data["start_url"],
            split="eval",
            extra={"webarena": data},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{where} is not in WebArena's format: {error!r}; it is {json.dumps(data):.80}") from None


def read_training_file(path: Path) -> list[Task]:
    """Instructions without references, three formats.

    JSON list of `{"intent", "sites", "start_url"}` (WebRL's WebArena-Lite_info.json; further keys are ignored), or
    JSONL of `{"task", "web"}` (the generator's). References of a file that has them are left out.
    """
    if path.suffix == ".jsonl":
        return [_instruction(data, f"{path}:{number}", path.stem, number) for number, data in read_lines(path)]
    data = read_json(path)
    if not isinstance(data, list):
        raise DataError(f"{path}: expected a list of instructions, found {type(data).__name__}")
    return [_instruction(item, f"{path}: task {n}", path.stem, n) for n, item in enumerate(data)]


def _instruction(data: Any, where: str, prefix: str, number: int) -> Task:
    if not isinstance(data, dict):
        raise DataError(f"{where} is not an object: {data!r:.80}")
    text = data.get("intent", data.get("task"))
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: no instruction in 'intent' or 'task': {json.dumps(data)[:80]}")
    given = data.get("sites", [data.get("web")])
    if not isinstance(given, list) or not given:
        raise DataError(f"{where}: `sites` must be a list of site names, found {given!r:.80}")
    names = [_OTHER_NAMES.get(str(name).lower(), str(name).lower()) for name in given]
    if unknown := [name for name in names if name not in SITES]:
        raise DataError(f"{where}: unknown site {unknown[0]!r}; known: {', '.join(SITES)}")
    start = data.get("start_url") or f"__{names[0].upper()}__"
    if not isinstance(start, str) or placeholders(start) - set(names):
        raise DataError(f"{where}: start_url {start!r:.80} stays unresolved: `sites` are {names}")
    return Task(task_id=f"{prefix}.{number}", site="+".join(names), instruction=text.strip(), start_url=start)


def is_exportable(task: Task) -> bool:
    """Whether the task is an instruction on WebArena's sites."""
    return bool(task.instruction) and set(task.site.split("+")) <= set(SITES)


def unscored_entry(task: Task) -> dict[str, Any]:
    """An instruction in WebArena's format: nothing evaluates it, and its answer is "N/A" as in THUDM/WebRL's files."""
    sites = task.site.split("+")
    answers = {"exact_match": "N/A"}
    return {
        "sites": sites,
        "task_id": task.task_id,
        "require_login": True,
        "storage_state": None,
        "start_url": task.start_url or f"__{sites[0].upper()}__",
        "geolocation": None,
        "intent": task.instruction or "",
        "require_reset": False,
        "eval": {"eval_types": [], "reference_answers": answers, "reference_url": "", "program_html": []},
    }


def webarena_entry(task: Task, number: int) -> dict[str, Any]:
    """One task in WebArena's format, with all keys that VAB's runner reads.

    Raises:
        DataError: a site that WebArena does not have, or no instruction.
    """
    if not is_exportable(task):
        raise DataError(f"task {task.task_id!r} on {task.site!r} has no instruction on {', '.join(SITES)}")
    entry = unscored_entry(task)
    if with_login := sorted(set(entry["sites"]) - READ_ONLY):
        entry["storage_state"] = f"./.auth/{'.'.join(with_login)}_state.json"
    entry["eval"] |= {"eval_types": ["string_match"], "string_note": "", "reference_answer_raw_annotation": ""}
    return entry | {
        "task_id": number, "intent_template_id": number, "intent_template": entry["intent"], "instantiation_dict": {},
    }  # fmt: skip


def write_task_file(path: Path, tasks: Sequence[Task], *, first_id: int = 0, split: bool = False) -> int:
    """Write the tasks on WebArena's sites; returns their number.

    Args:
        path: a JSON list, or with `split` a folder of `<task_id>.json`, one object each, as VAB's runner reads them.
        first_id: `task_id` of the first.

    Raises:
        DataError: no task is on WebArena's sites.
    """
    entries = [webarena_entry(t, first_id + i) for i, t in enumerate(filter(is_exportable, tasks))]
    if not entries:
        sites = ", ".join(sorted({task.site for task in tasks})) or "none"
        raise DataError(f"none of {len(tasks)} tasks is an instruction on WebArena's sites (sites found: {sites})")
    if not split:
        write_json(path, entries)
        return len(entries)
    for entry in entries:
        write_json(path / f"{entry['task_id']}.json", entry)
    return len(entries)


def read_instructions(path: Path) -> list[Task]:
    """Tasks of an instruction file (`task`, `web`), or of a file of our tasks (`generated.jsonl`, `tasks.jsonl`).
    Raises DataError, which quotes the line that is neither.
    """
    tasks = []
    for number, data in read_lines(path):
        try:
            tasks.append(task_of_line(data, f"{path.stem}-{number}"))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    return tasks


def write_instructions(path: Path, tasks: Iterable[Task]) -> None:
    """Write instruction lines (`task`, `web`, and ours)."""
    lines = (
        {"task": task.instruction, "web": task.site, "seed": task.seed, "start_url": task.start_url}
        | {"task_id": task.task_id, "lineage": task.lineage}
        for task in tasks
    )
    write_records(path, lines)


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
