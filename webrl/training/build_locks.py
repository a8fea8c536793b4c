"""Locks that a killed process has left in torch's folder of compiled extensions, in which DeepSpeed builds its own.

torch waits for such a lock without end and without a word (`torch.utils.file_baton`). Whoever builds has it open.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import psutil

logger = logging.getLogger(__name__)

GRACE_S = 600.0
"""Age from which a lock that no process here has open is nobody's; a younger one may be another machine's, on a shared
home."""
_POLL_S = 1.0


def drop_dead_locks(grace_s: float = GRACE_S) -> None:
    """Remove the locks of builders that were killed, waiting for the age from which that is certain."""
    for lock in sorted(_extensions_folder().glob("**/lock")):
        told = False
        while (age_s := _age(lock)) is not None and not _is_open(lock):
            if age_s >= grace_s:
                logger.warning("%s was left by a build that was killed; removed", lock)
                lock.unlink(missing_ok=True)
            elif not told:
                told = True
                logger.warning(
                    "nobody on this machine holds %s: another one builds, or a build was killed; waiting up to %.0f s "
                    "(if nothing builds, remove the file)", lock, grace_s - age_s,
                )  # fmt: skip
            else:
                time.sleep(_POLL_S)


def _extensions_folder() -> Path:
    if chosen := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(chosen)
    from torch.utils.cpp_extension import get_default_build_root

    return Path(get_default_build_root())


def _age(lock: Path) -> float | None:
    try:
        return time.time() - lock.stat().st_mtime
    except FileNotFoundError:
        return None


def _is_open(lock: Path) -> bool:
    path = str(lock.resolve())
    for process in psutil.process_iter():
        try:
            if any(file.path == path for file in process.open_files()):
                return True
        except psutil.Error:  # ended meanwhile, or somebody else's
            continue
    return False
