"""OpenApps (github.com/facebookresearch/OpenApps) as a site of one's own: run it with the Python that OpenApps has.

    PYTHON app.py tasks FOLDER                      # writes train.jsonl and heldout.jsonl
    PYTHON app.py serve PORT FOLDER                 # a server with fresh state; FOLDER takes its databases
    PYTHON app.py verify URL FOLDER TASK PAGE       # prints `pass` or `fail`: OpenApps' own check of one of its tasks

`openapps.yaml` has webrl call the last two, once for each episode.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

INITIAL = "initial_state.json"
HELDOUT_EVERY = 4


def tasks(folder: str) -> None:
    """Every fourth task is held out, with all the ways in which it is worded."""
    import yaml
    from open_apps import config_dir
    from open_apps.mcp.registry import url_path_for

    known = {}
    for name in ("original_tasks", "user_goal_variations"):  # what its all_tasks.yaml lists
        known |= yaml.safe_load((config_dir() / "tasks" / f"{name}.yaml").read_text(encoding="utf-8"))
    bases = sorted({key.partition("__")[0] for key in known})
    heldout = set(bases[::HELDOUT_EVERY])
    for name, wanted in (("train", False), ("heldout", True)):
        lines = []
        for key, task in known.items():
            if (key.partition("__")[0] in heldout) != wanted:
                continue
            source = task.get("source_app")
            start = "/" if source in (None, "start_page") else url_path_for(source)
            entry = {"id": key, "instruction": task["goal"], "start": start, "checks": [{"verify": key}]}
            lines.append(json.dumps(entry, ensure_ascii=False) + "\n")
        Path(folder, f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        sys.stdout.write(f"{len(lines)} instructions in {folder}/{name}.jsonl\n")


def serve(port: str, folder: str) -> None:
    """Serve until ended; what the apps hold at the start is kept for `verify`."""
    os.chdir(folder)  # its framework leaves a session key where it is started
    from open_apps.mcp.appserver import AppServer

    tempfile.tempdir = folder
    server = AppServer("todo", port=int(port))
    Path(folder, INITIAL).write_text(json.dumps(server.get_state()))
    while True:
        time.sleep(3600)


def verify(url: str, folder: str, key: str, page: str) -> None:
    """A server that does not answer is an exception: no verdict."""
    import requests
    from open_apps.state import get_current_state
    from open_apps.tasks import load_task

    for address in ("/todo_all", "/calendar_all", "/maps/landmarks", "/messages_all"):
        requests.get(url + address, timeout=10).raise_for_status()  # get_current_state takes errors for empty lists
    initial = json.loads(Path(folder, INITIAL).read_text())
    current = get_current_state(url) | {"_url": page.rstrip("/")}
    with contextlib.redirect_stdout(sys.stderr):  # it prints what differs
        passed = load_task(key).check_if_task_is_complete(initial, current)
    sys.stdout.write("pass\n" if passed else "fail: the apps are not as the task wants them\n")


if __name__ == "__main__":
    {"tasks": tasks, "serve": serve, "verify": verify}[sys.argv[1]](*sys.argv[2:])
