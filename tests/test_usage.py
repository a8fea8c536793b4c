"""What a run takes of its machine: real processes, and a driver's answers."""

from __future__ import annotations

import io
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from report_builders import build_run

from webrl.reports.status import status
from webrl.runs.lock import hold_run
from webrl.runs.machine import PeakMemory, free_heap, measure, usage
from webrl.runs.progress import PlainProgress, progress

PATIENCE_S = 120


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def test_a_process_that_works_takes_cores_and_one_that_waits_none():
    work = "import sys, threading\nfor line in sys.stdin:\n    while True: pass\n"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, text=True) as process:
        assert measure(process.pid)[0] > 0
        assert eventually(lambda: usage(process.pid, 0.5)["cores"].startswith("0.0 of "))
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        assert eventually(lambda: not usage(process.pid, 0.5)["cores"].startswith("0.0 of "))
        process.kill()
    with pytest.raises(psutil.NoSuchProcess):
        measure(process.pid)


def test_gpus_are_what_the_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\ncase "$*" in *query-gpu=index*) printf "0\\n1\\n";; *) printf "80, 1024, 81920\\n'
                      '90, 3072, 81920\\n";; esac\n', encoding="utf-8")  # fmt: skip
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert usage(os.getpid(), 0.1)["gpu"] == "2 GPUs 85 % at work, 4.0 of 160.0 GiB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "gpu" not in usage(os.getpid(), 0.1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver.write_text("#!/bin/sh\necho '[N/A], 3072, 81920'\n", encoding="utf-8")  # a part of a divided GPU
    assert "gpu" not in usage(os.getpid(), 0.1)


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere_while_memory_is_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    with PeakMemory(interval_s=0.05) as memory, monkeypatch.context() as on_terminal:
        on_terminal.setattr(sys, "stderr", Terminal())
        with progress(3, "rollout p01", "episodes") as bar:
            bar.set_postfix_str("success 1/2")
            bar.update(2)
            assert "success 1/2" in str(bar)
        assert eventually(lambda: memory.peak_mib > 10)
    with caplog.at_level(logging.INFO), PlainProgress(1, "label", "labels", every_s=0) as bar:
        bar.update()
    assert caplog.messages[0].startswith("label: 1 of 1 labels")


def test_status_says_what_the_run_takes_of_this_machine(tmp_path: Path):
    run = build_run(tmp_path / "run", num_phases=2)
    (run.phase(2).path / "stages" / "eval.json").unlink()
    assert "cores" not in dict(status(run.path))
    with hold_run(run.path):
        said = dict(status(run.path))["cores"]
    assert f" of {os.cpu_count()} cores, " in said


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc hands memory back on demand")
def test_memory_below_what_is_in_use_is_handed_back() -> None:
    """A training frees its tensors in any order: the C library keeps what lies below the last one in use."""
    tensors = [torch.zeros(5_000) for _ in range(15_000)]
    full = psutil.Process().memory_info().rss
    last = tensors[-1]
    tensors.clear()
    free_heap()
    assert full - psutil.Process().memory_info().rss > 250e6
    assert not last.any()
