"""What a stage does with the sites around its episodes: take them, put them back to their published data, give them up.

API: `async with open_sites(config, tasks):` around a rollout or an evaluation with tasks on WebArena.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from webrl.config import RunConfig
from webrl.config.extras import require
from webrl.suites.webarena.locks import hold_sites
from webrl.suites.webarena.reset import reset_sites
from webrl.suites.webarena.sites import find_sites
from webrl.suites.webarena.tasks import is_scored, sites_of
from webrl.suites.webarena.verified import is_verified, require_scorer
from webrl.types import Task


@contextlib.asynccontextmanager
async def open_sites(config: RunConfig, tasks: Sequence[Task]) -> AsyncIterator[None]:
    """Hold all sites of the tasks for this run, reset and verify them first (`rollout.webarena.reset`).

    Raises:
        ExtraMissing: scored tasks without BrowserGym's packages.
        UsageError: a site without address.
        SiteBusy: another run has one of the sites (it is named).
        SiteError: the reset fails or never ends, or a site is not healthy afterwards.
    """
    if any(map(is_verified, tasks)):
        require_scorer(config.rollout.webarena)
    if any(is_scored(task) and not is_verified(task) for task in tasks):
        require("webarena", "the score of a WebArena task")
    settings = config.rollout.webarena
    sites = find_sites(settings)
    names = sorted({name for task in tasks for name in sites_of(task)})
    sites.require(names)
    with hold_sites(sites, names, config.name, settings.lock_dir):
        if settings.reset:
            await reset_sites(settings, sites, names)
        yield
