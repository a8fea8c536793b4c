"""What a reset says, as a task and settings of an environment.

API: `read_options(options, hub) -> Start`; `check_default(hub)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from webrl.config import RolloutConfig
from webrl.errors import DataError, UsageError, problem_text
from webrl.openenv.hub import Hub
from webrl.openenv.messages import ResetOptions
from webrl.openenv.screenshots import Screenshots
from webrl.rollouts.sites import site_name
from webrl.rollouts.suite import PAGES, suite_at
from webrl.types import Task

_MAX_SEED = 2**31


@dataclass(frozen=True)
class Start:
    """What a reset asks for."""

    task: Task
    """What is played."""
    settings: dict[str, Any]
    """What the episode's settings differ in from the server's."""
    config: RolloutConfig
    """The episode's settings."""
    screenshots: Screenshots
    """How the client sees the page."""
    details: bool
    """Whether it is our own client."""

    @property
    def stays_open(self) -> bool:
        """Whether the next episode can begin on this one's page, which holds nothing but itself."""
        return suite_at(self.task.site).is_stateless


def read_options(data: dict[str, Any], hub: Hub) -> Start:
    """Read the options of a reset.

    Raises:
        ValidationError: options that are not those of ResetOptions.
        DataError: no such task, a host that is not allowed, or a setting out of range.
    """
    options = ResetOptions.model_validate(data)
    benchmark = options.benchmark or hub.options.default_site.partition(".")[0]
    site = benchmark if options.start_url else hub.options.default_site
    if options.task_name:
        site = site_name(options.task_name, benchmark)
    seed = hub.seeds.randrange(_MAX_SEED) if options.seed is None else options.seed
    task = _task(site, seed, options, hub.benchmarks)
    screenshots = _way(options, hub)
    settings = _settings(options, hub) | {"screenshots": screenshots != "none"}
    return Start(task, settings, _configure(hub.config, settings), screenshots, options.details)


def _way(options: ResetOptions, hub: Hub) -> Screenshots:
    if options.screenshots is None:
        return hub.options.screenshots
    if isinstance(options.screenshots, bool):
        return "png" if options.screenshots else "none"
    return options.screenshots


def _task(site: str, seed: int, options: ResetOptions, benchmarks: Sequence[str]) -> Task:
    """The task that a reset asks for. Raises DataError if there is none, or it is not served."""
    instruction, start_url = options.instruction, options.start_url
    task = Task(task_id=f"{site}.{seed}", site=site, seed=seed, instruction=instruction, start_url=start_url)
    suite = suite_at(site)
    if suite is PAGES or suite.is_stateless:
        suite.open_site(task)
    elif suite.not_served:
        raise DataError(f"task {site!r}: {suite.not_served}")
    elif suite.name not in benchmarks:
        raise DataError(f"task {site!r} is not served here: start the server with tasks.suite={suite.name}")
    elif instruction or start_url:
        raise DataError(f"task {site!r} has an instruction and a start page of its own; leave them out of the reset")
    return task


def _hosts(start_url: str | None, asked: Sequence[str], config: RolloutConfig) -> dict[str, list[str]]:
    """The settings that admit the hosts of a reset: those that the server names, and those that its `*` covers.

    Raises:
        DataError: a host that the server does not allow, or no web address.
    """
    named = {host.lower() for host in config.allowed_hosts} - {"*"}
    covered = "*" in (*config.allowed_hosts, *config.public_hosts)
    settings: dict[str, list[str]] = {"allowed_hosts": [], "public_hosts": []}
    wanted = [("allowed_hosts", host, host.lower()) for host in asked]
    if start_url is not None:
        url = urlsplit(start_url)
        wanted.append(("start_url", start_url, url.netloc.lower() if url.scheme in ("http", "https") else ""))
    for field_name, given, host in wanted:
        if host in named or (host and re.sub(r":[0-9]*$", "", host) in named):
            settings["allowed_hosts"].append(host)
        elif host and covered:
            settings["public_hosts"].append(host)
        else:
            raise DataError(f"{field_name} {given!r}: not among the server's rollout.allowed_hosts")
    return settings


def _settings(options: ResetOptions, hub: Hub) -> dict[str, Any]:
    """What this episode's settings differ in from the server's. Raises DataError."""
    config = hub.config
    settings: dict[str, Any] = {"page_details": not options.details}
    settings["viewport"] = options.viewport or (None if options.details else hub.options.viewport)
    settings |= _hosts(options.start_url, options.allowed_hosts, config)
    asked = options.model_dump(include={"observation", "dialect", "settle_cap_s", "step_timeout_s"})
    settings |= {name: value for name, value in asked.items() if value is not None}
    for name in ("settle_cap_s", "step_timeout_s"):
        if name in settings:
            settings[name] = min(settings[name], config.step_timeout_s)
    return settings


def _configure(config: RolloutConfig, settings: dict[str, Any]) -> RolloutConfig:
    try:
        return RolloutConfig.model_validate(config.model_dump() | settings)
    except ValidationError as error:
        raise DataError(f"reset: {problem_text(error.errors()[0])}") from None


def check_default(hub: Hub) -> Task:
    """The server's own default task. Raises UsageError if it does not exist."""
    try:
        return _task(hub.options.default_site, 0, ResetOptions(), hub.benchmarks)
    except DataError as error:
        raise UsageError(str(error)) from None
