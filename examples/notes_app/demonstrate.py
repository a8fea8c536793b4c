"""Solve the training instructions of the notes application by script: demonstrations for `webrl sft`.

    python examples/notes_app/demonstrate.py configs/web_example.yaml demos/trajectories.jsonl
    webrl sft configs/web_example.yaml --init data/tiny/actor --data demos/trajectories.jsonl

A script for a site of one's own is as short: look at the instruction and the page, name the next action.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from webrl.config import load_config
from webrl.evaluate import is_success
from webrl.llm.interface import PolicyOutput, Turn
from webrl.rollouts.collect import collect
from webrl.rollouts.suite import open_sites, seed_tasks
from webrl.runs.store import read_records
from webrl.types import Trajectory


class Script:
    """A policy that knows the application."""

    fingerprint = "notes-script"

    async def act(self, turn: Turn) -> PolicyOutput:
        """The next action of the plan; once it is through, the answer."""
        actions = plan(turn.instruction, turn.observation)
        index = len(turn.history)
        action = actions[index] if index < len(actions) else "send_msg_to_user('done')"
        return PolicyOutput((), (), (), action, turn.observation)


def plan(instruction: str, page: str) -> list[str]:
    """The actions, as far as the page at hand has their elements."""
    name = re.search(r'"(.*)"', instruction)
    quoted = name[1] if name else ""
    if instruction.startswith("Which version"):
        version = re.search(r"version ([\d.]+\d)", page)
        return [f"send_msg_to_user('{version[1] if version else 'unknown'}')"]
    if instruction.startswith("Mark"):
        return [click(page, "button", "Mark as done")]
    if instruction.startswith("Add"):
        title = element(page, "textbox", "Title")
        return [f"fill('{title}', '{quoted}')", click(page, "button", "Save")]
    return [click(page, "link", quoted)]


def click(page: str, role: str, name: str) -> str:
    """The action that clicks an element."""
    return f"click('{element(page, role, name)}')"


def element(page: str, role: str, name: str) -> str:
    """The id of an element on the page; "none" where it is not there."""
    found = re.search(rf"\[(\w+)\] {role} {re.escape(repr(name))}", page)
    return found[1] if found else "none"


async def main(config_file: Path, out: Path, overrides: list[str]) -> None:
    """Play, and say how many worked; failed ones are kept, but not imitated."""
    config = load_config(config_file, overrides)
    tasks = seed_tasks(config)
    out.parent.mkdir(parents=True, exist_ok=True)
    async with open_sites(config, tasks):
        await collect(tasks, config, Script(), out, phase=0, prefix="demo")
    played = list(read_records(out, Trajectory))
    print(f"{sum(map(is_success, played))} of {len(played)} solved: {out}")  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
