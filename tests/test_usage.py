"""What a run takes of its machine: real processes, and a driver's answers."""

from __future__ import annotations

import io
import logging
import platform
import sys
import time
from collections.abc import Callable

import psutil
import pytest
import torch

from webrl.runs.machine import PeakMemory, free_heap
from webrl.runs.progress import PlainProgress, progress

PATIENCE_S = 120


def eventually(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not (found := holds()) and time.monotonic() < until:
        time.sleep(0.2)
    return found


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
