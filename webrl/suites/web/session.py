"""What a stage does with one's own site around its episodes: keep other runs off it, reset it, log in once.

API: `async with open_sites(config):` around a rollout or an evaluation of the site's tasks.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from webrl.config import RunConfig
from webrl.config.web import WebConfig
from webrl.rollouts.browser import Browser
from webrl.suites.web.hooks import reset_site
from webrl.suites.web.login import Logins, forget
from webrl.suites.web.serve import EpisodeServer
from webrl.suites.webarena.locks import hold_sites
from webrl.suites.webarena.sites import Sites

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def open_sites(config: RunConfig) -> AsyncIterator[None]:
    """Hold the site for this run, unless it is only read and never reset, reset it, and see that the log-in works.

    Raises:
        SiteBusy: another run has it (it is named).
        SiteError: the reset, the log-in or the start of a server fails: no episode is worth starting then.
    """
    web = config.rollout.web
    if web.serve.is_set:
        await (await EpisodeServer.start(web)).stop()  # one error now instead of one for every episode
        yield
        return
    sites = Sites({web.name: tuple(f"http://{host}" for host in web.hosts)}, {})
    held = (
        contextlib.nullcontext()
        if web.read_only and not web.reset.is_set
        else hold_sites(sites, [web.name], config.name)
    )
    with held:
        if web.reset.is_set:
            await reset_site(web)
        elif not web.read_only:
            logger.warning("no reset (rollout.web.reset): the site keeps what earlier episodes left in it")
        if web.reset.is_set or not web.login.proof_url:  # nothing else tells whether an earlier log-in still holds
            forget(web)
        await _log_in(web)
        yield


async def _log_in(web: WebConfig) -> None:
    async with contextlib.AsyncExitStack() as stack:
        browser = await stack.enter_async_context(Browser()) if web.login.is_set else None
        await Logins(web).state(browser)
