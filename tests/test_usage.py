"""What a run takes of its machine: real processes, a real browser, and a driver's answers."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from report_builders import build_run

from webrl.reports.status import status
from webrl.rollouts.browser import Browser
from webrl.runs.lock import hold_run
from webrl.runs.machine import Meter, Usage
from webrl.runs.memory import PeakMemory
from webrl.runs.progress import PlainProgress, progress

PATIENCE_S = 120


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.2)
    return found


def test_a_process_that_works_takes_cores_and_one_that_waits_none(tmp_path: Path):
    work = "import sys, threading\nfor line in sys.stdin:\n    while True: pass\n"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, text=True) as process:
        meter = Meter(process.pid)
        assert meter.read().mib > 0
        assert eventually(lambda: meter.read().cores < 0.01)
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        assert eventually(lambda: meter.read().cores > 0.05)
        assert meter.read().browsers == 0
        process.kill()
    with pytest.raises(psutil.NoSuchProcess):
        meter.read()


@pytest.mark.browser
def test_a_browser_is_counted_with_its_pages_and_whether_it_works():
    async def body() -> tuple[bool, bool, Usage]:
        before = Meter().read().browsers  # that other tests share
        browser = await Browser().start()
        try:
            context = await browser.new_context()
            page = await context.new_page()
            meter = Meter()
            assert meter.read().browsers == before + 1  # not one for each of its processes
            await page.evaluate("() => { window.on = true; const f = () => { for (let i = 0; i < 2e7; i++); "
                                "if (window.on) setTimeout(f, 0); }; f(); }")  # fmt: skip
            worked = eventually(lambda: meter.read().busy_browsers >= 1)
            seen = meter.read()
            await page.evaluate("() => { window.on = false; }")
            return worked, eventually(lambda: meter.read().busy_browsers == 0), seen
        finally:
            await browser.close()

    worked, rested, seen = asyncio.run(body())
    assert worked
    assert rested
    assert 0 < seen.browser_mib < seen.mib
    assert f" of {seen.browsers} browsers busy (" in seen.texts()["browsers"]


def test_gpus_are_what_the_driver_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    driver = tmp_path / "nvidia-smi"
    driver.write_text('#!/bin/sh\ncase "$*" in *query-gpu=index*) printf "0\\n1\\n";; *) printf "80, 1024, 81920\\n'
                      '90, 3072, 81920\\n";; esac\n', encoding="utf-8")  # fmt: skip
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    usage = Meter().read()
    assert usage.gpus == ((80.0, 1024.0, 81920.0), (90.0, 3072.0, 81920.0))
    assert usage.texts()["gpu"] == "2 GPUs 85 % at work, 4.0 of 160.0 GiB"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "gpu" not in Meter().read().texts()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    driver.write_text("#!/bin/sh\necho '[N/A], 3072, 81920'\n", encoding="utf-8")  # a part of a divided GPU
    assert Meter().read().gpus == ()


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
