"""Runs the cells of a study, each `webrl run …` in its own process group, and keeps their folders comparable: a
seed's phase 0 is played once, linked into its cells, and must stay the same.
"""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from webrl.config import share
from webrl.errors import DataError, StageError, WebRLError
from webrl.llm.servers import guard
from webrl.phase import is_phase_done
from webrl.replay.stage import SCORE_CACHE
from webrl.runs.clock import progress
from webrl.runs.disk import atomic_path, make_folder, remove
from webrl.runs.folder import RunFolder, changed_settings, name_changes
from webrl.runs.machine import cpu_environment, own_environment, own_python, visible_gpus
from webrl.runs.store import read_json, write_json
from webrl_study.plan import START, Cell, Study

logger = logging.getLogger(__name__)

FAILURES = "failures.json"
"""Reason by cell, of those whose last try failed."""
_POLL_S = 0.5
_STOP_S = 20.0
"""Longest wait for process groups to end: the guard kills what is left after 10 s."""
_TAIL = 40
"""Lines of a log that are searched for the error."""
_JUDGED = ("label", "replay", "train", "accept")
"""Stages of phase 0 after the episodes: redone where a method judges or trains its critic otherwise."""
_JUDGED_FILES = (
    "labels.jsonl", "train.jsonl", "train_filter.jsonl", "problems.txt", "critic", "critic_counts.json",
    "metrics.jsonl",
)  # fmt: skip


def num_finished(cell: Cell) -> int:
    """Count phases that are finished and evaluated, phase 0 included; of a training, 1 if it is finished."""
    if cell.model is not None:
        return int(training_report(cell.model).is_file())
    run = RunFolder(cell.config.run_dir)
    for phase in range(cell.config.num_phases + 1):
        if not is_phase_done(run.phase(phase)):
            return phase
    return cell.config.num_phases + 1


def is_finished(cell: Cell) -> bool:
    """Return whether all phases are finished."""
    return num_finished(cell) > cell.config.num_phases


def link_start(start: Cell, cell: Cell) -> None:
    """Give a cell the phase 0 of its seed, as hard links where the disk has them; what it judges otherwise is left out.

    Raises:
        StageError: the cell has a phase 0 already, of another start (see `check_start`).
    """
    source, target = RunFolder(start.config.run_dir), RunFolder(cell.config.run_dir)
    if target.phase(0).path.exists():
        check_start(start, cell)
        return
    make_folder(target.path)
    if (source.path / SCORE_CACHE).is_file():  # grows in place: never a link
        with atomic_path(target.path / SCORE_CACHE) as temporary:
            shutil.copyfile(source.path / SCORE_CACHE, temporary)

    def link(original: str, copy: str) -> None:
        try:
            os.link(original, copy)
        except OSError:  # a disk without hard links
            shutil.copy2(original, copy)

    with atomic_path(target.phase(0).path) as temporary:
        shutil.copytree(source.phase(0).path, temporary, copy_function=link)
        lacks_critic = cell.config.trains_critic and not start.config.trains_critic
        # What labels, records and critic depend on; the released objective's records hold one prompt more.
        before, after = (
            (run.label, run.models, run.critic, run.actor.objective == "webrl_released")
            for run in (start.config, cell.config)
        )
        if lacks_critic or before != after:
            for name in (*_JUDGED_FILES, *(f"stages/{stage}.json" for stage in _JUDGED)):
                remove(temporary / name)


def check_config(cell: Cell) -> None:
    """Return if what there is of a cell was made with its settings.

    Raises:
        StageError: it was not, so that its numbers are not this study's; old and new values and the fix are named.
    """
    run = RunFolder(cell.config.run_dir)
    changed: dict[str, str] = {}
    if cell.model is None:
        changed = changed_settings(run, cell.config) if run.config.is_file() else {}
    elif cell.demos and (report := training_report(cell.model)).is_file():
        made = read_json(report)
        command: list[str] = made["command"]
        data = command[command.index("--data") + 1 : command.index("--out")]
        was, now = share(made["config"]), share(cell.config.model_dump(mode="json"))
        pairs: dict[str, tuple[Any, Any]] = {"demos": (data, list(map(str, cell.demos)))}
        pairs["models.actor"] = (was["models"]["actor"], now["models"]["actor"])
        pairs |= {f"sft.{key}": (was["sft"].get(key), value) for key, value in now["sft"].items()}
        changed = {key: f"was {old!r}, now {new!r}" for key, (old, new) in pairs.items() if old != new}
    if changed.get("models.actor", "").count(f"{START}-seed{cell.seed}/sft'") == 2:  # the study's folder was moved
        del changed["models.actor"]
    if changed:
        raise StageError(
            f"{run.path} was made with other settings ({name_changes(changed)}), so its numbers would be mistaken for "
            "this study's; restore them, give the study another --name or the method another name, or remove "
            "the folder"
        )


def training_report(model: Path) -> Path:
    """Return the path of the report of the training that writes `model`."""
    return model.with_name(f"{model.name}_report") / "report.json"


def check_start(start: Cell, cell: Cell) -> None:
    """Return if a cell began with the start of its seed: the same tasks, episodes and evaluation.

    Raises:
        StageError: it did not; the file and the fix are named.
    """
    mine, theirs = (RunFolder(c.config.run_dir).phase(0) for c in (cell, start))
    for path, other in ((mine.tasks, theirs.tasks), (mine.trajectories, theirs.trajectories), (mine.eval, theirs.eval)):
        there = path.is_file(), other.is_file()
        if any(there) and not (all(there) and filecmp.cmp(path, other, shallow=False)):
            raise StageError(
                f"{path} is not {other}: {cell.name} had a different starting point and cannot be compared; remove "
                f"{cell.config.run_dir}, and the same command runs it again"
            )


def run_cells(study: Study, parallel: int) -> dict[str, str]:
    """Run what is unfinished, seeds one after the other, `parallel` cells at once; returns why some failed, by cell.

    A cell that fails does not stop the others. When this process ends, by any signal, so do the cells; the same
    call continues from what they had finished.
    """
    waiting = [job for job in study.jobs if not is_finished(job)]
    running: dict[int, tuple[Cell, subprocess.Popen[bytes]]] = {}  # by slot
    names = {job.name for job in study.jobs}
    failures = {name: why for name, why in read_failures(study.folder).items() if name not in names}

    def fail(cell: Cell, reason: str) -> None:
        failures[cell.name] = reason
        logger.error("%s: failed: %s", cell.name, reason)
        write_json(study.folder / FAILURES, failures)

    write_json(study.folder / FAILURES, failures)
    done = {job.name: num_finished(job) for job in study.jobs}
    total = sum(job.config.num_phases + 1 for job in study.jobs)
    try:
        with progress(total, "study", "phases", initial=sum(done.values())) as bar:
            while waiting or running:
                for cell in list(waiting):
                    if len(running) == parallel:
                        break
                    at_work = {other.name for other, _ in running.values()}  # a finished cell may still hold its folder
                    if not all(is_finished(job) and job.name not in at_work for job in study.needs(cell)):
                        continue
                    waiting.remove(cell)
                    try:
                        if cell in study.cells:
                            link_start(study.start_of(cell), cell)
                    except (WebRLError, OSError) as error:
                        fail(cell, str(error))
                        continue
                    slot = min(set(range(parallel)) - running.keys())
                    running[slot] = cell, _start(study, cell, slot, parallel)
                    phases = cell.config.num_phases + 1
                    logger.info("%s: started, %d of %d phases done", cell.name, done[cell.name], phases)
                if not running:
                    break  # what waits, waits for one that failed
                time.sleep(_POLL_S)
                for slot, (cell, process) in list(running.items()):
                    has_ended = process.poll() is not None  # before its last phase is looked for
                    phases = num_finished(cell)
                    bar.update(phases - done[cell.name])
                    done[cell.name] = phases
                    if has_ended:
                        _end([running.pop(slot)[1]])
                        if is_finished(cell):
                            logger.info("%s: finished", cell.name)
                        else:
                            fail(cell, find_reason(study.folder / "logs" / f"{cell.name}.log"))
    finally:
        _end([process for _, process in running.values()])
    for cell in waiting:
        needed = next(job.name for job in study.needs(cell) if not is_finished(job))
        fail(cell, f"{needed} failed, which it starts from")
    return failures


def read_failures(folder: Path) -> dict[str, str]:
    """Read the reason by cell, as the last `run_cells` left it. Raises DataError."""
    path = folder / FAILURES
    found = read_json(path) if path.is_file() else {}
    if not isinstance(found, dict) or not all(isinstance(why, str) for why in found.values()):
        raise DataError(f"{path}: not the reason of each failed cell; remove it, and the next run writes another")
    return found


def find_reason(log: Path) -> str:
    """Return the error line of a run's output; its last line if there is none."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines[-_TAIL:] if line.startswith("webrl: ")]
    if said:
        return said[-1].removeprefix("webrl: ")
    return f"ended in mid-run ({(lines or ['no output'])[-1]:.200}); see {log}"


def _start(study: Study, cell: Cell, slot: int, parallel: int) -> subprocess.Popen[bytes]:
    """Start a cell's process on its share of the cores, and on its slot's GPU."""
    log = study.folder / "logs" / f"{cell.name}.log"
    make_folder(log.parent)
    gpus, threads = visible_gpus(), str(max(1, num_cores() // parallel))
    environment = own_environment() | cpu_environment()
    environment |= {name: threads for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    command = [sys.executable, str(guard.__file__), *own_python("webrl.cli", *cell.arguments)]
    with log.open("wb") as output:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment,
        )  # fmt: skip


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Close the pipes that the guards watch, and wait until whole process groups have ended."""
    for process in processes:
        if process.stdin:
            with suppress(OSError):
                process.stdin.close()
    deadline = time.monotonic() + _STOP_S
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, deadline - time.monotonic()))


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
