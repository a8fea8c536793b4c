"""Generation's and the filters' share of the curriculum benchmark; `benchmarks/curriculum.py` calls it.

`measure_generation` runs the real stages: phase 0 of the demo (episodes, labels, critic), generation from its
failures at fresh pages, all filters; then the actor tries what reached the critic's band, inside and outside alike.
Validity and success are told by the scripted experts, which know the pages; the stages themselves never see them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from webrl.config import RunConfig, load_config
from webrl.evaluate import wilson_interval
from webrl.runs.folder import PhaseFolder, RunFolder
from webrl.runs.store import read_records
from webrl.types import Task, Trajectory

REPO = Path(__file__).parent.parent
_TEMPLATES = (
    "Find the {a} {b} order from {n} and tell me its {c}",
    "Show me the {a} {b} with more than {n} {c}",
    'Click on the "{a} {b}" button and then enter {n} into the {c} field',
    "What is the price of the {a} {b} {c} in {n}?",
    'Post a comment about {a} in the {b} forum saying "{c} {n}"',
    "Change the {a} of product {b} to {n} and save the {c} page",
    'Create an issue in {a}/{b} titled "{c}" assigned to user{n}',
    "List all {a} customers of {b} who bought {c} in {n}",
)
_PARAPHRASES = (("Find", "Search for"), ("Show me", "Please show"), ("List", "Give me"), ("What is", "Tell me"))


def measure_dedupe(num_known: int, num_new: int, seed: int = 0) -> dict[str, Any]:
    """Near duplicates of `num_new` instructions among `num_known`, all of one site (the worst case).

    A fifth of the new ones are known ones, a part of these in other words.
    """
    from webrl.config import FilterConfig
    from webrl.tasks.dedupe import find_duplicates

    rng = random.Random(seed)
    words = [
        "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 4))) for _ in range(3000)
    ]
    known = [_sentence(rng, words) for _ in range(num_known)]
    copies = [_reword(text) for text in known[: num_new // 5]]
    new = [*copies, *(_sentence(rng, words) for _ in range(num_new - len(copies)))]
    start = time.perf_counter()
    matches = find_duplicates(_as_tasks(new), _as_tasks(known), FilterConfig().duplicate_threshold)
    seconds = time.perf_counter() - start
    found = sum(match is not None for match in matches[: len(copies)])
    return {
        "dedupe_s": round(seconds, 2),
        "dedupe_known": num_known,
        "dedupe_new": num_new,
        "dedupe_found_of_copies": round(found / max(1, len(copies)), 3),
    }


def measure_generation(
    folder: Path, num_tasks: int, num_seed_tasks: int, run: Path | None, phase: int = 0
) -> dict[str, Any]:
    """Valid share before and after the filters, share surviving each, and success inside and outside the band."""
    from webrl.tasks.curriculum import Page, attempted, propose, select
    from webrl.tasks.failures import load_failures

    config, start = _start(folder, num_tasks, num_seed_tasks, run, phase)
    known = list(attempted([start.trajectories]))
    failures = load_failures(start.path)
    phase_1 = PhaseFolder(folder, 1)
    propose(config, failures, known=known, rng=random.Random(0), folder=phase_1)
    counts = select(config, phase_1, known=known, critic=start.critic)
    texts = {page.task_id: page.text for page in read_records(phase_1.pages, Page)}
    tasks, kept = list(read_records(phase_1.generated, Task)), list(read_records(phase_1.tasks, Task))
    figures = {"num_generated": len(tasks), "survivors": counts["survivors"], "dropped": counts["dropped"]}
    figures |= _valid("valid_share_before", tasks, texts) | _valid("valid_share", kept, texts)
    return figures | _band(config, folder, start)


def _start(
    folder: Path, num_tasks: int, num_seed_tasks: int, run: Path | None, number: int
) -> tuple[RunConfig, PhaseFolder]:
    """Config and a phase of a finished run, or the demo's phase 0, run here."""
    from webrl import phase

    overrides = [f"generate.num_tasks={num_tasks}", f"runs_dir={folder}", "name=start", "num_phases=0"]
    overrides += [f"tasks.num_seed_tasks={num_seed_tasks}", "tasks.num_eval_tasks=0", "tasks.num_heldout_tasks=0"]
    overrides += [f"models.{name}={REPO / 'data/tiny' / name}" for name in ("actor", "orm", "generator")]
    config = load_config(REPO / "configs/demo.yaml", overrides)
    if run is not None:
        return config, RunFolder(run).phase(number)
    return config, phase.run(config).phase(0)


def _band(config: RunConfig, folder: Path, start: PhaseFolder) -> dict[str, Any]:
    """Success rate of the actor on tasks inside and outside the critic's band, by the experts' judgement."""
    from webrl.llm import open_model
    from webrl.llm.policy import ModelPolicy
    from webrl.rollouts.collect import collect
    from webrl.suites.miniwob.experts import expert_for
    from webrl.tasks.filter import Dropped

    groups = {task.task_id: "kept" for task in read_records(folder / "tasks.jsonl", Task)}
    tasks = list(read_records(folder / "tasks.jsonl", Task))
    for drop in read_records(folder / "dropped.jsonl", Dropped):
        if drop.reason.startswith("value_"):
            groups[drop.task.task_id] = drop.reason
            tasks.append(drop.task)

    async def work() -> None:
        async with open_model(str(start.actor), config.rollout.engine, config.models) as model:
            policy = ModelPolicy(model, config)
            await collect(tasks, config, policy, folder / "band.jsonl", phase=1, prefix="band")

    asyncio.run(work())
    outcomes: dict[str, list[bool]] = {"kept": [], "value_low": [], "value_high": []}
    invalid: Counter[str] = Counter()
    for trajectory in read_records(folder / "band.jsonl", Trajectory):
        group = groups[trajectory.task.task_id]
        if trajectory.status.finished:
            outcomes[group].append(_succeeded(trajectory))
            first = trajectory.steps[0].observation
            invalid[group] += not expert_for(trajectory.task.site).is_valid(trajectory.instruction, first)
    dropped = outcomes["value_low"] + outcomes["value_high"]
    figures: dict[str, Any] = {}
    for name, results in {**outcomes, "dropped": dropped}.items():
        figures |= _share(f"band_success_{name}", sum(results), len(results))
    return figures | {"band_invalid": dict(invalid)}


def _succeeded(trajectory: Trajectory) -> bool:
    from webrl.suites.miniwob.experts import expert_for

    return expert_for(trajectory.task.site).accomplished(
        trajectory.instruction,
        [step.action for step in trajectory.steps],
        [step.observation for step in trajectory.steps],
        trajectory.final_observation,
    )


def _valid(name: str, tasks: Sequence[Task], texts: dict[str, str]) -> dict[str, Any]:
    from webrl.suites.miniwob.experts import expert_for

    valid = [expert_for(task.site).is_valid(task.instruction or "", texts.get(task.task_id, "")) for task in tasks]
    return _share(name, sum(valid), len(valid))


def _share(name: str, count: int, total: int) -> dict[str, Any]:
    interval = [round(edge, 3) for edge in wilson_interval(count, total)] if total else None
    return {name: round(count / total, 3) if total else None, f"{name}_of": total, f"{name}_ci95": interval}


def _sentence(rng: random.Random, words: Sequence[str]) -> str:
    a, b, c = rng.sample(words, 3)
    return rng.choice(_TEMPLATES).format(a=a, b=b, c=c, n=rng.randint(1, 2000))


def _reword(text: str) -> str:
    for old, new in _PARAPHRASES:
        if text.startswith(old):
            return new + text[len(old) :]
    return text.upper() + "."


def _as_tasks(texts: Iterable[str]) -> list[Task]:
    return [Task(task_id=str(i), site="shopping", instruction=text) for i, text in enumerate(texts)]
