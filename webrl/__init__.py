"""WebRL: self-evolving online curriculum reinforcement learning for LLM web agents (arXiv 2411.02337)."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if not (3, 11) <= sys.version_info < (3, 14):  # a clone is imported without pip, which would have said so
    raise ImportError(f"webrl needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}")

if TYPE_CHECKING:
    from webrl.api import load_actor, make_env, run
    from webrl.config import load_config
    from webrl.types import Task, Trajectory

__version__ = "0.1.0"
__all__ = ["Task", "Trajectory", "__version__", "load_actor", "load_config", "make_env", "run"]
# Resolved on first use: importing webrl imports neither torch nor playwright.
_HOMES = {
    "Task": "webrl.types",
    "Trajectory": "webrl.types",
    "load_actor": "webrl.api",
    "load_config": "webrl.config",
    "make_env": "webrl.api",
    "run": "webrl.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
