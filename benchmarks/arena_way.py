"""How far an agent goes along the expert's way, and where it leaves it.

`python benchmarks/arena_way.py EVAL.jsonl ...`

Each file holds evaluation episodes of the arena (`phase_NN/eval.jsonl`). Nothing is played: the scripted expert of an
episode's template is asked for its action on each page that the agent saw, as long as the agent's own have been the
expert's. The share of an expert's actions that were made, and what the agent did instead at the first other one, are
counted for the templates that were trained on and for those held out. A template's task can be done in other ways too,
so a success may leave the way.

The last line of the output is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from webrl.errors import DataError, WebRLError
from webrl.evaluate import is_success, rate_of
from webrl.rollouts.actions import read_any
from webrl.runs.store import read_records
from webrl.types import Trajectory
from webrl_arena.script import notes_in
from webrl_arena.templates import WAIT, by_type

SAY = "send_msg_to_user"
SPLITS = {"eval": "trained templates", "eval_heldout": "held-out templates"}
WAYS = (
    *("all the way", "no action", "says done too early", "answers otherwise", "goes on"),
    *("another element", "another value", "another note", "other"),
)


def follow(episode: Trajectory) -> tuple[int, int, str]:
    """How many of the expert's actions were made, of how many, and how the first other one differs (of `WAYS`).

    Raises:
        DataError: the instruction is none of the template's.
    """
    template = by_type()[episode.task.site]
    if template.read(episode.instruction) is None:
        raise DataError(f"{episode.trajectory_id}: {episode.instruction!r:.200} is none of {episode.task.site}'s")
    length = len(template.script)
    made: list[str] = []
    for step in episode.steps:
        wanted = template.plan(episode.instruction, step.observation, made)
        if len(made) >= length or wanted is None or wanted == WAIT:
            break
        if how := differs(wanted, step.response):
            return len(made), length, how
        if not step.error:
            made.append(step.response)
    return len(made), length, "all the way" if len(made) >= length else "other"


def differs(expert: str, agent: str) -> str:
    """In which way an answer is not the expert's; "" if it is. A note above the action is a part of it."""
    wanted, found = read_any(expert), read_any(agent)
    assert wanted is not None
    if found is None:
        return "no action"
    if found.name == SAY and wanted.name != SAY:
        return "says done too early"
    if found.name != wanted.name:
        return "goes on" if wanted.name == SAY else "other"
    if found.arguments.get("bid") != wanted.arguments.get("bid"):
        return "another element"
    if found.arguments != wanted.arguments:
        return "answers otherwise" if wanted.name == SAY else "another value"
    return "" if notes_in(agent) == notes_in(expert) else "another note"


def count(episodes: Iterable[Trajectory]) -> dict[str, Any]:
    """Successes, the mean share of the expert's way, and how many leave it in which way."""
    episodes = list(episodes)
    ways = [follow(episode) for episode in episodes]
    rate = rate_of(sum(map(is_success, episodes)), len(episodes))
    return {
        "successes": rate.successes,
        "episodes": rate.episodes,
        "ci95": rate.ci95,
        "way": sum(made / length for made, length, _ in ways) / max(1, len(ways)),
        "last_action_missing": sum(made == length - 1 for made, length, _ in ways),
        "leaves": dict(Counter(how for *_, how in ways)),
    }


def main() -> None:
    """Count the files, print, and say the same as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="EVAL.jsonl")
    files = parser.parse_args().files
    figures = {}
    for path in files:
        try:
            read = read_records(path, Trajectory)
            episodes = [e for e in read if e.task.site in by_type() and e.task.split in SPLITS]
            counts = {split: count(e for e in episodes if e.task.split == split) for split in SPLITS}
        except WebRLError as error:
            sys.exit(f"arena_way: {error}")
        if not episodes:
            sys.exit(f"arena_way: {path} has no evaluation episode of the arena's templates")
        for split, name in SPLITS.items():
            found = figures[f"{path} {split}"] = counts[split]
            low, high = (100 * bound for bound in found["ci95"])
            print(f"{path}, {name}: {found['successes']} of {found['episodes']} [{low:.1f}, {high:.1f}] %,", end=" ")
            print(f"{100 * found['way']:.1f} % of the way, {found['last_action_missing']} all but its last action")
            print("   ", ", ".join(f"{how}: {found['leaves'].get(how, 0)}" for how in WAYS))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
