"""The order of the stages: which ones a phase has, what each reads and writes, and how a run resumes.

Only this module knows the order. A stage is a function of a `Context`; it reads files of its own phase and of the
phase before, writes files of its own phase (`accept` also has the actor before play the probe), and returns its
counts. A finished stage is skipped; an interrupted one is run again and continues from what it had already written.

Phase 0 is the SFT start (seed tasks, no generation, the actor is left as it is, the critic is trained), so that
phase 1 has failures to start from and a critic whose band means something (arXiv 2411.02337 §3).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from webrl import stages
from webrl.config import RunConfig
from webrl.errors import ModelError, StageError, TrainingError, UsageError
from webrl.llm.loading import model_fingerprint
from webrl.llm.servers import guard
from webrl.llm.servers.vllm_fleet import keep_servers
from webrl.rollouts.pool import keep_browsers
from webrl.rollouts.suite import find_suite
from webrl.runs.clock import Clock, duration
from webrl.runs.disk import remove
from webrl.runs.folder import PhaseFolder, RunFolder, open_run, seconds_left, usual_seconds
from webrl.runs.lock import HOLDER, hold_run
from webrl.runs.machine import PeakMemory, free_gpu_cache, free_heap
from webrl.runs.store import read_json, write_json
from webrl.stages import Context
from webrl.training.topology import local_processes

logger = logging.getLogger(__name__)
STAGES: dict[str, Callable[[Context], dict[str, Any]]] = {
    "gen-tasks": stages.generate,
    "filter-tasks": stages.filter_generated,
    "rollout": stages.rollout,
    "label": stages.label,
    "replay": stages.replay,
    "train": stages.train,
    "accept": stages.accept,
    "eval": stages.evaluate,
}
"""The stages in the order of the paper (arXiv 2411.02337 §3), each of which reads files of the one before it, the first
of the last one of the phase before; `accept` is ours."""
_NEEDS = dict(zip(STAGES, [None, *STAGES], strict=False))
_LAST = "eval"


def run(config: RunConfig, *, on_phase: Callable[[dict[str, Any]], None] | None = None) -> RunFolder:
    """Run all phases, skipping what has finished.

    Args:
        on_phase: called with the phase's summary after each phase (the CLI prints its table).

    Raises:
        WebRLError: one clear message; finished work is kept, and the same call resumes from there.
    """
    # The sites of other suites are reset between stages, and no page may be open on them then.
    keep = keep_browsers if find_suite(config.tasks.suite).is_stateless else nullcontext
    with hold_run(config.run_dir), keep_servers(), keep():
        folder = open_run(config)
        for phase in range(config.num_phases + 1):
            for stage in STAGES:
                _run_stage(stage, Context(config, folder, phase))
            summary = write_summary(config, folder)
            if on_phase:
                on_phase(summary["phases"][phase])
    return folder


def run_stage(config: RunConfig, name: str, phase: int | None = None) -> dict[str, Any]:
    """Run one stage of one phase (default: the newest phase in which it is due) and return its counts.

    Raises:
        UsageError: unknown stage or phase.
        StageError: the stage before it has not finished, or another process is using the run folder.
    """
    if name not in STAGES:
        raise UsageError(f"unknown stage {name!r}; stages: {', '.join(STAGES)}")
    with hold_run(config.run_dir), keep_servers():
        folder = open_run(config)
        context = Context(config, folder, next_phase(folder, name) if phase is None else phase)
        _check_same_models(context)  # of a finished stage as well: other weights have not what it counted
        counts = _run_stage(name, context)
        write_summary(config, folder)
    return counts


def next_phase(folder: RunFolder, stage: str) -> int:
    """Return the first phase in which the stage is not done and the stage before it is; else the newest phase."""
    last = max(folder.last_phase(), 0)
    for phase in range(last + 2):
        target = folder.phase(phase)
        if needed := _NEEDS[stage]:
            is_ready = target.is_done(needed) or (stage == "eval" and phase == 0)
        else:
            is_ready = phase == 0 or folder.phase(phase - 1).is_done(_LAST)
        if is_ready and not target.is_done(stage):
            return phase
    return last


def plan(config: RunConfig, stage: str | None = None, phase: int | None = None) -> list[str]:
    """Return a line per phase of the run, or of the one that `run_stage` would take, with what is to do."""
    run, lines = RunFolder(config.run_dir), []
    if stage and phase is None:
        phase = next_phase(run, stage)
    for folder in map(run.phase, range(config.num_phases + 1) if phase is None else [phase]):
        left = [name for name in STAGES if stage in (None, name) and not folder.is_done(name)]
        lines.append(f"# phase {folder.phase}: {', '.join(left)} to do" if left else f"# phase {folder.phase}: done")
    return lines


def is_phase_done(folder: PhaseFolder) -> bool:
    """Return whether all stages of a phase have finished."""
    return all(map(folder.is_done, STAGES))


def write_summary(config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """Collect the counts of all finished stages into `summary.json`."""
    phases = []
    for target in map(folder.phase, range(folder.last_phase() + 1)):
        done = {name: target.read_stage(name) for name in STAGES if target.is_done(name)}
        counts: dict[str, Any] = {name: stage["counts"] for name, stage in done.items()}
        generated, kept = counts.get("gen-tasks", {}), counts.get("filter-tasks", {})
        phases.append(
            {
                "phase": target.phase,
                "num_generated": generated.get("num_generated", 0),
                "num_kept": kept.get("num_kept", 0),
                "dropped": kept.get("dropped", {}),
                "filter_notes": kept.get("notes", {}),
                "num_rollouts": counts.get("rollout", {}).get("num_rollouts", 0),
                "rollout_status": counts.get("rollout", {}).get("status", {}),
                "num_labelled_success": counts.get("label", {}).get("num_success", 0),
                "num_replayed": counts.get("replay", {}).get("num_replayed", 0),
                "losses": counts.get("train", {}),
                **{name: counts.get(name, {}) for name in ("label", "replay", "accept", "eval")},
                **{key: {name: stage[key] for name, stage in done.items()} for key in ("seconds", "peak_mib")},
            }
        )
    summary = {"name": config.name, "seed": config.seed, "phases": phases}
    write_json(folder.summary, summary)
    return summary


def _run_stage(name: str, context: Context) -> dict[str, Any]:
    folder = context.folder
    if folder.is_done(name):
        return dict(folder.read_stage(name)["counts"])
    # the start checkpoint can be evaluated before anything else has run: `webrl eval configs/webarena_lite.yaml`
    if name == "eval" and context.phase == 0:
        logger.info("phase 0 leaves the actor as it is: evaluating %s", context.actor)
    elif needed := _NEEDS[name]:
        folder.require(needed)
    else:
        for earlier in reversed(range(context.phase)):
            context.run.phase(earlier).require(_LAST)
    _check_same_models(context)
    usual = usual_seconds(context.run, name, context.phase)
    _, left = seconds_left(context.run, STAGES, context.phase, context.config.num_phases)
    parts = [f"{duration(usual[1])} in phase {usual[0]}"] if usual else []
    parts += [f"about {duration(left)} of the run left"] if left is not None else []
    logger.info("phase %d: %s%s", context.phase, name, f" ({'; '.join(parts)})" if parts else "")
    if name == "train" and (processes := local_processes(context.config)) > 1:
        # As `bash run_multinode.sh` does, in a job that ends with this process and writes into the folder it holds.
        logs = os.environ.get("WEBRL_LOG_DIR") or str(context.config.runs_dir / "logs")
        job = {"NNODES": "1", "NODE_RANK": "0", "NPROC_PER_NODE": str(processes), "WEBRL_LOG_DIR": logs}
        run, number = str(context.run.path), str(context.phase)
        command = [sys.executable, "-m", "webrl.cli.launch", "--run", run, "--phase", number]
        free_gpu_cache()
        process = subprocess.Popen(
            [sys.executable, guard.__file__, *command],
            stdin=subprocess.PIPE,
            env=os.environ | job | {HOLDER: str(os.getpid())},
            start_new_session=True,
        )
        try:
            process.wait()
        finally:  # after Ctrl-C too: the job is gone before the folder is given up
            process.communicate()
        if not folder.is_done("train"):  # its own error is on standard error and in its logs
            failed = f"phase {number}: training by {processes} processes failed"
            raise TrainingError(f"{failed}, see above; logs: {logs}")
        return dict(folder.read_stage("train")["counts"])
    started = time.monotonic()
    with PeakMemory() as memory, Clock() as clock:
        counts = STAGES[name](context)
    seconds = time.monotonic() - started
    free_heap()
    folder.mark_done(name, counts, seconds, memory.peak_mib, context.config, clock.seconds)
    if name == _LAST and context.config.keep_models:
        _drop_models(context.run, context.config.keep_models)
    return counts


def _check_same_models(context: Context) -> None:
    """Raise StageError if a model folder that the config names holds other weights than when the run began."""
    config, path, found = context.config, context.run.path / "models.json", dict[str, str]()
    used = {"orm": config.label.judge != "environment", "generator": config.tasks.source == "curriculum"}
    for key in [key for key, is_used in (used | {"actor": context.phase == 0}).items() if is_used]:
        name = getattr(config.models, key)
        with suppress(ModelError, RuntimeError):  # a server has the weights; no such home
            found[f"models.{key}={name}"] = model_fingerprint(name)
    known = read_json(path) if path.exists() else {}
    changed = [name for name in found.keys() & known.keys() if found[name] != known[name]]
    if changed:
        raise StageError(
            f"{', '.join(sorted(changed))}: holds other weights than when this run began ({path}); put those back, or "
            "start a new run with name=NAME"
        )
    if not found.keys() <= known.keys():
        write_json(path, known | found)


def _drop_models(run: RunFolder, keep: int) -> None:
    """Remove models of finished phases but the newest, the best and those that a run, cell or adapter near it names."""
    finished = [folder for k in range(run.last_phase(), -1, -1) if is_phase_done(folder := run.phase(k))]
    # the newest of several
    best = max(finished, key=lambda folder: folder.read_stage("eval")["counts"].get("successes", 0), default=None)
    kinds = (f"{depth}/{name}" for depth in ("*", "*/*") for name in ("config.yaml", "adapter_config.json"))
    near = (path for kind in kinds for path in run.path.parent.glob(kind))
    others = [path for path in near if path != run.config and os.access(path, os.R_OK)]
    named = "".join(path.read_text(encoding="utf-8", errors="replace") for path in others)
    for folder in finished[keep:]:
        if folder is not best and f"{run.path.name}/{folder.path.name}/" not in named:
            for model in (folder.actor, folder.critic):
                remove(model)
