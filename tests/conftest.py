"""What all tests share: a quiet, offline process, and skips for hardware that this machine lacks."""

import importlib.util
import os

import pytest

# Before torch is imported: the CPU settings that webrl's launcher sets, and no look-ups on model hubs.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip `gpu` and `vllm` tests where there is none; a missing browser is an error, not a skip."""
    lacking = {
        "gpu": "" if _has_gpu(items) else "no GPU that torch can use",
        "vllm": "" if _has_vllm() else "no vLLM here; name an environment that has it: WEBRL_VLLM_PYTHON=...",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _has_vllm() -> bool:
    return bool(os.environ.get("WEBRL_VLLM_PYTHON")) or importlib.util.find_spec("vllm") is not None


def _has_gpu(items: list[pytest.Item]) -> bool:
    if not any(item.get_closest_marker("gpu") for item in items):
        return False
    import torch

    return torch.cuda.is_available()
