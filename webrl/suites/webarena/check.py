"""Are the sites usable? Reachable, healthy, log-in works, which version: before a run wastes hours.

API: `await check_sites(config) -> list[SiteCheck]` (all replicas of all configured sites, in parallel);
`await await_healthy(...)` repeats that until everything is up or time has passed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from webrl.config import WebArenaConfig
from webrl.suites.web.locks import holder
from webrl.suites.web.sites import SiteError
from webrl.suites.webarena.login import FORMS, mint_state
from webrl.suites.webarena.sites import SITES, Sites, find_sites

if TYPE_CHECKING:
    import httpx

    from webrl.rollouts.browser import Browser

MIN_POLL_S, MAX_POLL_S = 0.05, 5.0
"""Pause between two looks at a site or a reset, which doubles from one to the next."""
_TIMEOUT_S = 20.0

# Where each site says what it is; the published images answer here without a log-in.
_VERSIONS: dict[str, tuple[str, str]] = {
    "shopping": ("magento_version", r"(Magento/\S+(?: \([^)]*\))?)"),
    "shopping_admin": ("../magento_version", r"(Magento/\S+(?: \([^)]*\))?)"),
    "reddit": ("", r"Running (?:<[^>]*>)?\s*(Postmill(?:</a>)?[^<\n]*)"),
    "gitlab": ("help", r"(GitLab (?:Community|Enterprise) Edition[^<\n]*)"),
    "map": ("api/0.6/capabilities", r'<version minimum="([^"]+)"'),
    "wikipedia": ("", r"(kiwix[^\"'<\s]*)"),
}
_SIGNS: dict[str, str] = {
    "shopping": r"customer/account|One Stop Market|Magento",
    "shopping_admin": r"Magento|admin__|Dashboard",
    "reddit": r"Postmill|submission|/f/",
    "gitlab": r"GitLab",
    "map": r"OpenStreetMap",
    "wikipedia": r"kiwix|Wikipedia",
}


@dataclass(frozen=True)
class SiteCheck:
    """What is known of one replica.

    Example: `SiteCheck("gitlab", "http://10.0.0.5:8023", True, "GitLab Community Edition 15.7.5", "", "nobody")`
    """

    site: str
    """Its name."""
    url: str
    """Its base URL."""
    ok: bool
    """Reachable, the right application, and (where there is one) the log-in works."""
    version: str
    """What it says it is, or "unknown"."""
    problem: str
    """What is wrong, or ""."""
    held_by: str
    """The run that uses it, or "nobody"."""


async def check_sites(
    config: WebArenaConfig, names: Iterable[str] = SITES, *, sites: Sites | None = None
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
    async with Browser() as browser:
        return list(await asyncio.gather(*(_check(name, url, sites, config, browser) for name, url in targets)))


async def await_healthy(config: WebArenaConfig, sites: Sites, names: Iterable[str]) -> list[SiteCheck]:
    """Wait until all replicas are usable.

    Raises:
        SiteError: some are not within `health_timeout_s`; all of them and their problems are named.
    """
    deadline, pause_s = time.monotonic() + config.health_timeout_s, MIN_POLL_S
    names = list(names)
    while True:
        checks = await check_sites(config, names, sites=sites)
        bad = [check for check in checks if not check.ok]
        if not bad:
            return checks
        if time.monotonic() > deadline:
            problems = "; ".join(f"{check.site} at {check.url}: {check.problem}" for check in bad)
            raise SiteError(f"not healthy after {config.health_timeout_s:g} s: {problems}")
        await asyncio.sleep(min(pause_s, max(deadline - time.monotonic(), 0.1)))
        pause_s = min(2 * pause_s, MAX_POLL_S)


async def _check(name: str, url: str, sites: Sites, config: WebArenaConfig, browser: Browser) -> SiteCheck:
    import httpx

    held_by = holder(url, config.lock_dir)
    version = "unknown"
    try:
        async with httpx.AsyncClient(follow_redirects=True, timeout=_TIMEOUT_S) as client:
            await _require_answer(client, name, url)
            version = await _version(client, name, url)
        if name in FORMS:
            if name not in sites.accounts:
                raise SiteError(f"no log-in: set rollout.webarena.accounts.{name}")
            await mint_state(name, url, sites.accounts[name], browser)
    except httpx.HTTPError as error:
        problem = f"does not answer ({type(error).__name__}: {error}); start it, or correct WA_{name.upper()}"
        return SiteCheck(name, url, False, version, problem, held_by)
    except SiteError as error:
        return SiteCheck(name, url, False, version, str(error), held_by)
    return SiteCheck(name, url, True, version, "", held_by)


async def _require_answer(client: httpx.AsyncClient, name: str, url: str) -> None:
    answer = await client.get(url + "/")
    if answer.status_code >= 500:
        raise SiteError(
            f"is up but not healthy: answers {answer.status_code} (still starting, or its database is down)"
        )
    if answer.status_code >= 400:
        raise SiteError(f"answers {answer.status_code}; is the address complete (shopping_admin ends in /admin)?")
    if not re.search(_SIGNS[name], answer.text, re.IGNORECASE):
        raise SiteError(f"something answers there, but not {name}; correct WA_{name.upper()}")


async def _version(client: httpx.AsyncClient, name: str, url: str) -> str:
    import httpx

    path, pattern = _VERSIONS[name]
    try:
        answer = await client.get(urljoin(f"{url}/", path))
    except httpx.HTTPError:
        return "unknown"
    match = re.search(pattern, answer.text)
    return re.sub(r"<[^>]*>", "", match.group(1)).strip() if match else "unknown"
