"""Log-ins as storage states: minted once through the site's own form, checked over HTTP, minted again when expired.

API: `LoginStore(config, sites).state(urls, browser)` gives a Playwright storage state that is logged in to all sites
of an episode; `probe_login(name, url, state, account)` says whether a state still works.

A minted state costs a fraction of a second per run instead of a form at each reset. Sites at one host name that use
the same cookie (two PHP shops on two ports) overwrite each other's session, in every browser; `state` warns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.runs.store import write_json
from webrl_site.locks import exclusive
from webrl_site.sites import SiteError, shows_proof
from webrl_webarena.settings import Account, WebArenaConfig
from webrl_webarena.sites import Sites

if TYPE_CHECKING:
    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

State = dict[str, Any]
FORM_TIMEOUT_MS = 30_000


@dataclass(frozen=True)
class Form:
    """A site's log-in form, by the labels that its users see (BrowserGym's `ui_login` uses the same)."""

    path: str
    """Where it is, below the base URL."""
    user: str
    """Label of the user name's field."""
    submit: str
    """Name of the button."""
    exact: bool = False
    """Whether labels must match as a whole (another form on the page has similar ones)."""
    link: str = ""
    """A link to click first, on sites whose form has no address of its own."""
    proof_path: str = ""
    """A page that only a logged-in user sees; `{user}` is the user name."""
    proof_text: str = ""
    """Text on it; without one, not being sent elsewhere is the proof."""


FORMS: dict[str, Form] = {
    "shopping": Form("/customer/account/login/", "Email", "Sign In", exact=True, proof_path="/wishlist/"),
    "shopping_admin": Form("", "Username", "Sign in", proof_path="/dashboard", proof_text="Dashboard"),
    "reddit": Form("", "Username", "Log in", link="Log in", proof_path="/user/{user}/account", proof_text="Delete"),
    "gitlab": Form("/users/sign_in", "Username or email", "Sign in", proof_path="/-/profile"),
}


class LoginStore:
    """Minted states, kept on disk so that all workers of a run share them."""

    def __init__(self, config: WebArenaConfig, sites: Sites) -> None:
        self._config = config
        self._accounts = sites.accounts
        self._checked: dict[Path, float] = {}

    async def state(self, urls: Mapping[str, str], browser: Browser) -> State:
        """A storage state logged in to the given sites (name: base URL).

        Raises:
            SiteError: a site is down or refuses the log-in.
        """
        cookies: dict[tuple[str, str, str], dict[str, Any]] = {}
        origins: list[Any] = []
        for name, url in urls.items():
            if name not in FORMS:
                continue
            state = await self._one(name, url, browser)
            for cookie in state.get("cookies", ()):
                key = (cookie["name"], cookie["domain"], cookie["path"])
                if key in cookies and cookies[key]["value"] != cookie["value"]:  # two sites cannot both have it
                    logger.warning("cookie %r of %s replaces another's: give the sites different host names", key, name)
                cookies[key] = cookie
            origins += state.get("origins", ())
        return {"cookies": list(cookies.values()), "origins": origins}

    async def _one(self, name: str, url: str, browser: Browser) -> State:
        if name not in self._accounts:
            raise SiteError(f"no log-in for {name}: set rollout.webarena.accounts.{name}")
        account = self._accounts[name]
        key = hashlib.sha256(f"{url} {account.username}".encode()).hexdigest()[:12]
        path = self._config.state_dir / "logins" / f"{name}-{key}.json"
        if time.monotonic() - self._checked.get(path, -1e9) < self._config.login_check_s:
            return _read(path) or {}
        async with exclusive(path.with_suffix(".lock")):  # one worker mints, the others find its state
            state = _read(path)
            if state is None or not await probe_login(name, url, state, account):
                logger.info("logging in to %s at %s", name, url)
                state = await mint_state(name, url, account, browser)
                write_json(path, state)
                path.chmod(0o600)
            self._checked[path] = time.monotonic()
            return state


async def mint_state(name: str, url: str, account: Account, browser: Browser) -> State:
    """Log in through the site's form and give the browser's storage state.

    Raises:
        SiteError: the site does not answer, has another form, or refuses user or password.
    """
    from playwright.async_api import Error

    context = await browser.new_context()
    try:
        page = await context.new_page()
        page.set_default_timeout(FORM_TIMEOUT_MS)
        form = FORMS[name]
        answer = await page.goto(url + form.path)
        if answer is not None and answer.status >= 400:
            raise SiteError(f"the form answers {answer.status}")
        if form.link:
            await page.get_by_role("link", name=form.link).first.click()
        await page.get_by_label(form.user, exact=form.exact).fill(account.username)
        await page.get_by_label("Password", exact=form.exact).fill(account.password.reveal())
        async with page.expect_navigation():
            await page.get_by_role("button", name=form.submit).click()
        state: State = dict(await context.storage_state())
    except (Error, SiteError) as error:
        reason = str(error).strip().splitlines()[0]
        raise SiteError(f"log-in to {name} at {url} failed: {reason}") from None
    finally:
        with contextlib.suppress(Exception):
            await context.close()
    if not await probe_login(name, url, state, account):
        raise SiteError(
            f"{name} at {url} refused user {account.username!r}: "
            f"check rollout.webarena.accounts.{name}, and whether the site has been reset to its published data"
        )
    return state


async def probe_login(name: str, url: str, state: State, account: Account) -> bool:
    """Whether `state` is logged in, by asking for a page that only the user sees.

    Raises:
        SiteError: the site does not answer, or answers with a server error.
    """
    import httpx

    form = FORMS[name]
    target = url + form.proof_path.format(user=account.username)
    host = urlsplit(url).hostname or ""
    cookies = {
        cookie["name"]: cookie["value"]
        for cookie in state.get("cookies", ())
        if f".{host}".endswith("." + cookie["domain"].lstrip("."))
    }
    async with httpx.AsyncClient(cookies=cookies, follow_redirects=True, timeout=30) as client:
        return await shows_proof(client, target, form.proof_text, site=f"{name} at {url}", page=target)


def _read(path: Path) -> State | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None
