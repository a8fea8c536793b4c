"""The two curriculum stages over files: failures -> proposed instructions -> kept tasks (arXiv 2411.02337 §3.1)."""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.llm import open_model
from webrl.llm.loading import load_tokenizer
from webrl.llm.pictures import Example
from webrl.llm.prompts import build_policy_prompt
from webrl.rollouts.collect import initial_pages
from webrl.rollouts.pool import run
from webrl.rollouts.suite import find_suite, seed_tasks, suite_at, suite_of
from webrl.runs.folder import PhaseFolder, RunFolder
from webrl.runs.store import read_records, write_json, write_records
from webrl.tasks.failures import FailureSet
from webrl.tasks.filter import Drop, Dropped, check_feasibility, filter_tasks, leaks
from webrl.tasks.generate import GenerationRequest, generate_tasks, initial_page_texts, plan_requests, split_evenly
from webrl.types import Record, Task, Trajectory

logger = logging.getLogger(__name__)
_PROBE = 2_000_000
"""The draw of `probe_tasks`; phases draw from 0 on."""


@dataclass(frozen=True)
class Page(Record):
    """A line of `pages.jsonl`: the initial page of a proposed task, "" if it is not known.

    Example: `Page(task_id="miniwob.click-button.g01-00003", text="RootWebArea 'Click Button Task' …")`
    """

    task_id: str
    """The task."""
    text: str
    """Its initial page as the agent will see it."""


def propose(
    config: RunConfig, failures: FailureSet, *, known: Sequence[Task], rng: random.Random, folder: PhaseFolder
) -> dict[str, Any]:
    """Write new instructions and the initial page of each into the phase's folder (`generated`, `pages`), and return
    the counts. `known` is everything attempted so far: new pages get seeds that none of it has.
    """
    requests = plan_requests(failures, config.generate, rng, per_page=lambda site: suite_at(site).has_page_seeds)
    # A page for every request that has none yet: a seed of its site that was never used.
    taken: dict[str, set[int]] = defaultdict(set)
    for task in known:
        taken[task.site].add(task.seed)
    targets: dict[int, Task] = {}
    for i, request in enumerate(requests):
        if request.target is None:
            seed = suite_at(request.site).fresh_seed(taken[request.site], rng)
            taken[request.site].add(seed)
            targets[i] = Task(task_id=f"{request.site}.{seed}", site=request.site, seed=seed)
    found = run(initial_pages(list(targets.values()), config.rollout)) if targets else []
    pages = dict(zip(targets, found, strict=True))
    ready = []
    for i, request in enumerate(requests):
        if i not in targets:
            shows_page = not request.page and suite_at(request.site).shows_pages
            ready.append(replace(request, page=request.failures[0].page) if shows_page else request)
        elif (page := pages[i]) is not None:
            ready.append(replace(request, target=targets[i], page=page.text))
    return write_answers(config, ready, rng, folder) | {"from_seeds": failures.from_seeds}


def write_answers(
    config: RunConfig, requests: Sequence[GenerationRequest], rng: random.Random, folder: PhaseFolder
) -> dict[str, Any]:
    """Have all requests answered (an interrupted call's from its cache), write tasks and pages, return the counts."""

    async def ask() -> tuple[list[Task], dict[str, Any]]:
        cache = folder.path / "generate_cache.jsonl"
        async with open_model(config.models.generator, config.generate.engine, config.models) as model:
            return await generate_tasks(requests, model, config, phase=folder.phase, rng=rng, cache=cache)

    tasks, counts = run(ask())
    texts = initial_page_texts(requests, tasks)
    write_records(folder.pages, (Page(task.task_id, text) for task, text in zip(tasks, texts, strict=True)))
    write_records(folder.generated, tasks)
    return {"num_generated": len(tasks)} | counts


def select(config: RunConfig, folder: PhaseFolder, *, known: Sequence[Task], critic: Path | None) -> dict[str, Any]:
    """Filter the phase's proposed tasks into its `tasks`; what was dropped goes to `dropped` with its reason, and
    examples to `filter_report.json`. Without a critic, the band is skipped. Raises DataError: every task was dropped.

    Returns counts: `num_kept`, `dropped` by reason, `survivors` of each filter, `notes` on filters that were left out
    or did not apply to some.
    """
    tasks = list(read_records(folder.generated, Task))
    texts = {page.task_id: page.text for page in read_records(folder.pages, Page)}

    async def judge(left: Sequence[Task]) -> tuple[list[Drop], str]:
        pages, cache = [texts.get(task.task_id, "") for task in left], folder.path / "feasibility_cache.jsonl"
        async with open_model(config.models.generator, config.generate.engine, config.models) as model:
            return await check_feasibility(left, pages, model, config, cache)

    report = run(
        filter_tasks(
            tasks,
            known=known,
            heldout=find_suite(config.tasks.suite).heldout_tasks(config),
            config=config.filter,
            judge=judge,
            values=(lambda left: initial_values(config, left, texts, critic)) if critic else None,
        )
    )
    write_records(folder.dropped, report.dropped)
    if not report.kept:
        raise DataError(f"all {len(tasks)} proposed tasks were dropped ({report.counts}); see {folder.dropped}")
    write_records(folder.tasks, report.kept)
    notes = {stage["name"]: stage["note"] for stage in report.stages if stage["note"]}
    for name, note in notes.items():
        logger.info("filter %s: %s", name, note)
    write_json(folder.path / "filter_report.json", {"stages": report.stages})
    survivors = {stage["name"]: stage["num_kept"] for stage in report.stages}
    return {"num_kept": len(report.kept), "dropped": report.counts, "survivors": survivors, "notes": notes}


def select_seeds(
    config: RunConfig, folder: PhaseFolder, *, shares: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Write the suite's own tasks of phase 0, or of a phase without curriculum, into the phase's `tasks`; none that an
    evaluation asks. In a phase of fresh tasks each type has its weight in `shares`; None: all alike.

    Returns counts: `num_kept`, `dropped` by reason. Raises DataError: nothing is left, or there is none to start from.
    """
    tasks = shared_out(config, folder.phase, shares) if shares else seed_tasks(config, folder.phase)
    verdicts = leaks(tasks, find_suite(config.tasks.suite).heldout_tasks(config), config.filter.duplicate_threshold)
    dropped = [Dropped(task, *verdict) for task, verdict in zip(tasks, verdicts, strict=True) if verdict]
    if dropped:
        write_records(folder.dropped, dropped)
        held = f"{len(dropped)} of {len(tasks)} seed tasks"
        logger.warning("%s are held out for evaluation; see %s", held, folder.dropped)
    if len(dropped) == len(tasks):
        raise DataError(f"all {len(tasks)} seed tasks are held out for evaluation; see {folder.dropped}")
    kept = [task for task, verdict in zip(tasks, verdicts, strict=True) if not verdict]
    return {"num_kept": write_records(folder.tasks, kept), "dropped": dict(Counter(drop.reason for drop in dropped))}


def shared_out(config: RunConfig, phase: int, shares: Mapping[str, float]) -> list[Task]:
    """Return `tasks.num_seed_tasks` fresh tasks of a phase, each type's number in proportion to its weight.

    A type that has not so many different tasks leaves its places to the others, in turn. Types without a weight (never
    judged so far) get the mean one.
    """
    number = config.tasks.num_seed_tasks
    types = list(dict.fromkeys(task.site for task in _fresh(config, phase, max(number, len(config.tasks.train_sites)))))
    weights = {site: shares.get(site, fmean(shares.values())) for site in types}
    wanted = Counter(split_evenly(number, weights if any(weights.values()) else dict.fromkeys(types, 1.0)))
    pool = _fresh(config, phase, max(wanted.values()) * len(types))
    seen: Counter[str] = Counter()
    first: list[Task] = []
    others: list[Task] = []
    for task in pool:
        seen[task.site] += 1
        (first if seen[task.site] <= wanted[task.site] else others).append(task)
    return (first + others)[:number]


def _fresh(config: RunConfig, draw: int, number: int) -> list[Task]:
    """So many of the suite's own tasks, new ones for each draw."""
    tasks = config.tasks.model_copy(update={"num_seed_tasks": number, "source": "fresh"})
    return seed_tasks(config.model_copy(update={"tasks": tasks}), draw)


def probe_tasks(config: RunConfig) -> list[Task]:
    """Return the tasks that an updated actor is accepted on: at most `accept.tasks`, the same in every phase of a run.

    None of them is trained on or evaluated, so that suites of fixed tasks may have none. Where a seed makes pages, they
    are other ones than training has.
    """
    rewarded = config.label.judge == "environment"
    drawn = _fresh(config, _PROBE, config.accept.tasks)
    drawn = [task for task in drawn if not (rewarded and suite_of(task).needs_judge(task))]
    verdicts = leaks(drawn, find_suite(config.tasks.suite).heldout_tasks(config), config.filter.duplicate_threshold)
    trained = {task.task_id for task in seed_tasks(config)}
    return [t for t, verdict in zip(drawn, verdicts, strict=True) if not verdict and t.task_id not in trained]


def attempted(folder: RunFolder, before: int) -> list[Task]:
    """Every task that was rolled out before a phase, with the instruction the agent was given."""
    played = (t for phase in range(before) for t in read_records(folder.phase(phase).trajectories, Trajectory))
    return [replace(trajectory.task, instruction=trajectory.instruction) for trajectory in played]


def initial_values(config: RunConfig, tasks: Sequence[Task], texts: dict[str, str], critic: Path) -> list[float | None]:
    """V(s_0, I) of each task at its real initial page, with the policy's prompt; None if that page is not known."""
    from webrl.training.scoring import state_values

    tokenizer = load_tokenizer(str(critic))
    known = [task for task in tasks if texts.get(task.task_id)]
    prompts = [build_policy_prompt(tokenizer, t.instruction or "", (), texts[t.task_id], config).ids for t in known]
    values = state_values([Example(ids, ()) for ids in prompts], critic, config) if prompts else ()
    by_task = {task.task_id: value for task, value in zip(known, values, strict=True)}
    return [by_task.get(task.task_id) for task in tasks]
