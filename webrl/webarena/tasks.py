"""WebArena tasks: the 165 of WebArena-Lite and the 812 of WebArena from BrowserGym's packages, task files in their
format, and training tasks (any instruction at a site's start page, judged by the outcome model).

API: `load_suite(suite) -> list[Task]`, `read_task_file(path) -> list[Task]`, `training_task(...) -> Task`;
`config_of(task)`, `instruction_of(task)`, `sites_of(task)`, `writes(task)`, `is_scored(task)` read what a task needs.

A Task's `extra["webarena"]` is the task file's object with its `__SITE__` placeholders; base URLs are put in when
an episode has its sites. `site` names the sites it runs on, joined with `+` for cross-site tasks. `instruction` is
None where the file has a reference (its intent is asked, its evaluators score), else the text itself.
"""

from __future__ import annotations

import importlib.util
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from webrl.errors import DataError
from webrl.store import read_json
from webrl.types import Lineage, Task
from webrl.webarena.sites import SITES, placeholders

Suite = Literal["webarena", "webarena_lite"]

NOT_INSTALLED = "BrowserGym's WebArena packages are not installed; run `make webarena`"
_FILES: dict[Suite, tuple[str, str, str]] = {
    "webarena": ("webarena", "test.raw.json", "webarena"),
    "webarena_lite": ("browsergym.webarenalite", "test_webarena_lite.raw.json", "webarenalite"),
}
_REQUIRED = ("sites", "task_id", "start_url", "intent", "eval")
_REQUIRED_EVAL = ("eval_types", "reference_answers", "reference_url", "program_html")
_EVAL_TYPES = ("string_match", "url_match", "program_html")
_NOTHING_TO_WRITE = frozenset(("map", "wikipedia"))
# First words of instructions that only look; what starts otherwise may change a site.
_LOOKING = frozenset(
    """what what's which who whom whose when where how why is are was were does do did can could check checkout
    compare count display find fetch get give identify list locate look lookup open presents provide pull read
    search see show summarize tell telll view browse calculate determine estimate measure""".split()  # noqa: SIM905
)


def load_suite(suite: Suite) -> list[Task]:
    """All tasks of a suite, interleaved by site so that a run does not queue at one of them.

    Raises:
        DataError: the packages are not installed, or their file is damaged.
    """
    package, name, prefix = _FILES[suite]
    spec = importlib.util.find_spec(package.partition(".")[0]) and importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / name
        if path.is_file():
            return interleave(_parse_tasks(read_json(path), str(path), prefix))
    raise DataError(NOT_INSTALLED)


def read_task_file(path: Path, *, prefix: str | None = None, split: str = "eval") -> list[Task]:
    """Tasks of a file in WebArena's format (a list of objects, or one object).

    Raises:
        DataError: missing file, missing keys, unknown site, a placeholder of a site that the task does not list
            (file and position are quoted).
    """
    data = read_json(path)
    return _parse_tasks(data if isinstance(data, list) else [data], str(path), prefix or path.stem, split)


def training_task(task_id: str, site: str, instruction: str, *, lineage: Lineage | None = None) -> Task:
    """A task without a reference: `instruction` at the site's start page, judged by the outcome model.

    Raises:
        DataError: unknown site.
    """
    names = _check_sites(site.split("+"), f"task {task_id!r}")
    return Task(
        task_id=task_id,
        site="+".join(names),
        instruction=instruction,
        start_url=f"__{names[0].upper()}__",
        lineage=lineage or Lineage(strategy="seed"),
    )


def is_webarena(task: Task) -> bool:
    """Whether a task runs on the WebArena sites."""
    return "webarena" in task.extra or set(task.site.split("+")) <= set(SITES)


def config_of(task: Task) -> dict[str, Any]:
    """The task in WebArena's format, placeholders included; one without a reference where the task has none."""
    given: dict[str, Any] = task.extra.get("webarena", {})
    if given:
        return given
    sites = task.site.split("+")
    answers = {"exact_match": "N/A"}  # REFERENCE: how task files mark generated instructions
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


def sites_of(task: Task) -> tuple[str, ...]:
    """The sites an episode needs, the one it starts on first."""
    config = config_of(task)
    named = tuple(dict.fromkeys(config["sites"]))
    start = placeholders(config["start_url"] or "")
    return tuple(sorted(named, key=lambda name: name not in start))


def is_scored(task: Task) -> bool:
    """Whether BrowserGym's evaluators can score the task as it is asked; else the outcome model judges it."""
    return task.instruction is None and "webarena" in task.extra


def instruction_of(task: Task) -> str:
    """What the agent is asked to do."""
    return task.instruction or str(config_of(task)["intent"])


def writes(task: Task) -> bool:
    """Whether an episode is expected to change its sites, and must have them (or a replica) to itself.

    Reading tasks are those on sites that nobody can change, and those whose instruction starts as a question or a
    search, unless their evaluator looks into pages (then there is something to be changed).
    """
    if _NOTHING_TO_WRITE.issuperset(sites_of(task)):
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
    longest = max(map(len, groups.values()), default=0)
    return [group[i] for i in range(longest) for group in groups.values() if i < len(group)]


def _parse_tasks(data: Any, where: str, prefix: str, split: str = "eval") -> list[Task]:
    if not isinstance(data, list):
        raise DataError(f"{where}: expected a list of tasks, found {type(data).__name__}")
    return [_parse_task(item, f"{where}: task {number}", prefix, split) for number, item in enumerate(data)]


def _parse_task(data: Any, where: str, prefix: str, split: str) -> Task:
    if not isinstance(data, dict):
        raise DataError(f"{where} is not an object: {data!r:.80}")
    _require(data, _REQUIRED, where)
    where = f"{where} (task_id {data['task_id']!r})"
    names = _check_sites(data["sites"], where)
    _check_eval(data["eval"], where)
    unlisted = placeholders([data["start_url"], data["eval"]]) - set(names)
    if unlisted:
        name = sorted(unlisted)[0]
        known = "" if name in SITES else f" is no site; known: {', '.join(SITES)}"
        raise DataError(f"{where}: __{name.upper()}__ stays unresolved: {known or f'`sites` {names} do not list it'}")
    if not isinstance(data["intent"], str) or not data["intent"].strip():
        raise DataError(f"{where}: `intent` must be a non-empty text, found {data['intent']!r:.80}")
    number = data.get("old_task_id", data["task_id"])  # BrowserGym registers Lite tasks under WebArena's numbers
    return Task(
        task_id=f"{prefix}.{number}",
        site="+".join(sorted(names)),
        instruction=None if _has_reference(data) else data["intent"],
        start_url=data["start_url"],
        split=split,
        extra={"webarena": data},
    )


def _has_reference(data: dict[str, Any]) -> bool:
    """False for generated instructions: task files mark them with the answer "N/A" and without a reason for it."""
    answers = data["eval"]["reference_answers"]
    return answers != {"exact_match": "N/A"} or bool(data["eval"].get("string_note"))


def _require(data: dict[str, Any], keys: Sequence[str], where: str) -> None:
    missing = [key for key in keys if key not in data]
    if missing:
        raise DataError(f"{where}: missing {', '.join(map(repr, missing))}; it has {', '.join(data) or 'nothing'}")


def _check_sites(names: Any, where: str) -> list[str]:
    if not isinstance(names, list) or not names:
        raise DataError(f"{where}: `sites` must be a list of site names, found {names!r:.80}")
    for name in names:
        if name not in SITES:
            raise DataError(f"{where}: unknown site {name!r}; known: {', '.join(SITES)}")
    return names


def _check_eval(data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise DataError(f"{where}: `eval` must be an object, found {json.dumps(data)[:80]}")
    _require(data, _REQUIRED_EVAL, f"{where}: `eval`")
    for kind in data["eval_types"]:
        if kind not in _EVAL_TYPES:
            raise DataError(f"{where}: unknown eval type {kind!r}; known: {', '.join(_EVAL_TYPES)}")
