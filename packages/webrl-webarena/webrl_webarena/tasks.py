"""WebArena tasks: the 165 of WebArena-Lite and the 812 of WebArena from BrowserGym's packages, and training tasks (any
instruction at a site's start page, judged by the outcome model). `task_files.py` reads their files.

API: `load_suite(suite) -> list[Task]`, `training_tasks(config)`;
`config_of(task)`, `instruction_of(task)`, `sites_of(task)`, `writes(task)`, `is_scored(task)` read what a task needs.

A Task's `extra["webarena"]` is the task file's object with its `__SITE__` placeholders; base URLs are put in when
an episode has its sites. `site` names the sites it runs on, joined with `+` for cross-site tasks. `instruction` is
None if the file has a reference (its intent is the instruction, its evaluators score), else the text itself.
"""

from __future__ import annotations

import importlib.util
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from webrl.config import RunConfig
from webrl.config.extras import require
from webrl.errors import DataError, UsageError
from webrl.rollouts.suite import in_turn
from webrl.types import Task
from webrl_site.sites import placeholders
from webrl_webarena.task_files import READ_ONLY, read_task_file, read_training_file, unscored_entry

Suite = Literal["webarena", "webarena_lite"]

_FILES: dict[Suite, tuple[str, str, str]] = {
    "webarena": ("webarena", "test.raw.json", "webarena"),
    "webarena_lite": ("browsergym.webarenalite", "test_webarena_lite.raw.json", "webarenalite"),
}
# First words of instructions that only look; what starts otherwise may change a site.
_LOOKING = frozenset(
    """what what's which who whom whose when where how why is are was were does do did can could check checkout
    compare count display find fetch get give identify list locate look lookup open presents provide pull read
    search see show summarize tell telll view browse calculate determine estimate measure
    among detail enumerate gather hunt inspect investigate navigate obtain present retrieve seek summary""".split()  # noqa: SIM905
)


def load_suite(suite: Suite) -> list[Task]:
    """All tasks of a suite, interleaved by site so that a run does not queue at one of them.

    Raises:
        ExtraMissing: the packages are not installed.
        DataError: their file is absent or damaged.
    """
    require("webarena", f"tasks.suite={suite}")
    package, name, prefix = _FILES[suite]
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / name
        if path.is_file():
            return interleave(read_task_file(path, prefix=prefix))
    raise DataError(f"{package} holds no {name}: `make clean webarena` reinstalls it")


def training_tasks(config: RunConfig) -> list[Task]:
    """Tasks of phase 0: a seeded draw of `num_seed_tasks` from the instruction files of the config.

    Raises:
        UsageError: no file is configured.
        DataError: a file that cannot be read, or nothing in it for the chosen sites.
    """
    files = config.rollout.webarena.train_files
    if not files:
        raise UsageError(
            "no training instructions: set rollout.webarena.train_files, for example to WebArena-Lite_info.json of "
            "github.com/THUDM/WebRL (its 1,123 instructions)"
        ) from FileNotFoundError()
    chosen = set(config.tasks.train_sites)
    tasks = {(t.site, instruction_of(t)): t for path in files for t in read_training_file(path)}
    kept = [task for task in tasks.values() if not chosen or task.site in chosen]
    if not kept:
        raise DataError(f"{', '.join(map(str, files))}: no instruction for {', '.join(sorted(chosen)) or 'any site'}")
    random.Random(config.seed).shuffle(kept)
    return interleave(kept)[: config.tasks.num_seed_tasks]


def config_of(task: Task) -> dict[str, Any]:
    """The task in WebArena's format, placeholders included; one without a reference where the task has none."""
    return task.extra.get("webarena") or unscored_entry(task)


def sites_of(task: Task) -> tuple[str, ...]:
    """The sites an episode needs, the one it starts on first."""
    config = config_of(task)
    named = tuple(dict.fromkeys(config["sites"]))
    start = placeholders(config["start_url"] or "")
    return tuple(sorted(named, key=lambda name: name not in start))


def is_scored(task: Task) -> bool:
    """Whether BrowserGym's evaluators can score the task as given; else the outcome model judges it."""
    return task.instruction is None and "webarena" in task.extra


def instruction_of(task: Task) -> str:
    """Return the instruction that the agent gets."""
    return task.instruction or str(config_of(task)["intent"])


def writes(task: Task) -> bool:
    """Whether an episode is expected to change its sites, and must have them (or a replica) to itself.

    Reading tasks are those on sites that cannot be changed, and those whose instruction starts as a question or a
    search, unless their evaluator looks into pages (then there is something to be changed).
    """
    if READ_ONLY.issuperset(sites_of(task)):
        return False
    if "program_html" in config_of(task)["eval"]["eval_types"]:
        return True
    words = instruction_of(task).lower().split()
    return not words or words[0].strip(",.:'\"") not in _LOOKING


def interleave(tasks: Iterable[Task]) -> list[Task]:
    """Round-robin over sites, in each site's own order."""
    groups: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        groups[task.site].append(task)
    return in_turn(groups.values())
