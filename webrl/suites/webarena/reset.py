"""Puts the sites back to their published data: before a phase and between evaluation rounds.

API: `await reset_sites(config, sites, names)`. The official service (`WA_FULL_RESET`) is asked to reset,
watched until it is ready, then every site is visited and logged in to; minted log-ins are forgotten. Call it while
holding the sites (`locks.hold_sites`), with no episode running.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from webrl.config import WebArenaConfig
from webrl.suites.web.sites import SiteError
from webrl.suites.webarena.check import MAX_POLL_S, MIN_POLL_S, SiteCheck, await_healthy
from webrl.suites.webarena.login import purge_logins
from webrl.suites.webarena.sites import Sites

if TYPE_CHECKING:
    import httpx

logger = logging.getLogger(__name__)

READY = "Ready for duty!"
"""What the service's `/status` says when a reset is over."""
_STARTED, _ALREADY_RUNNING = 200, 418
_REQUEST_TIMEOUT_S = 60.0


async def reset_sites(config: WebArenaConfig, sites: Sites, names: Iterable[str]) -> list[SiteCheck]:
    """Reset and verify; gives every replica of `names` as it was afterwards.

    Raises:
        SiteError: the service refuses or never finishes, or a site is not healthy afterwards.
    """
    start = time.monotonic()
    if sites.reset_urls:
        await asyncio.gather(*(_reset(url, config) for url in sites.reset_urls))
    else:
        logger.warning("no reset service (WA_FULL_RESET): the sites keep what earlier runs left in them")
    purge_logins(config)
    checks = await await_healthy(config, sites, names)
    logger.info("sites reset and healthy after %.0f s", time.monotonic() - start)
    return checks


async def _reset(url: str, config: WebArenaConfig) -> None:
    import httpx

    deadline, pause_s = time.monotonic() + config.reset_timeout_s, MIN_POLL_S
    async with httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_S) as client:
        try:
            answer = await client.get(f"{url}/reset")
        except httpx.HTTPError as error:
            raise SiteError(f"reset service {url} does not answer: {type(error).__name__}: {error}") from None
        if answer.status_code not in (_STARTED, _ALREADY_RUNNING):
            raise SiteError(f"reset service {url} answers {answer.status_code}: {answer.text[:200]}")
        if answer.status_code == _ALREADY_RUNNING:
            logger.warning("a reset at %s was running already; waiting for it", url)
        while (status := await _status(client, url)) != READY:
            if time.monotonic() > deadline:
                raise SiteError(f"reset at {url} not over after {config.reset_timeout_s:g} s; it says {status[:200]!r}")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_POLL_S)


async def _status(client: httpx.AsyncClient, url: str) -> str:
    """The service's word, or what is wrong with it: it may be gone for a moment while containers restart."""
    import httpx

    try:
        answer = await client.get(f"{url}/status")
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    return answer.text.strip() if answer.status_code == 200 else f"{answer.status_code}: {answer.text[:100]}"
