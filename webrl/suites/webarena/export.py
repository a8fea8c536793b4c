"""Generated instructions as WebArena-Lite task files (VAB-WebArena-Lite's format), for tools that read those.

A generated instruction has no reference answer: its entry says `string_match` with the answer "N/A", and its
outcome comes from the outcome model. `webrl.suites.webarena.tasks.read_task_file` reads such files back as
training tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from webrl.errors import DataError
from webrl.runs.store import write_json
from webrl.suites.webarena.sites import SITES
from webrl.types import Task

_WITHOUT_LOGIN = frozenset(("map", "wikipedia"))


def is_exportable(task: Task) -> bool:
    """Whether the task is an instruction on WebArena's sites."""
    return bool(task.instruction) and set(task.site.split("+")) <= set(SITES)


def webarena_entry(task: Task, number: int) -> dict[str, Any]:
    """One task in WebArena's format.

    Raises:
        DataError: a site that WebArena does not have, or no instruction.
    """
    if not is_exportable(task):
        raise DataError(f"task {task.task_id!r} on {task.site!r} has no instruction on {', '.join(SITES)}")
    sites = task.site.split("+")
    with_login = [site for site in sites if site not in _WITHOUT_LOGIN]
    intent = task.instruction or ""
    return {
        "sites": sites,
        "task_id": number,
        "require_login": True,
        "storage_state": f"./.auth/{'.'.join(sorted(with_login))}_state.json" if with_login else None,
        "start_url": task.start_url or f"__{sites[0].upper()}__",
        "geolocation": None,
        "intent_template": intent,
        "instantiation_dict": {},
        "intent": intent,
        "require_reset": False,
        "eval": {
            "eval_types": ["string_match"],
            "reference_answers": {"exact_match": "N/A"},
            "reference_url": "",
            "program_html": [],
            "string_note": "",
            "reference_answer_raw_annotation": "",
        },
        "intent_template_id": number,
    }


def write_task_file(path: Path, tasks: Sequence[Task], *, first_id: int = 0, split: bool = False) -> int:
    """Write the tasks on WebArena's sites; gives their number.

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
