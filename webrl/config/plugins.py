"""What installed packages add to webrl, found by their entry points; nothing is imported to list it.

Groups:

- `SUITES`: suites of tasks (`tasks.suite`; `webrl.rollouts.suite.Suite`);
- `SITES`: sites of tasks that do not begin with their suite's name;
- `ENVIRONMENTS`: values of `rollout.env` other than a browser on this machine;
- `COMMANDS`: subcommands (`webrl.cli.command.Command`);
- `HOOKS`: functions that the core calls where the companion that has them is installed: `report` (the page at the end
  of a run), `loss-figure` and `reliability-figure` (of `webrl sft` and of a trained judge), `miniwob-experts` and
  `record-experts` (`rollout.policy=expert`), `check-sites` (`webrl doctor --sites`), `page-details`
  (`rollout.page_details`), `ray-workers` (`rollout.backend=ray`), `read-vab` and `read-released` (episodes of other
  programs), `process-data` and `gen-task` (the published scripts).

In a clone the rows of webrl and of the companions that are installed are those of their `pyproject.toml`, so that they
are the code's even where the clone was updated and not installed again.
"""

from __future__ import annotations

import contextlib
import logging
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from pydantic import model_validator

from webrl.config.section import Section
from webrl.errors import ExtraMissing, UsageError

logger = logging.getLogger(__name__)
_tell_once = cache(logger.log)

SUITES = "webrl.suites"
SITES = "webrl.sites"
ENVIRONMENTS = "webrl.environments"
COMMANDS = "webrl.commands"
HOOKS = "webrl.hooks"

COMPANIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "arena": {SUITES: ("arena",), COMMANDS: ("arena",)},
    "grpo": {COMMANDS: ("grpo",)},
    "report": {COMMANDS: ("push", "report", "view"), HOOKS: ("loss-figure", "reliability-figure", "report")},
    "serve": {
        COMMANDS: ("serve-env", "serve-model"),
        ENVIRONMENTS: ("openenv",),
        HOOKS: ("page-details", "ray-workers"),
    },
    "site": {
        SUITES: ("web",),
        COMMANDS: ("init-site", "record-demos"),
        HOOKS: ("miniwob-experts", "record-experts"),
    },
    "study": {COMMANDS: ("study",)},
    "webarena": {
        SUITES: ("webarena", "webarena_lite"),
        HOOKS: ("check-sites", "gen-task", "process-data", "read-released", "read-vab"),
        SITES: ("gitlab", "map", "reddit", "shopping", "shopping_admin", "wikipedia"),
    },
}
"""By extra of webrl: what the companion package brings that it installs."""

PACKAGES = ("webrl", *(f"webrl_{extra}" for extra in COMPANIONS))
"""The import names of this release's packages, which are those of their loggers."""


def names(group: str) -> list[str]:
    """Return the names of a group, sorted; broken ones too."""
    return sorted(_rows(group))


def companion_of(group: str, name: str) -> str | None:
    """The extra of webrl that brings a name."""
    return next((extra for extra, brought in COMPANIONS.items() if name in brought.get(group, ())), None)


def is_known(group: str, name: str) -> bool:
    """Whether a package has this name, or a companion of webrl that is not installed."""
    return name in _rows(group) or companion_of(group, name) is not None


def find(group: str, name: str) -> EntryPoint:
    """Return the entry point of a name.

    Raises:
        ExtraMissing: it is in a companion of webrl that is not installed.
        UsageError: none has that name, or several packages have one.
    """
    rows = _rows(group).get(name, ())
    if len(rows) == 1:
        return rows[0]
    if rows:
        packages = " and ".join(sorted(_package(row) for row in rows))
        raise UsageError(f"{name!r} is provided by {packages} ({group}); uninstall all but one of them")
    if extra := companion_of(group, name):
        raise ExtraMissing(f"{name!r} is not installed: pip install 'webrl[{extra}]' (in a clone: make setup)")
    raise UsageError(f"there is no {name!r}; installed: {', '.join(map(repr, names(group)))}")


def load(group: str, name: str) -> Any:
    """Load the entry point of that name; UsageError as of `find`, or if it cannot be imported."""
    row = find(group, name)
    try:
        return row.load()
    except Exception as error:  # a package may raise anything at import
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"{name!r}: {row.value} of {_package(row)} cannot be imported: {problem}") from error


def settings_of(suite: str) -> type[Section]:
    """Return the model of a suite's config section: `SETTINGS` of the module `settings` next to the suite's own.

    For a suite that is not installed, or cannot be imported, it accepts any settings and keeps none: a run of another
    suite may have been saved with them, and one of this suite is refused (`find`, `load`).
    """
    try:
        package = find(SUITES, suite).module.rpartition(".")[0]
        found: type[Section] = import_module(f"{package}.settings").SETTINGS
        return found
    except UsageError as error:
        level, reason = logging.INFO, str(error)
    except Exception as error:  # a package may raise anything at import
        level, reason = logging.WARNING, f"{type(error).__name__}: {error}"

    class Unread(Section):
        @model_validator(mode="before")
        @classmethod
        def _keep_none(cls, data: Any) -> Any:
            if isinstance(data, dict) and data:
                _tell_once(level, "rollout.%s is left out: %s", suite, reason)
            return {}

    return Unread


def hook(name: str) -> Any | None:
    """Return the function of a hook; None, with the reason logged, if its companion is absent or cannot be imported."""
    try:
        return load(HOOKS, name)
    except ExtraMissing as missing:
        words, fix = name.replace("-", " "), str(missing).partition(": ")[2]
        _tell_once(logging.INFO, "there is no %s: its package is not installed: %s", words, fix)
    except UsageError as broken:  # found at the end of a run, whose results must not be lost to it
        logger.warning("%s", broken)
    return None


@cache
def _rows(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    projects = _projects()
    found = [row for row in entry_points(group=group) if _package(row) not in projects]
    for package, project in projects.items():
        with contextlib.suppress(PackageNotFoundError):
            if package != "webrl":
                distribution(package)
            rows = project.get("entry-points", {}).get(group, {})
            found += [EntryPoint(name, value, group) for name, value in rows.items()]
    return {name: tuple(row for row in found if row.name == name) for name in dict.fromkeys(row.name for row in found)}


@cache
def _projects() -> dict[str, Any]:
    """By package: `[project]` of each `pyproject.toml` of the clone that this file lies in; none if it is installed."""
    clone = Path(__file__).parents[2]
    files = [*clone.glob("pyproject.toml"), *sorted(clone.glob("packages/*/pyproject.toml"))]
    found = [tomllib.loads(path.read_text(encoding="utf-8")).get("project", {}) for path in files]
    projects = {project.get("name"): project for project in found}
    return projects if "webrl" in projects else {}  # next to an installed webrl lies another package's, if any


def _package(row: EntryPoint) -> str:
    return row.dist.name if row.dist else row.module.partition(".")[0].replace("_", "-")
