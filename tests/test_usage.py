"""What a run takes of its machine, measured on real processes."""

import platform

import psutil
import pytest
import torch
from processes import wait_until

from webrl.runs.machine import PeakMemory, free_heap


def test_memory_is_measured_while_the_block_runs() -> None:
    with PeakMemory() as memory:
        wait_until(lambda: memory.peak_mib > 10, 120)


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
