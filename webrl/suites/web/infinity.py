"""An app of WebArena-Infinity as one's own site: its tasks as instructions, its server and verifiers by their protocol.

API: `is_app(folder)`, `write_app(folder, out, name) -> list[Path]`.

An app (github.com/web-arena-x/webarena-infinity, `apps/NAME`) is a folder with `server.py --port N`, which keeps the
state that the page sends it, and lists of tasks: `function-tasks.json`, one widget each, to train on, and
`real-tasks.json`, held out. A task's `verify` names a Python file whose `verify(server_url)` gives (passed, why).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from webrl.errors import DataError
from webrl.runs.store import read_json, write_text
from webrl.suites.web.starter import TINY_MODELS, starter_files

_LISTS = ("function-tasks.json", "real-tasks.json")
_KEYS = {"id", "instruction", "verify"}
_OPTIONAL = {"difficulty"}
_TEMPLATE = """\
# {name}: an app of WebArena-Infinity, written by `webrl init-site` (docs/worlds.md).
# Every episode has a server of its own. Server and verifiers are the app's own programs, and run as you.
name: {name}
num_phases: 1
tasks:
  suite: web
  num_seed_tasks: {num_train}
  num_eval_tasks: {num_heldout}
  source: fixed                     # curriculum: new instructions from failures, once models.generator is a real one
rollout:
  web:
    name: {name}
    start_urls: ["http://127.0.0.1:8000/"]      # what pages and agents see; each episode's server stands for it
    train_files: [{train}]
    heldout_files: [{heldout}]
    serve:
      command: ["{{python}}", -m, webrl.suites.web.infinity_app, serve, {folder}, "{{port}}"]
    verify: ["{{python}}", -m, webrl.suites.web.infinity_app, verify, {folder}, "{{url}}", "{{check}}"]
    check_timeout_s: 60
  envs_per_worker: 4
  max_steps: 30
# The tiny models that ship with webrl have never seen such a site: they show that everything fits together, no more.
{tiny}
"""


def is_app(folder: Path) -> bool:
    """Whether it has a server and a list of tasks."""
    return (folder / "server.py").is_file() and any((folder / name).is_file() for name in _LISTS)


def write_app(folder: Path, out: Path, name: str) -> list[Path]:
    """Write a config for the app and its instructions beside it; gives the files, the config first.

    Raises:
        DataError: a list that is missing or not understood (quoted, with its place), a verifier that is not there.
    """
    folder = folder.resolve()
    train, heldout = (_instructions(folder, name) for name in _LISTS)
    files = starter_files(out)
    for path, entries in zip(files, (train, heldout), strict=True):
        write_text(path, "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries))
    text = _TEMPLATE.format(
        name=name,
        folder=json.dumps(str(folder)),
        train=json.dumps(str(files[0])),
        heldout=json.dumps(str(files[1])),
        num_train=len(train),
        num_heldout=len(heldout),
        tiny=TINY_MODELS,
    )
    write_text(out, text)
    return [out, *files]


def _instructions(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / name
    tasks = read_json(path)
    if not isinstance(tasks, list) or not tasks:
        raise DataError(f"{path}: expected a list of tasks, found {json.dumps(tasks):.80}")
    return [_instruction(folder, task, f"{path}: task {number}") for number, task in enumerate(tasks)]


def _instruction(folder: Path, task: Any, where: str) -> dict[str, Any]:
    if not isinstance(task, dict) or not _KEYS <= task.keys() <= _KEYS | _OPTIONAL:
        found = ", ".join(task) if isinstance(task, dict) else f"{task!r:.80}"
        raise DataError(f"{where}: a task has {', '.join(sorted(_KEYS))} and perhaps difficulty; found {found}")
    texts = [task[key] for key in sorted(_KEYS)]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise DataError(f"{where}: {', '.join(sorted(_KEYS))} are texts; found {json.dumps(texts):.200}")
    verifier = (folder / task["verify"]).resolve()
    if not (verifier.is_relative_to(folder.resolve()) and verifier.is_file()):
        raise DataError(f"{where}: its verifier {task['verify']!r} is not in {folder}")
    # Both lists count from task_1 in some apps.
    kind = Path(task["verify"]).parent.name.removesuffix("-tasks")
    identity = f"{kind}-{task['id']}" if kind else task["id"]
    return {"id": identity, "instruction": task["instruction"].strip(), "checks": [{"verify": task["verify"]}]}
