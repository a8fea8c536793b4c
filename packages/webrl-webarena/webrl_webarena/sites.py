"""Where the WebArena sites are: base URLs (several are replicas), log-ins.

API: `find_sites(config) -> Sites` (config first, then `WA_<SITE>`, then VAB's `<SITE>`), `Sites.require(names)`,
`host_of(url)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import yaml

from webrl.config.redaction import SecretUrl
from webrl.errors import UsageError
from webrl_webarena.settings import Account, SiteName, WebArenaConfig

SITES: tuple[str, ...] = get_args(SiteName)


@cache
def known_sites() -> dict[str, dict[str, Any]]:
    """Return what `sites.yaml` says of each site."""
    known: dict[str, dict[str, Any]] = yaml.safe_load(
        Path(__file__).with_name("sites.yaml").read_text(encoding="utf-8")
    )
    return known


@dataclass(frozen=True)
class Sites:
    """The sites of a run.

    Example: `Sites({"map": ("http://10.0.0.5:3000",)}, {}, reset_urls=("http://10.0.0.5:7565",))`
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
        {name: Account(**known["account"]) for name, known in known_sites().items() if "account" in known}
        | {str(site): account for site, account in config.accounts.items()},
        tuple(check_url(url.reveal(), "the reset service (WA_FULL_RESET)") for url in resets),
    )


def check_url(url: str, source: str) -> str:
    """A base URL without trailing slash. Raises UsageError (value, source and fix) for anything else."""
    url = url.strip()
    try:
        parts = urlsplit(url)
        is_base = parts.scheme in ("http", "https") and parts.port != 0 and not parts.query and not parts.fragment
        if is_base and parts.hostname:
            return url.rstrip("/")
        fix = "only http:// and https:// are understood, without ? and #"
    except ValueError as error:  # a port that is no number, brackets that do not close
        fix = f"{error}; it has the form http://HOST:PORT"
    shown = str(SecretUrl(url))
    if "://" not in url:
        fix = f"write http://{shown.lstrip('/') or 'HOST:PORT'}"
    raise UsageError(f"{source} = {shown!r} is not a web address; {fix}")


def host_of(url: str) -> str:
    """`host:port` of a URL, as the navigation guard compares it."""
    return urlsplit(url).netloc.rpartition("@")[2].lower()
