"""`webrl status`: reports what a run is doing, read from its folder alone: from another shell, on another machine,
while it works or after.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from webrl.config import RunConfig
from webrl.config.redaction import redact
from webrl.errors import DataError, StageError
from webrl.evaluate import named_rates, success_rate
from webrl.phase import STAGES
from webrl.reports.run import rate_text
from webrl.runs.clock import duration, pace, time_left
from webrl.runs.folder import (
    PhaseFolder,
    RunFolder,
    load_run_config,
    require_newest,
    require_run,
    seconds_left,
    usual_seconds,
)
from webrl.runs.lock import who_works_in
from webrl.runs.store import count_lines, read_lines, read_records
from webrl.types import Trajectory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="run folder, which is only read (default: the newest in runs/)"
    )


def main(args: argparse.Namespace) -> int:
    """Print the lines; gives the exit code."""
    for name, text in status(args.run or require_newest("status")):
        print(f"{name:<10}{redact(text)}")
    return 0


def status(path: Path) -> list[tuple[str, str]]:
    """Return (name, text) rows on a run: its process, phase, stage, episodes, success so far, work left.

    Raises:
        UsageError: it is not a run folder, or its config is of another version.
    """
    run = require_run(path)
    config = load_run_config(run)
    num_phases = config.num_phases
    holder = who_works_in(path)
    due = _due_stage(run, num_phases, holder[1] if holder else None)
    rows = [("run", f"{path}, {num_phases} phase{'' if num_phases == 1 else 's'} after the supervised start")]
    if holder:
        rows.append(("state", f"at work: {holder[0]}"))
    else:
        rows.append(("state", "not running; the same `webrl run` resumes from here" if due else "finished"))
    if due:
        folder, stage, since = due
        usual = usual_seconds(run, stage, folder.phase)
        parts = [stage]
        if since is not None:
            parts.append(f"for {duration(max(0.0, time.time() - since))}")
        if usual:
            parts.append(f"took {duration(usual[1])} in phase {usual[0]}")
        rows += [("phase", f"{folder.phase} of {num_phases}"), ("stage", ", ".join(parts))]
        rows += _progress(folder, stage, since, config)
    for phase in range(run.last_phase() + 1):
        with contextlib.suppress(DataError, StageError, AttributeError):  # not evaluated, or damaged: a report names it
            if text := rate_text(named_rates(run.phase(phase).read_stage("eval")["counts"])["held-out seeds"]):
                rows.append((f"phase {phase}", f"{text} of held-out seeds"))
    if due:
        of_phase, of_run = seconds_left(run, STAGES, folder.phase, num_phases)
        spent = min(time.time() - since, usual[1]) if since is not None and usual else 0.0
        left = [(of_phase, "of this phase"), (of_run, "of the run")]
        known = [f"{duration(max(0.0, seconds - spent))} {what}" for seconds, what in left if seconds is not None]
        unknown = "not known before a phase like this one has finished"
        rows.append(("left", f"about {', '.join(known)}" if known else unknown))
    return rows


def _due_stage(run: RunFolder, num_phases: int, began: float | None) -> tuple[PhaseFolder, str, float | None] | None:
    """Return phase and name of the first stage that has not finished, and when it began (seconds since the epoch; None
    if no process is working on it, or an earlier one did a part of it); `began`: when the process that works started.
    """
    before: Path | None = None
    for phase in range(num_phases + 1):
        folder = run.phase(phase)
        for stage in STAGES:
            marker = folder.marker(stage)
            if not marker.exists():
                at = before.stat().st_mtime if before else began
                return folder, stage, at if began is not None and at is not None and at >= began else None
            before = marker
    return None


def _progress(folder: PhaseFolder, stage: str, since: float | None, config: RunConfig) -> Iterator[tuple[str, str]]:
    """How far the stage is, if its files tell."""
    if stage == "train":
        newest: dict[str, int] = {}
        if folder.metrics.exists():
            for _, line in read_lines(folder.metrics, lambda _: None):
                if isinstance(line, dict) and isinstance(line.get("step"), int):
                    newest[str(line.get("name"))] = line["step"]
        yield "steps", ", ".join(f"{name} {number}" for name, number in newest.items()) or "none yet"
        return
    path = {"rollout": folder.trajectories, "label": folder.labels, "eval": folder.eval}.get(stage)
    if path is None:
        return
    if stage == "label":
        planned = count_lines(folder.trajectories)
    elif stage == "rollout":
        planned = count_lines(folder.tasks) * (config.rollout.num_generations if folder.phase else 1)
    else:
        from webrl.rollouts.suite import find_suite

        planned = len(find_suite(config.tasks.suite).eval_tasks(config))
    done = count_lines(path)
    seconds = time.time() - since if since is not None else 0.0
    rate = pace(done, seconds) if seconds else ""
    left = time_left(done, seconds, planned - done) if seconds else ""
    what = "labels" if stage == "label" else "episodes"
    yield what, ", ".join(filter(None, (f"{done} of {planned}" if planned else str(done), rate, left)))
    if stage != "label" and done:
        judged = [t for t in read_records(path, Trajectory, lambda _: None) if t.env_reward is not None]
        if judged:
            yield "so far", f"{rate_text(success_rate(judged).to_json())}, by the environment's reward"
