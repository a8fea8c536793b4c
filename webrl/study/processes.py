"""Runs the cells side by side: each is `webrl run …` in a process group of its own, which dies with this process."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from webrl.errors import WebRLError
from webrl.evaluate import named_rates, success_so_far
from webrl.llm.servers import guard
from webrl.runs.disk import make_folder
from webrl.runs.folder import RunFolder
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


@dataclass
class _Running:
    """A cell at work."""

    cell: Cell
    process: subprocess.Popen[bytes]
    slot: int
    phases: int
    """Finished phases that were announced."""
    started: float = field(default_factory=time.monotonic)


def default_parallel() -> int:
    """One cell a GPU, else one for two cores."""
    return len(visible_gpus()) or max(1, _num_cores() // 2)


def run_cells(study: Study, parallel: int) -> dict[str, str]:
    """Run what is unfinished, seeds one after the other, `parallel` cells at once; reasons of those that failed.

    A cell that fails does not stop the others. When this process ends, by whatever signal, so do the cells; the same
    call goes on from what they had finished.
    """
    work = _Work(study, parallel)
    try:
        return work.run()
    finally:
        work.stop()


def log_path(study: Study, cell: Cell) -> Path:
    """What a cell's process prints."""
    return study.folder / "logs" / f"{cell.name}.log"


class _Work:
    def __init__(self, study: Study, parallel: int) -> None:
        self._study, self._parallel = study, parallel
        self._waiting = [job for job in study.jobs if not is_finished(job)]
        names = {job.name for job in study.jobs}
        self._failures = {name: why for name, why in read_failures(study.folder).items() if name not in names}
        self._running: list[_Running] = []
        self._done = {job.name: num_finished(job) for job in study.jobs}
        self._gpus = visible_gpus()

    def run(self) -> dict[str, str]:
        self._save()
        shown = sum(self._done.values())
        total = sum(job.config.num_phases + 1 for job in self._study.jobs)
        with progress(total, "study", "phases", initial=shown) as bar:
            while self._waiting or self._running:
                self._start_what_can()
                if not self._running:
                    break  # what waits, waits for one that failed
                time.sleep(_POLL_S)
                for running in list(self._running):
                    has_ended = running.process.poll() is not None  # before its last phase is looked for
                    self._announce(running)
                    if has_ended:
                        self._end(running)
                done = sum(self._done.values())
                bar.update(done - shown)
                shown = done
        for cell in self._waiting:
            needed = next(job.name for job in self._study.needs(cell) if not is_finished(job))
            self._fail(cell, f"{needed} failed, which it starts from")
        return self._failures

    def stop(self) -> None:
        """End what runs, whole process groups."""
        for running in self._running:
            _close(running.process)
        deadline = time.monotonic() + _STOP_S
        for running in self._running:
            with suppress(subprocess.TimeoutExpired):
                running.process.wait(max(0.1, deadline - time.monotonic()))

    def _start_what_can(self) -> None:
        for cell in list(self._waiting):
            if len(self._running) >= self._parallel:
                return
            if not all(self._is_over(job) for job in self._study.needs(cell)):
                continue
            if cell in self._study.cells:
                try:
                    link_start(self._study.start_of(cell), cell)
                except (WebRLError, OSError) as error:
                    self._waiting.remove(cell)
                    self._fail(cell, str(error))
                    continue
            self._waiting.remove(cell)
            self._launch(cell)

    def _is_over(self, job: Cell) -> bool:
        """Whether a job is finished, and has let go of its folder."""
        return is_finished(job) and all(running.cell.name != job.name for running in self._running)

    def _launch(self, cell: Cell) -> None:
        slot = next(i for i in range(self._parallel) if i not in {r.slot for r in self._running})
        log = log_path(self._study, cell)
        make_folder(log.parent)
        command = [sys.executable, str(guard.__file__), *own_python("webrl.cli", *cell.arguments)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=own_environment() | self._environment(slot),
            )  # fmt: skip
        self._running.append(_Running(cell, process, slot, num_finished(cell)))
        logger.info("%s: started, %d of %d phases done", cell.name, num_finished(cell), cell.config.num_phases + 1)

    def _environment(self, slot: int) -> dict[str, str]:
        threads = str(max(1, _num_cores() // self._parallel))
        limits = {name: threads for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if name not in os.environ}
        gpu = {"CUDA_VISIBLE_DEVICES": self._gpus[slot % len(self._gpus)]} if self._gpus else {}
        return cpu_environment() | limits | gpu

    def _announce(self, running: _Running) -> None:
        self._done[running.cell.name] = num_finished(running.cell)
        if running.cell.model is not None:
            return
        for phase in range(running.phases, num_finished(running.cell)):
            counts = RunFolder(running.cell.config.run_dir).phase(phase).read_stage("eval")["counts"]
            for name, rate in named_rates(counts).items():
                if name.endswith("held-out seeds") and rate.get("episodes"):
                    success = success_so_far(rate["successes"], rate["episodes"])
                    logger.info("%s: phase %d done, %s %s", running.cell.name, phase, name, success)
            running.phases = phase + 1

    def _end(self, running: _Running) -> None:
        _close(running.process)
        self._running.remove(running)
        seconds = time.monotonic() - running.started
        if is_finished(running.cell):
            logger.info("%s: finished, %.0f s", running.cell.name, seconds)
        else:
            self._fail(running.cell, find_reason(log_path(self._study, running.cell)))

    def _fail(self, cell: Cell, reason: str) -> None:
        self._failures[cell.name] = reason
        logger.error("%s: failed: %s", cell.name, reason)
        self._save()

    def _save(self) -> None:
        write_json(self._study.folder / FAILURES, self._failures)


def read_failures(folder: Path) -> dict[str, str]:
    """Reason by cell, as the last `run_cells` left it."""
    path = folder / FAILURES
    return dict(read_json(path)) if path.is_file() else {}


def find_reason(log: Path) -> str:
    """The error line of a run's output; its last line if there is none."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line for line in lines[-_TAIL:] if line.startswith("webrl: ")]
    return (
        said[-1].removeprefix("webrl: ")
        if said
        else f"ended in mid-run ({(lines or ['no output'])[-1]:.200}); see {log}"
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    """Close the pipe that the guard watches."""
    if process.stdin:
        with suppress(OSError):
            process.stdin.close()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
