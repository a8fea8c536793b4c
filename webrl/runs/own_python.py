"""Python processes of webrl's own: they import what this process does, and what they start in turn does not.

API: `own_python(module, *arguments)` is the command and `own_environment()` its environment; the module's first act is
`restore_python_path()`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_OUTER_PATH = "WEBRL_OUTER_PYTHONPATH"


def own_python(module: str, *arguments: str) -> list[str]:
    """Return the command; the working folder, whose files may be called as any module is, is not searched (`-P`)."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_environment() -> dict[str, str]:
    """Return the variables of this process, with its whole `sys.path` as PYTHONPATH ("" is the working folder)."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return os.environ | {"PYTHONPATH": path, _OUTER_PATH: os.environ.get("PYTHONPATH", "")}


def restore_python_path() -> None:
    """What is started in turn (a site's server, a scorer) may be of another environment than webrl's."""
    outer = os.environ.pop(_OUTER_PATH, None)
    if outer:
        os.environ["PYTHONPATH"] = outer
    elif outer is not None:
        os.environ.pop("PYTHONPATH", None)
