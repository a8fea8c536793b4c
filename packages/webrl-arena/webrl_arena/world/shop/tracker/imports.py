"""Imports Trac 1.6, which takes a few functions from setuptools' `pkg_resources`, a module that setuptools has dropped.

API: `import_trac()`, before anything else of Trac is imported.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_HIDDEN = ("babel", "multipart")
"""Trac takes any package called multipart for the one that it knows; with Babel its language is the browser's."""
_PARTS = (
    *("attachment", "admin.web_ui", "db.sqlite_backend", "prefs.web_ui", "search.web_ui", "timeline.web_ui"),
    *("ticket.admin", "ticket.batch", "ticket.query", "ticket.report", "ticket.roadmap", "ticket.web_ui"),
    *("web.auth", "web.main", "web.session", "wiki.admin", "wiki.macros", "wiki.web_ui"),
)


def import_trac() -> None:
    """Import Trac with all of its parts that the arena serves."""
    names: dict[str, Any] = {
        "DistributionNotFound": importlib.metadata.PackageNotFoundError,
        "UnknownExtra": LookupError,
        "VersionConflict": LookupError,
        "find_distributions": lambda path, only=False: (),  # noqa: ARG005 - of plugins in a folder
        "get_distribution": importlib.metadata.distribution,
        "parse_version": lambda text: tuple(map(int, re.findall(r"\d+", text))),
        "resource_filename": lambda package, name: str(Path(str(import_module(package).__file__)).parent / name),
        "working_set": (),
    }
    resources = ModuleType("pkg_resources")
    vars(resources).update(names)
    hidden = {name: sys.modules.get(name) for name in _HIDDEN}
    sys.modules.update(dict.fromkeys(_HIDDEN), pkg_resources=resources)  # type: ignore[arg-type]
    try:
        for name in _PARTS:
            import_module(f"trac.{name}")
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
