"""What a process hands back to the system."""

import platform

import psutil
import pytest
import torch

from webrl.runs.memory import free_heap


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc hands memory back on demand")
def test_memory_below_what_is_in_use_is_handed_back():
    """A training frees its tensors in any order: the C library keeps what lies below the last one in use."""
    tensors = [torch.zeros(5_000) for _ in range(15_000)]
    full = psutil.Process().memory_info().rss
    last = tensors[-1]
    tensors.clear()
    free_heap()
    assert full - psutil.Process().memory_info().rss > 250e6
    assert not last.any()
