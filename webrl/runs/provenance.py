"""What a result came from: resolved config, package versions, git commit and seed, saved beside every output."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import webrl
from webrl.config import RunConfig
from webrl.config.redaction import redact_argument

PACKAGES = (
    "torch", "transformers", "tokenizers", "accelerate", "deepspeed", "peft", "vllm", "ray", "datasets", "numpy",
    "scikit-learn", "browsergym-core", "miniwob", "playwright", "openenv", "openenv-core",
)  # fmt: skip
"""Packages whose versions can change a result; those that are not installed are left out."""


def run_info(config: RunConfig) -> dict[str, Any]:
    """`config`, `seed`, `versions`, `git_commit`, `platform`, `command`, `finished_at` (UTC) for JSON, no secrets."""
    return {
        "seed": config.seed,
        "git_commit": git_commit(),
        "versions": dict(package_versions()),
        "platform": platform.platform(),
        "command": [redact_argument(argument) for argument in sys.argv],
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "config": config.model_dump(mode="json"),
    }


@cache
def package_versions() -> tuple[tuple[str, str], ...]:
    """Return (name, version) of webrl, Python and the installed ones of `PACKAGES`."""
    found = [("webrl", webrl.__version__), ("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)


@cache
def git_commit() -> str | None:
    """Commit of the clone that this package runs from, with `-dirty` if files differ; None outside a clone."""
    root = Path(webrl.__file__).parent
    # A virtual environment may lie inside somebody else's repository: ours is one that tracks this file.
    if _git(root, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(root, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
