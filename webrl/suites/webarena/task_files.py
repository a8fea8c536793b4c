"""Reads task files: WebArena's format (the suites, VAB's generated ones) and lists of training instructions.

API: `read_task_file(path) -> list[Task]` (with references), `read_training_file(path) -> list[Task]` (instructions
alone). Raises DataError quoting file and position: missing file or keys, unknown site, an unresolved `__SITE__`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.errors import DataError
from webrl.runs.store import read_json, read_lines
from webrl.suites.web.sites import placeholders
from webrl.suites.webarena.sites import SITES
from webrl.types import Task

_REQUIRED = ("sites", "task_id", "start_url", "intent", "eval")
_REQUIRED_EVAL = ("eval_types", "reference_answers", "reference_url", "program_html")
_EVAL_TYPES = ("string_match", "url_match", "program_html")
# The released generator's names for the sites.
_OTHER_NAMES = {"cms": "shopping_admin", "oss": "shopping", "openstreetmap": "map", "onestopshop": "shopping"}


def read_task_file(path: Path, *, prefix: str | None = None, split: str = "eval") -> list[Task]:
    """Tasks of a file in WebArena's format: a list of objects, or one object."""
    data = read_json(path)
    return _parse_tasks(data if isinstance(data, list) else [data], str(path), prefix or path.stem, split)


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
    if isinstance(given, list):
        given = [_OTHER_NAMES.get(str(n).lower(), str(n).lower()) for n in given]
    names = check_sites(given, where)
    start = data.get("start_url") or f"__{names[0].upper()}__"
    if not isinstance(start, str) or placeholders(start) - set(names):
        raise DataError(f"{where}: start_url {start!r:.80} stays unresolved: `sites` are {names}")
    return Task(task_id=f"{prefix}.{number}", site="+".join(names), instruction=text.strip(), start_url=start)


def _parse_tasks(data: Any, where: str, prefix: str, split: str = "eval") -> list[Task]:
    if not isinstance(data, list):
        raise DataError(f"{where}: expected a list of tasks, found {type(data).__name__}")
    return [_parse_task(item, f"{where}: task {number}", prefix, split) for number, item in enumerate(data)]


def _parse_task(data: Any, where: str, prefix: str, split: str) -> Task:
    if not isinstance(data, dict):
        raise DataError(f"{where} is not an object: {data!r:.80}")
    _require(data, _REQUIRED, where)
    where = f"{where} (task_id {data['task_id']!r})"
    names = check_sites(data["sites"], where)
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


def check_sites(names: Any, where: str) -> list[str]:
    """Known site names. Raises DataError for anything else."""
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
