"""Runs the cells side by side: each is `webrl run …` in a process group of its own, which dies with this process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from webrl.errors import WebRLError
from webrl.llm.servers import guard
from webrl.runs.disk import make_folder
from webrl.runs.machine import visible_gpus
from webrl.runs.own_python import own_environment, own_python
from webrl.runs.progress import progress
from webrl.runs.store import read_json, write_json
from webrl.study.cells import is_finished, link_start, num_finished
from webrl.study.plan import Cell, Study
from webrl.training.cpu_variables import cpu_environment

logger = logging.getLogger(__name__)

FAILURES = "failures.json"
"""Reason by cell, of those whose last try failed."""
_POLL_S = 0.5
_STOP_S = 20.0
"""Longest wait for process groups to end: the guard kills what is left after 10 s."""
_TAIL = 40
"""Lines of a log that are searched for the error."""


def default_parallel() -> int:
    """One cell a GPU, else one for two cores."""
    return len(visible_gpus()) or max(1, _num_cores() // 2)


def run_cells(study: Study, parallel: int) -> dict[str, str]:
    """Run what is unfinished, seeds one after the other, `parallel` cells at once; reasons of those that failed.

    A cell that fails does not stop the others. When this process ends, by whatever signal, so do the cells; the same
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

    def can_start(cell: Cell) -> bool:
        at_work = {other.name for other, _ in running.values()}  # a finished cell may still hold its folder
        return all(is_finished(job) and job.name not in at_work for job in study.needs(cell))

    write_json(study.folder / FAILURES, failures)
    done = {job.name: num_finished(job) for job in study.jobs}
    total = sum(job.config.num_phases + 1 for job in study.jobs)
    try:
        with progress(total, "study", "phases", initial=sum(done.values())) as bar:
            while waiting or running:
                for cell in filter(can_start, list(waiting)):
                    if len(running) == parallel:
                        break
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
                            fail(cell, find_reason(log_path(study, cell)))
    finally:
        _end([process for _, process in running.values()])
    for cell in waiting:
        needed = next(job.name for job in study.needs(cell) if not is_finished(job))
        fail(cell, f"{needed} failed, which it starts from")
    return failures


def log_path(study: Study, cell: Cell) -> Path:
    """What a cell's process prints."""
    return study.folder / "logs" / f"{cell.name}.log"


def read_failures(folder: Path) -> dict[str, str]:
    """Reason by cell, as the last `run_cells` left it."""
    path = folder / FAILURES
    return dict(read_json(path)) if path.is_file() else {}


def find_reason(log: Path) -> str:
    """The error line of a run's output; its last line if there is none."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines[-_TAIL:] if line.startswith("webrl: ")]
    if said:
        return said[-1].removeprefix("webrl: ")
    return f"ended in mid-run ({(lines or ['no output'])[-1]:.200}); see {log}"


def _start(study: Study, cell: Cell, slot: int, parallel: int) -> subprocess.Popen[bytes]:
    """Start a cell's process on its share of the cores, and on its slot's GPU."""
    log = log_path(study, cell)
    make_folder(log.parent)
    gpus, threads = visible_gpus(), str(max(1, _num_cores() // parallel))
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


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
