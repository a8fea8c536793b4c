"""What Trac takes from setuptools' `pkg_resources`, which setuptools has dropped and Trac 1.6 still imports.

API: `import_trac()`, before anything else of Trac is imported. Files are looked for beside the packages' modules; no
plugin is.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from webrl.errors import StageError

DistributionNotFound = importlib.metadata.PackageNotFoundError
working_set: tuple[()] = ()
_HIDDEN = ("babel", "multipart")
"""Trac takes any package called multipart for the one that it knows; with Babel its language is the browser's."""
_PARTS = (
    "attachment",
    "admin.web_ui",
    "db.sqlite_backend",
    "prefs.web_ui",
    "search.web_ui",
    "ticket.admin",
    "ticket.batch",
    "ticket.query",
    "ticket.report",
    "ticket.roadmap",
    "ticket.web_ui",
    "timeline.web_ui",
    "web.auth",
    "web.main",
    "web.session",
    "wiki.admin",
    "wiki.macros",
    "wiki.web_ui",
)


class VersionConflict(Exception):
    """Never raised here."""


class UnknownExtra(Exception):
    """Never raised here."""


@dataclass(frozen=True)
class Distribution:
    """What a page about an internal error says of a package."""

    project_name: str
    version: str
    location: str = ""

    def has_metadata(self, name: str) -> bool:  # noqa: ARG002
        """None is read."""
        return False

    def get_metadata(self, name: str) -> str:
        """Raises FileNotFoundError, as a package without that file does."""
        raise FileNotFoundError(name)


def import_trac() -> None:
    """Import Trac with all of its parts that the arena serves."""
    hidden = {name: sys.modules.get(name) for name in _HIDDEN}
    sys.modules.update(dict.fromkeys(_HIDDEN), pkg_resources=sys.modules[__name__])  # type: ignore[arg-type]
    try:
        for name in _PARTS:
            importlib.import_module(f"trac.{name}")
    finally:
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def get_distribution(name: str) -> Distribution:
    """Raises DistributionNotFound: it is not installed."""
    return Distribution(name, importlib.metadata.version(name))


def find_distributions(path: str, only: bool = False) -> tuple[Distribution, ...]:  # noqa: ARG001
    """None: it is asked which plugins lie in a folder."""
    return ()


def parse_version(text: str) -> tuple[int, ...]:
    """For comparisons of main versions."""
    return tuple(map(int, re.findall(r"\d+", text)))


def resource_filename(package: str, name: str) -> str:
    """The path of a file or folder that comes with a package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise StageError(f"{package} has no files")
    return str(Path(spec.origin).parent / name)


def resource_exists(package: str, name: str) -> bool:
    """Whether it comes with the package."""
    return Path(resource_filename(package, name)).exists()


def resource_listdir(package: str, name: str) -> list[str]:
    """The names in a folder that comes with a package."""
    return [path.name for path in Path(resource_filename(package, name)).iterdir()]
