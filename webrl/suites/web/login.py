"""The log-in of one's own site as a browser storage state: read, minted by a command or through the site's form.

API: `Logins(config).state(browser)` gives the state that an episode starts with, None without a log-in; `forget`
after a reset. A minted state is kept in `rollout.web.state_dir` (mode 600), so that all workers share it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.config.web import WebConfig
from webrl.errors import DataError
from webrl.runs.store import write_json
from webrl.suites.web.form import fill_form, shows_in_browser
from webrl.suites.web.hooks import run_command
from webrl.suites.web.locks import exclusive
from webrl.suites.web.sites import SiteError, shows_proof

if TYPE_CHECKING:
    import httpx

    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

State = dict[str, Any]
_ANSWER_S = 30.0


class Logins:
    """See the module docstring."""

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._checked = -1e9

    async def state(self, browser: Browser | None) -> State | None:
        """A storage state that is logged in.

        Args:
            browser: fills in the form, where that is the way, and opens the proof's page where cookies do not tell.

        Raises:
            SiteError: the site is down, or refuses the log-in; a state file that has expired.
            DataError: what should be a storage state is none.
            UsageError: a secret of the form is not there.
        """
        login = self._config.login
        if not login.is_set:
            return None
        fresh = time.monotonic() - self._checked < login.check_s
        if login.state_file:
            state = _parse(_read_text(login.state_file), str(login.state_file))
            if not fresh and not await self._holds(browser, state):
                raise SiteError(f"{login.state_file}: the log-in has expired ({login.proof_url} does not show it)")
            self._checked = time.monotonic()
            return state
        path = login_path(self._config)
        async with exclusive(path.with_suffix(".lock")):  # one worker mints, the others find its state
            kept = _parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None
            if kept is None or not (fresh or await self._holds(browser, kept)):
                kept = await self._mint(browser)
                write_json(path, kept)
                path.chmod(0o600)
            self._checked = time.monotonic()
            return kept

    async def _mint(self, browser: Browser | None) -> State:
        login = self._config.login
        logger.info("logging in to %s", self._config.name)
        if login.command:
            out = await run_command(login.command, login.timeout_s, "rollout.web.login.command")
            state = _parse(out, "what rollout.web.login.command printed")
        else:
            assert login.form is not None
            assert browser is not None
            state = await fill_form(browser, login.form, self._config)
        if not await self._holds(browser, state):
            raise SiteError(f"the log-in does not work: {login.proof_url} does not show it; check rollout.web.login")
        return state

    async def _holds(self, browser: Browser | None, state: State) -> bool:
        """Whether the proof's page is shown; True where there is no proof.

        With more than cookies to the log-in (a token in localStorage) only the site's own program can tell.
        """
        login = self._config.login
        if not login.proof_url:
            return True
        url = self._config.absolute(login.proof_url)
        if browser is not None and state["origins"]:
            return await shows_in_browser(browser, self._config, state, url, _ANSWER_S)
        name = await browser.user_agent() if browser is not None else None
        async with logged_in(self._config, state, _ANSWER_S, user_agent=name) as client:
            return await shows_proof(client, url, login.proof_text, site=url, page="it")


def login_path(config: WebConfig) -> Path:
    """Where the minted state is kept: one file for each site and way to log in, so that nobody plays as another."""
    settings = json.dumps([config.start_urls, config.login.model_dump(mode="json")], sort_keys=True)
    return config.state_dir / f"{config.name}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.login.json"


def forget(config: WebConfig) -> None:
    """Have the next episode log in anew: a reset may have ended the session."""
    login_path(config).unlink(missing_ok=True)


def logged_in(
    config: WebConfig,
    state: State,
    timeout_s: float,
    allows: Callable[[str], bool] | None = None,
    proxy: str | None = None,
    user_agent: str | None = None,
) -> httpx.AsyncClient:
    """A client that sends what a browser would, after redirects too: the state's cookies, HTTP's own log-in.

    Args:
        allows: whether an address may be asked; a redirect to another one is a SiteError.
        proxy: what it is asked through.
        user_agent: what the agent's browser calls itself: sites may end a session that somebody else seems to use.
    """
    import httpx

    async def add_cookies(request: httpx.Request) -> None:
        if allows is not None and not allows(str(request.url)):
            raise SiteError(f"{request.url} is outside the site's hosts")
        url = str(request.url)
        for name, value in (cookie_header(state, url) | config.authorization(url)).items():
            request.headers[name] = value  # (update() takes ASCII only)

    hooks = {"request": [add_cookies]}
    headers = {"User-Agent": user_agent} if user_agent else {}
    return httpx.AsyncClient(follow_redirects=True, timeout=timeout_s, event_hooks=hooks, proxy=proxy, headers=headers)


def cookie_header(state: State, url: str) -> dict[str, str]:
    """The state's cookies for a request to `url`."""
    host, path = urlsplit(url).hostname or "", urlsplit(url).path or "/"
    cookies = [
        f"{cookie['name']}={cookie['value']}"
        for cookie in state["cookies"]
        if f".{host}".endswith("." + cookie["domain"].lstrip(".")) and path.startswith(cookie.get("path", "/"))
    ]
    return {"Cookie": "; ".join(cookies)} if cookies else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {getattr(error, 'strerror', None) or error}; rollout.web.login.state_file") from None


def _parse(text: str, where: str) -> State:
    """A Playwright storage state. Raises DataError; the text, which may hold a session, is not quoted."""
    try:
        state = json.loads(text)
    except ValueError:
        raise DataError(f"{where} is no JSON; expected a storage state with 'cookies' and 'origins'") from None
    cookies = state.get("cookies") if isinstance(state, dict) else None
    if not isinstance(cookies, list) or not isinstance(state.get("origins", []), list):
        raise DataError(f"{where} is no storage state: it has no lists 'cookies' and 'origins'")
    for number, cookie in enumerate(cookies):
        if not isinstance(cookie, dict) or not all(isinstance(cookie.get(k), str) for k in ("name", "value", "domain")):
            raise DataError(f"{where}: cookie {number} lacks a 'name', 'value' or 'domain' of text")
    return {"cookies": cookies, "origins": state.get("origins", [])}
