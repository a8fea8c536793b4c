"""What a run is doing, read from its folder alone: by another shell, on another machine, while it works or after."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from webrl.config import RunConfig
from webrl.config.yaml_file import read_yaml
from webrl.errors import DataError, StageError, UsageError
from webrl.evaluate import named_rates, success_rate
from webrl.phase import STAGES
from webrl.reports.run import rate_text
from webrl.runs.clock import duration
from webrl.runs.folder import PhaseFolder, RunFolder, load_run_config, require_run
from webrl.runs.lock import process_in, who_works_in
from webrl.runs.pace import seconds_left, usual_seconds
from webrl.runs.progress import pace, time_left
from webrl.runs.store import count_lines, read_lines, read_records
from webrl.runs.usage import Meter
from webrl.suites.mix import by_suite
from webrl.types import Trajectory

_SAMPLE_S = 1.0
"""Over how long cores and browsers are watched."""
NAMES = tuple(spec.name for spec in STAGES)


@dataclass(frozen=True)
class _Now:
    """The stage that is due, of a run that has not finished."""

    folder: PhaseFolder
    stage: str
    since: float | None
    """When it began (seconds since the epoch); None where nobody works, or an earlier process did a part of it."""


def status(path: Path) -> list[tuple[str, str]]:
    """(what, text) of a run: who works on it, phase, stage, episodes, success so far, what is left, memory.

    Raises:
        UsageError: it is no run folder.
    """
    run = require_run(path)
    config, num_phases, problem = _config(run)
    holder = who_works_in(path)
    now = _now(run, num_phases, holder[1] if holder else None)
    phases = f"{num_phases} phase{'' if num_phases == 1 else 's'} after the supervised start"
    rows = [("run", f"{path}, {phases}"), *([("config", problem)] if problem else [])]
    rows.append(("state", _state(now, holder[0] if holder else None)))
    if now:
        rows += [("phase", f"{now.folder.phase} of {num_phases}"), ("stage", _stage(run, now))]
        rows += _doing(now, config)
        rows += _usage(path)
    rows += _evaluated(run)
    if now:
        rows += _left(run, now, num_phases)
    return [*rows, *_memory(run)]


def _config(run: RunFolder) -> tuple[RunConfig | None, int, str]:
    """(config, number of phases, why there is no config); a config of another version still tells the phases."""
    try:
        config = load_run_config(run)
    except UsageError as error:
        found = {}
        with contextlib.suppress(UsageError):
            found = read_yaml(run.config, "the run's config")
        planned = found.get("num_phases") if isinstance(found, dict) else None
        num_phases = planned if isinstance(planned, int) else max(run.last_phase(), 0)
        return None, num_phases, f"not known in all: {str(error).splitlines()[0]}"
    return config, config.num_phases, ""


def _now(run: RunFolder, num_phases: int, began: float | None) -> _Now | None:
    before: Path | None = None
    for phase in range(num_phases + 1):
        folder = run.phase(phase)
        for stage in NAMES:
            marker = folder.marker(stage)
            if not marker.exists():
                at = before.stat().st_mtime if before else began
                return _Now(folder, stage, at if began is not None and at is not None and at >= began else None)
            before = marker
    return None


def _state(now: _Now | None, holder: str | None) -> str:
    if holder:
        return f"at work: {holder}"
    return "nobody works on it; the same `webrl run` resumes from here" if now else "finished"


def _stage(run: RunFolder, now: _Now) -> str:
    usual = usual_seconds(run, now.stage, now.folder.phase)
    parts = [now.stage]
    if now.since is not None:
        parts.append(f"for {duration(max(0.0, time.time() - now.since))}")
    if usual:
        parts.append(f"took {duration(usual[1])} in phase {usual[0]}")
    return ", ".join(parts)


def _doing(now: _Now, config: RunConfig | None) -> Iterator[tuple[str, str]]:
    """How far the stage is, where its files tell."""
    folder = now.folder
    if now.stage == "train":
        steps = [f"{name} {number}" for name, number in _steps(folder).items()]
        yield "steps", ", ".join(steps) or "none yet"
        return
    files = {"rollout": folder.trajectories, "label": folder.labels, "eval": folder.eval}
    path = files.get(now.stage)
    if path is None:
        return
    done, planned = _lines(path), _planned(now, config)
    seconds = time.time() - now.since if now.since is not None else 0.0
    rate = pace(done, seconds) if seconds else ""
    left = time_left(done, seconds, (planned or 0) - done) if seconds else ""
    what = "labels" if now.stage == "label" else "episodes"
    yield what, ", ".join(filter(None, (f"{done} of {planned}" if planned else str(done), rate, left)))
    if now.stage != "label" and done:
        judged = [t for t in read_records(path, Trajectory, lambda _: None) if t.env_reward is not None]
        for suite, mine in by_suite(judged, config and config.tasks.suite).items():
            if mine:
                where = f" on {suite}" if suite else ""
                yield "so far", f"{rate_text(success_rate(mine).to_json())}{where}, by the environment's reward"


def _planned(now: _Now, config: RunConfig | None) -> int | None:
    folder = now.folder
    if now.stage == "label":
        return _lines(folder.trajectories) or None
    if config is None:
        return None
    if now.stage == "rollout":
        return _lines(folder.tasks) * (config.rollout.num_generations if folder.phase else 1) or None
    from webrl.suites import eval_tasks

    return len(eval_tasks(config)) or None


def _usage(path: Path) -> Iterator[tuple[str, str]]:
    """What the run takes of this machine, where it works on it."""
    pid = process_in(path)
    if pid is None:
        return
    with contextlib.suppress(psutil.Error):  # it has ended meanwhile, or is somebody else's
        meter = Meter(pid)
        meter.read()
        time.sleep(_SAMPLE_S)
        yield from meter.read().texts().items()


def _evaluated(run: RunFolder) -> Iterator[tuple[str, str]]:
    for phase, marker in _markers(run, "eval"):
        for name, rate in named_rates(marker["counts"]).items():
            if name.endswith("held-out seeds") and (text := rate_text(rate)):
                yield f"phase {phase}", f"{text} of {name}"


def _left(run: RunFolder, now: _Now, num_phases: int) -> Iterator[tuple[str, str]]:
    of_phase, of_run = seconds_left(run, NAMES, now.folder.phase, num_phases)
    spent = time.time() - now.since if now.since is not None else 0.0
    usual = usual_seconds(run, now.stage, now.folder.phase)
    spent = min(spent, usual[1]) if usual else 0.0
    texts = [(of_phase, "of this phase"), (of_run, "of the run")]
    known = [f"{duration(max(0.0, seconds - spent))} {what}" for seconds, what in texts if seconds is not None]
    yield "left", f"about {', '.join(known)}" if known else "not known before a phase like this one has finished"


def _memory(run: RunFolder) -> Iterator[tuple[str, str]]:
    peaks = [(m["peak_mib"], stage, phase) for stage in NAMES for phase, m in _markers(run, stage)]
    if peaks:
        most, stage, phase = max(peaks)
        yield "memory", f"{most / 1024:.1f} GiB at its peak ({stage}, phase {phase})"
    gpu = [m["counts"].get(f"{name}_peak_gib") for _, m in _markers(run, "train") for name in ("critic", "actor")]
    if known := [peak for peak in gpu if isinstance(peak, int | float)]:
        yield "training", f"{max(known):.1f} GiB at its peak, on the GPU where there is one"


def _markers(run: RunFolder, stage: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for phase in range(run.last_phase() + 1):
        folder = run.phase(phase)
        if folder.is_done(stage):
            try:
                marker = folder.read_stage(stage)
            except (DataError, StageError):  # `webrl report` names it
                continue
            if isinstance(marker["counts"], dict):
                yield phase, marker


def _steps(folder: PhaseFolder) -> dict[str, int]:
    newest: dict[str, int] = {}
    if folder.metrics.exists():
        for _, line in read_lines(folder.metrics, lambda _: None):
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                newest[str(line.get("name"))] = line["step"]
    return newest


def _lines(path: Path) -> int:
    return count_lines(path) if path.exists() else 0
