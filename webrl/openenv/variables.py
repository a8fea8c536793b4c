"""The environment variables that OpenEnv's BrowserGym server reads (its Dockerfile sets them), read the same way here.

API: `read_variables(environ) -> Variables`. Options of the command line come before them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from webrl.errors import UsageError
from webrl.openenv.pictures import MAX_SIDE, MIN_SIDE
from webrl.rollouts.sites import BENCHMARKS, site_name

logger = logging.getLogger(__name__)

_PREFIX = "BROWSERGYM_"
_READ = ("BENCHMARK", "TASK_NAME", "HEADLESS", "VIEWPORT_WIDTH", "VIEWPORT_HEIGHT", "TIMEOUT", "PORT")


@dataclass(frozen=True)
class Variables:
    """What the variables say; None: nothing."""

    site: str | None
    """Task of a reset that names none."""
    viewport: tuple[int, int] | None
    """Size of pages."""
    port: int | None
    """Port to listen on."""
    num_sessions: int | None
    """Episodes at once (`MAX_CONCURRENT_ENVS`)."""


def read_variables(environ: Mapping[str, str]) -> Variables:
    """Read `BROWSERGYM_*` and `MAX_CONCURRENT_ENVS`; warns of those that have no effect here.

    Raises:
        UsageError: a value that is no number, a benchmark that is not served, or a window that is to be shown.
    """
    values = {name: environ[_PREFIX + name] for name in _READ if environ.get(_PREFIX + name)}
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in _READ:
            logger.warning("%s is not read (those that are: %s)", name, ", ".join(_PREFIX + known for known in _READ))
    if "TIMEOUT" in values:
        logger.warning("%sTIMEOUT is not used: rollout.step_timeout_s is the deadline of a step", _PREFIX)
    if values.get("HEADLESS", "true").lower() != "true":
        raise UsageError(f"{_PREFIX}HEADLESS={values['HEADLESS']}: browsers are always headless here; unset it")
    width, height = (_side(values, name) for name in ("VIEWPORT_WIDTH", "VIEWPORT_HEIGHT"))
    capacity = {"MAX_CONCURRENT_ENVS": environ.get("MAX_CONCURRENT_ENVS", "")}
    return Variables(
        site=_site(values),
        viewport=(width or 1280, height or 720) if width or height else None,
        port=_number(values, "PORT"),
        num_sessions=_number(capacity, "MAX_CONCURRENT_ENVS", prefix=""),
    )


def _site(values: Mapping[str, str]) -> str | None:
    benchmark, task = values.get("BENCHMARK", "miniwob"), values.get("TASK_NAME")
    if benchmark not in BENCHMARKS:
        known = " and ".join(BENCHMARKS)
        raise UsageError(f"{_PREFIX}BENCHMARK={benchmark}: {known} are served; WebArena runs with rollout.env=browser")
    return site_name(task, benchmark) if task else None


def _side(values: Mapping[str, str], name: str) -> int | None:
    number = _number(values, name)
    if number is not None and not MIN_SIDE <= number <= MAX_SIDE:
        raise UsageError(f"{_PREFIX}{name}={number}: expected {MIN_SIDE} to {MAX_SIDE} pixels")
    return number


def _number(values: Mapping[str, str], name: str, prefix: str = _PREFIX) -> int | None:
    text = values.get(name)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{prefix}{name}={text}: expected a number above 0")
    return int(text)
