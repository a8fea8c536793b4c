"""Evaluation on WebArena as its users read it: the headline number, per site, cross-site apart, a file per task.

API: `summarize(trajectories) -> dict`, `write_task_files(trajectories, folder)`, `format_table(summary) -> str`.

Crashes count as failed in the headline (the number without them is shown next to it). Episodes whose score could not
be found out (judge or site down at validation) are unjudged: in no rate, but counted, with the bounds that they
leave open.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from webrl.evaluate import is_decided, is_success, rates_by, success_rate
from webrl.runs.disk import file_name
from webrl.runs.store import write_json
from webrl.types import Trajectory
from webrl_webarena.tasks import config_of, instruction_of, is_scored, sites_of


def is_unjudged(trajectory: Trajectory) -> bool:
    """A finished episode of a task with a reference that has no score."""
    return not is_decided(trajectory) and is_scored(trajectory.task)


def summarize(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Plain JSON: `headline`, `without_crashes`, `unjudged`, `bounds`, `by_site`, `cross_site`, `by_evaluator`."""
    judged = [t for t in trajectories if not is_unjudged(t)]
    unjudged = sorted(t.task.task_id for t in trajectories if is_unjudged(t))
    single = [t for t in judged if len(sites_of(t.task)) == 1]
    cross = [t for t in judged if len(sites_of(t.task)) > 1]
    successes, total = sum(map(is_success, trajectories)), max(len(trajectories), 1)
    return {
        "headline": success_rate(judged).to_json(),
        "without_crashes": success_rate(t for t in judged if t.status.finished).to_json(),
        "unjudged": {"episodes": len(unjudged), "task_ids": unjudged},
        # over all tasks, if every unjudged episode failed, and if every one succeeded
        "bounds": (successes / total, (successes + len(unjudged)) / total),
        "by_site": rates_by(single),
        "cross_site": success_rate(cross).to_json() | {"by_sites": rates_by(cross)},
        "by_evaluator": rates_by(judged, lambda t: "+".join(config_of(t.task)["eval"]["eval_types"])),
        "mean_steps": round(sum(len(t.steps) for t in trajectories) / total, 2),
    }


def write_task_files(trajectories: Iterable[Trajectory], folder: Path) -> None:
    """Write one JSON file per task (instruction, actions, answer and score)."""
    for trajectory in trajectories:
        config = config_of(trajectory.task)
        entry = {
            "task_id": trajectory.task.task_id,
            "sites": config["sites"],
            "intent": instruction_of(trajectory.task),
            "start_url": config["start_url"],
            "eval": config["eval"],
            "status": str(trajectory.status),
            "score": trajectory.env_reward,
            "note": trajectory.env_error,
            "answer": trajectory.message,
            "seconds": round(trajectory.seconds, 1),
            "attempts": trajectory.attempts,
            "steps": [
                {"index": s.index, "url": s.url, "response": s.response, "action": s.action, "error": s.error}
                for s in trajectory.steps
            ],
        }
        write_json(folder / f"{file_name(trajectory.trajectory_id)}.json", entry)


def format_table(summary: dict[str, Any]) -> str:
    """The summary for a terminal."""
    rows = [("all tasks", summary["headline"]), ("without crashes", summary["without_crashes"])]
    rows += [(f"  {site}", rate) for site, rate in summary["by_site"].items()]
    rows += [("cross-site", summary["cross_site"])]
    lines = [f"{'':18} success      rate   95 % interval  crashed"]
    for name, rate in rows:
        low, high = rate["ci95"]
        share = f"{rate['successes']}/{rate['episodes']}"
        lines.append(f"{name:18} {share:>9} {rate['rate']:8.1%}  {low:.1%} - {high:.1%}  {rate['errors']:7}")
    unjudged = summary["unjudged"]["episodes"]
    if unjudged:
        low, high = summary["bounds"]
        lines.append(f"unjudged: {unjudged}, in none of these rates; all tasks lie between {low:.1%} and {high:.1%}")
    return "\n".join(lines)
