"""Log-ins as storage states, through each site's own form (`webrl_site.login`): minted once, again when they expire.

API: `await LoginStore(config, sites).state(urls, browser)` gives a Playwright storage state that is logged in to all
sites of an episode; `await check_login(name, url, account, config, browser)` tries one now.

Sites at one host name that use the same cookie (two PHP shops on two ports) overwrite each other's session, in every
browser; `state` warns.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from webrl_site.login import Logins, State, mint
from webrl_site.settings import FormLogin, WebConfig, WebLogin
from webrl_site.sites import SiteError
from webrl_webarena.settings import Account, WebArenaConfig
from webrl_webarena.sites import Sites, known_sites

if TYPE_CHECKING:
    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

_FORM_TIMEOUT_S = 30.0


class LoginStore:
    """Minted states, kept on disk so that all workers of a run share them."""

    def __init__(self, config: WebArenaConfig, sites: Sites) -> None:
        self._config = config
        self._accounts = sites.accounts
        self._logins: dict[tuple[str, str], Logins] = {}

    async def state(self, urls: Mapping[str, str], browser: Browser) -> State:
        """A storage state logged in to the given sites (name: base URL).

        Raises:
            SiteError: a site is down or refuses the log-in.
        """
        cookies: dict[tuple[str, str, str], dict[str, Any]] = {}
        origins: list[Any] = []
        for name, url in urls.items():
            if "form" not in known_sites()[name]:
                continue
            if name not in self._accounts:
                raise SiteError(f"no log-in for {name}: set rollout.webarena.accounts.{name}")
            account = self._accounts[name]
            if (name, url) not in self._logins:
                self._logins[name, url] = Logins(*_as_own(name, url, account, self._config))
            with _naming(name, url, account):
                state = await self._logins[name, url].state(browser) or {}
            for cookie in state["cookies"]:
                key = (cookie["name"], cookie["domain"], cookie["path"])
                if key in cookies and cookies[key]["value"] != cookie["value"]:  # two sites cannot both have it
                    logger.warning("cookie %r of %s replaces another's: give the sites different host names", key, name)
                cookies[key] = cookie
            origins += state["origins"]
        return {"cookies": list(cookies.values()), "origins": origins}


async def check_login(name: str, url: str, account: Account, config: WebArenaConfig, browser: Browser) -> State:
    """Log in through the site's form, and return what the browser then has.

    Raises:
        SiteError: the site does not answer, has another form, or refuses user or password.
    """
    with _naming(name, url, account):
        return await mint(browser, *_as_own(name, url, account, config))


@contextlib.contextmanager
def _naming(name: str, url: str, account: Account) -> Iterator[None]:
    try:
        yield
    except SiteError as error:
        raise SiteError(f"log-in to {name} at {url} as {account.username!r}: {error}") from None


def _as_own(name: str, url: str, account: Account, config: WebArenaConfig) -> tuple[WebConfig, str]:
    """Return the site as one of one's own (`find_sites` has checked its address), and what to check if it refuses."""
    form = known_sites()[name]["form"]
    login = WebLogin(
        form=FormLogin(
            url=url + form["path"],
            fields={form["user"]: account.username},
            secrets={"Password": account.password},
            submit=form["submit"],
        ),
        proof_url=url + form["proof_path"].format(user=account.username),
        proof_text=form.get("proof_text"),
        check_s=config.login_check_s,
        timeout_s=_FORM_TIMEOUT_S,
    )
    site = WebConfig.model_construct(name=name, start_urls=(url,), login=login, state_dir=config.state_dir / "logins")
    return site, f"rollout.webarena.accounts.{name}, and whether the site has been reset to its published data"
