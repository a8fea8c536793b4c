"""The sites before a stage: are they usable, and the reset that puts them back to their published data.

API: `await check_sites(config) -> list[SiteCheck]` (all replicas of all configured sites, in parallel: reachable,
healthy, does the log-in work); `await reset_sites(config, sites, names)`. The official service
(`WA_FULL_RESET`) starts the reset and is polled until it is ready, then every site is visited and logged in to until
everything is up; minted log-ins are forgotten. Reset while holding the sites (`locks.hold_sites`), with no episode
running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from webrl_site.locks import holder
from webrl_site.sites import SiteError
from webrl_webarena.login import check_login
from webrl_webarena.settings import WebArenaConfig
from webrl_webarena.sites import SITES, Sites, find_sites, known_sites

if TYPE_CHECKING:
    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

READY = "Ready for duty!"
"""What the reset service's `/status` says when a reset is over."""
_STARTED, _ALREADY_RUNNING = 200, 418
_REQUEST_TIMEOUT_S = 60.0
_MIN_POLL_S, _MAX_POLL_S = 0.05, 5.0
"""Pause between two looks at a site or a reset, which doubles from one to the next."""
_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class SiteCheck:
    """The state of one replica.

    Example: `SiteCheck("gitlab", "http://10.0.0.5:8023", True, "", "no run")`
    """

    site: str
    """Its name."""
    url: str
    """Its base URL."""
    ok: bool
    """Reachable, the right application, and (where there is one) the log-in works."""
    problem: str
    """What is wrong, or ""."""
    held_by: str
    """The run that uses it, or "no run"."""


async def check_sites(
    config: WebArenaConfig, names: Sequence[str] = SITES, *, sites: Sites | None = None
) -> list[SiteCheck]:
    """Look at every replica of the configured sites.

    Args:
        sites: those to look at; None finds them as a run would.

    Raises:
        UsageError: an address that cannot be one.
        BrowserMissing: no browser to log in with.
    """
    from webrl.rollouts.browser import Browser

    sites = sites or find_sites(config)
    targets = [(name, url) for name in names for url in sites.urls.get(name, ())]
    logs_in = any("form" in known_sites()[name] for name in names)
    async with Browser() if logs_in else contextlib.nullcontext() as browser:
        return list(await asyncio.gather(*(_check(name, url, sites, config, browser) for name, url in targets)))


async def _check(name: str, url: str, sites: Sites, config: WebArenaConfig, browser: Browser | None) -> SiteCheck:
    import httpx

    held_by = holder(url, config.lock_dir)
    try:
        async with httpx.AsyncClient(follow_redirects=True, timeout=_TIMEOUT_S) as client:
            answer = await client.get(url + "/")
            if answer.status_code >= 500:
                raise SiteError(
                    f"is up but not healthy: answers {answer.status_code} (still starting, or its database is down)"
                )
            if answer.status_code >= 400:
                raise SiteError(
                    f"answers {answer.status_code}; is the address complete (shopping_admin ends in /admin)?"
                )
            if not re.search(known_sites()[name]["sign"], answer.text, re.IGNORECASE):
                raise SiteError(f"something answers there, but not {name}; correct WA_{name.upper()}")
        if "form" in known_sites()[name] and browser is not None:
            if name not in sites.accounts:
                raise SiteError(f"no log-in: set rollout.webarena.accounts.{name}")
            await check_login(name, url, sites.accounts[name], config, browser)
    except httpx.HTTPError as error:
        problem = f"does not answer ({type(error).__name__}: {error}); start it, or correct WA_{name.upper()}"
        return SiteCheck(name, url, False, problem, held_by)
    except SiteError as error:
        return SiteCheck(name, url, False, str(error), held_by)
    return SiteCheck(name, url, True, "", held_by)


async def reset_sites(config: WebArenaConfig, sites: Sites, names: Sequence[str]) -> list[SiteCheck]:
    """Reset and verify; returns every replica of `names` as it was afterwards.

    Raises:
        SiteError: the service refuses or never finishes, or a site is not healthy afterwards.
    """
    start = time.monotonic()
    if sites.reset_urls:
        await asyncio.gather(*(_reset(url, config) for url in sites.reset_urls))
    else:
        logger.warning("no reset service (WA_FULL_RESET): the sites keep what earlier runs left in them")
    for path in (config.state_dir / "logins").glob("*.json"):
        path.unlink(missing_ok=True)  # the reset has ended the sessions of all minted states
    deadline, pause_s = time.monotonic() + config.health_timeout_s, _MIN_POLL_S
    while True:
        checks = await check_sites(config, names, sites=sites)
        bad = [check for check in checks if not check.ok]
        if not bad:
            logger.info("sites reset and healthy after %.0f s", time.monotonic() - start)
            return checks
        if time.monotonic() > deadline:
            problems = "; ".join(f"{check.site} at {check.url}: {check.problem}" for check in bad)
            raise SiteError(f"not healthy after {config.health_timeout_s:g} s: {problems}")
        await asyncio.sleep(min(pause_s, max(deadline - time.monotonic(), 0.1)))
        pause_s = min(2 * pause_s, _MAX_POLL_S)


async def _reset(url: str, config: WebArenaConfig) -> None:
    import httpx

    deadline, pause_s = time.monotonic() + config.reset_timeout_s, _MIN_POLL_S
    async with httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_S) as client:
        try:
            answer = await client.get(f"{url}/reset")
        except httpx.HTTPError as error:
            raise SiteError(f"reset service {url} does not answer: {type(error).__name__}: {error}") from None
        if answer.status_code not in (_STARTED, _ALREADY_RUNNING):
            raise SiteError(f"reset service {url} answers {answer.status_code}: {answer.text[:200]}")
        if answer.status_code == _ALREADY_RUNNING:
            logger.warning("a reset at %s was running already; waiting for it", url)
        while True:
            # The service may be gone for a moment while containers restart.
            try:
                answer = await client.get(f"{url}/status")
                said = answer.text.strip()
                status = said if answer.status_code == 200 else f"{answer.status_code}: {answer.text[:100]}"
            except httpx.HTTPError as error:
                status = f"{type(error).__name__}: {error}"
            if status == READY:
                return
            if time.monotonic() > deadline:
                raise SiteError(f"reset at {url} not over after {config.reset_timeout_s:g} s; it says {status[:200]!r}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_POLL_S)
