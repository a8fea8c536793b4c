"""WebArena-Verified's tasks and its own scorer on loopback stand-ins of the sites.

    python benchmarks/webarena_verified.py --tasks FILE --command PATH/webarena-verified

FILE is what `webarena-verified dataset-get` writes. Every task of it is read; then some are played in a real browser on
the stand-ins (packages/webrl-webarena/tests/standins), each by a script that solves it, by one that answers without
doing anything, and by one that does it and answers in other words: right are 1, 0 and 0. Retrieval tasks are answered
with their reference, and with another one. It says nothing about how an agent does on the real sites.
The last line of output is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages" / "webrl-webarena" / "tests"))

from standins.experts import SCRIPTS, Script  # noqa: E402
from standins.play import play  # noqa: E402
from standins.world import World  # noqa: E402

from webrl.runs.store import read_json  # noqa: E402
from webrl_webarena.verified import verified_tasks  # noqa: E402

ACTED = {44: "NAVIGATE", 276: "NAVIGATE", 657: "MUTATE"}
"""Tasks for which the stand-ins send what the real sites send; the type that is the right answer."""
STEPS: dict[int, Script] = {44: (("click", "link", "To-Do List"),)}


def answer(kind: str, data: Any = None) -> tuple[str, str]:
    """The agent's last step."""
    return ("say", json.dumps({"task_type": kind, "status": "SUCCESS", "retrieved_data": data}))


def cases(entries: list[dict[str, Any]], num_retrieved: int) -> list[tuple[int, str, Script, float]]:
    """(task, what is tried, script, the right score)."""
    found: list[tuple[int, str, Script, float]] = []
    for number, kind in ACTED.items():
        steps = STEPS.get(number) or SCRIPTS[number][:-1]
        found.append((number, "solved", (*steps, answer(kind)), 1))
        found.append((number, "nothing done", (answer(kind),), 0))
        found.append((number, "answered in words", (*steps, ("say", "Done.")), 0))
    for entry in [e for e in entries if len(e["eval"]) == 1 and _is_plain(e)][:num_retrieved]:
        data = entry["eval"][0]["expected"]["retrieved_data"]
        found.append((entry["task_id"], "reference", (answer("RETRIEVE", data),), 1))
        found.append((entry["task_id"], "another answer", (answer("RETRIEVE", ["something else"]),), 0))
    return found


def _is_plain(entry: dict[str, Any]) -> bool:
    """Whether its reference is an answer as it stands: texts or numbers without alternatives."""
    data = entry["eval"][0]["expected"].get("retrieved_data")
    return isinstance(data, list) and bool(data) and all(isinstance(item, str | float | int) for item in data)


def main() -> None:
    """Read, play, score, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=Path, required=True, help="the task file")
    parser.add_argument("--command", nargs="+", default=["webarena-verified"], help="the scorer")
    parser.add_argument("--retrieved", type=int, default=10, help="retrieval tasks to answer (default: 10)")
    args = parser.parse_args()
    right = 0
    with tempfile.TemporaryDirectory() as folder, World(Path(folder)) as world:
        settings = {"tasks": str(args.tasks), "command": args.command, "folder": f"{folder}/kept"}
        config = world.config({"verified": settings}, max_steps=15)
        tasks = {int(task.task_id.rpartition(".")[2]): task for task in verified_tasks(config)}
        tried = cases(read_json(args.tasks), args.retrieved)
        for number, name, script, wanted in tried:
            world.reset()
            episode = asyncio.run(play(world, {number: tasks[number]}, script, config))[number]
            right += episode.env_reward == wanted
            print(f"{number:4} {name:18} {episode.env_reward} (right: {wanted}) {episode.env_error:.150}", flush=True)
    print(json.dumps({"tasks_read": len(tasks), "episodes": len(tried), "scored_right": right}))


if __name__ == "__main__":
    main()
