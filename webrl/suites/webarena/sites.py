"""Where the WebArena sites are: base URLs (several are replicas), log-ins, placeholders in task files.

API: `find_sites(config) -> Sites` (config first, then `WA_<SITE>`, then VAB's `<SITE>`), `Sites.require(names)`,
`resolve(data, urls)` puts base URLs where a task file says `__SHOPPING__`, `host_of(url)`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from webrl.config import Account, WebArenaConfig
from webrl.config.redaction import Secret, SecretUrl
from webrl.errors import BrowserError, DataError, UsageError

SITES = ("shopping", "shopping_admin", "reddit", "gitlab", "map", "wikipedia")
"""The five sites of WebArena-Lite, and the encyclopedia that some of the map's tasks need beside them."""

ACCOUNTS: dict[str, Account] = {
    "shopping": Account(username="emma.lopez@gmail.com", password=Secret("Password.123")),
    "shopping_admin": Account(username="admin", password=Secret("admin1234")),
    "reddit": Account(username="MarvelsGrantMan136", password=Secret("test1234")),
    "gitlab": Account(username="byteblaze", password=Secret("hello1234")),
}
"""Log-ins of the published images (public; the tasks name these users). Map and encyclopedia have none."""

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*?)__")


class SiteError(BrowserError):
    """A site is down, half-up, refuses the log-in, or is in use by another run; the text says which and what to do."""


@dataclass(frozen=True)
class Sites:
    """The sites of a run.

    Example: `Sites({"map": ("http://10.0.0.5:3000",)}, ACCOUNTS, reset_urls=("http://10.0.0.5:7565",))`
    """

    urls: Mapping[str, tuple[str, ...]]
    """Base URLs by site, without a trailing slash; more than one are replicas."""
    accounts: Mapping[str, Account]
    """Log-ins by site."""
    reset_urls: tuple[str, ...] = ()
    """Hosts of the official reset service."""

    def require(self, names: Iterable[str]) -> None:
        """Raises UsageError naming every site of `names` that has no URL."""
        missing = [name for name in names if name not in self.urls]
        if missing:
            variables = ", ".join(f"WA_{name.upper()}" for name in missing)
            raise UsageError(
                f"no address for {', '.join(missing)}: set {variables} or rollout.webarena.sites "
                f"(for example {missing[0]}: http://HOST:PORT); `webrl doctor --sites` checks them"
            )


def find_sites(config: WebArenaConfig, environ: Mapping[str, str] | None = None) -> Sites:
    """The sites that config and environment name; several URLs in a variable are separated by commas.

    Raises:
        UsageError: an address without scheme or host (quoted, with the fix).
    """
    environ = os.environ if environ is None else environ
    urls: dict[str, tuple[str, ...]] = {}
    for name in SITES:
        given: Iterable[SecretUrl] = config.sites.get(name, ())  # type: ignore[call-overload]
        source = f"rollout.webarena.sites.{name}"
        if not given:
            variable = next((v for v in (f"WA_{name.upper()}", name.upper()) if environ.get(v)), None)
            if variable is None:
                continue
            given, source = map(SecretUrl, environ[variable].split(",")), variable
        urls[name] = tuple(check_url(url.reveal(), source) for url in given)
    resets = config.reset_urls or tuple(map(SecretUrl, filter(None, environ.get("WA_FULL_RESET", "").split(","))))
    return Sites(
        urls,
        {**ACCOUNTS, **{str(site): account for site, account in config.accounts.items()}},
        tuple(check_url(url.reveal(), "the reset service (WA_FULL_RESET)") for url in resets),
    )


def check_url(url: str, source: str) -> str:
    """A base URL without trailing slash. Raises UsageError (value, source and fix) for anything else."""
    url = url.strip()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = str(SecretUrl(url))
        fix = f"write http://{shown.lstrip('/')}" if "://" not in url else "only http:// and https:// are understood"
        raise UsageError(f"{source} = {shown!r} is not a web address; {fix}")
    return url.rstrip("/")


def host_of(url: str) -> str:
    """`host:port` of a URL, as the navigation guard compares it."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()


def resolve(data: Any, urls: Mapping[str, str], where: str, known: Sequence[str] = SITES) -> Any:
    """Copy of parsed JSON in which `__SITE__` has become the site's base URL.

    Args:
        known: the sites that there are.

    Raises:
        DataError: a placeholder without a URL (it and `where` are quoted).
    """
    if isinstance(data, str):
        return _PLACEHOLDER.sub(lambda match: _url_of(match, urls, where, known), data)
    if isinstance(data, list):
        return [resolve(item, urls, where, known) for item in data]
    if isinstance(data, dict):
        return {key: resolve(value, urls, where, known) for key, value in data.items()}
    return data


def placeholders(data: Any) -> set[str]:
    """Names of the sites that `__SITE__` placeholders in parsed JSON refer to, in lower case."""
    if isinstance(data, str):
        return {match.lower() for match in _PLACEHOLDER.findall(data)}
    if isinstance(data, list | dict):
        items = data.values() if isinstance(data, dict) else data
        return set().union(*map(placeholders, items))
    return set()


def _url_of(match: re.Match[str], urls: Mapping[str, str], where: str, known: Sequence[str]) -> str:
    name = match.group(1).lower()
    if name not in known:
        raise DataError(
            f"{where}: unknown site {match.group(0)}; known: {', '.join(f'__{s.upper()}__' for s in known)}"
        )
    if name not in urls:
        raise DataError(f"{where}: {match.group(0)} is unresolved: the task's `sites` do not list {name!r}")
    return urls[name]
