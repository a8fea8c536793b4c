"""The log-in of one's own site as a browser storage state: read, minted by a command or through the site's form.

API: `Logins(config).state(browser)` gives the state that an episode starts with, None without a log-in; `forget`
after a reset. A minted state is kept in `rollout.web.state_dir` (mode 600), so that all workers share it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from webrl.config.web import FormLogin, WebConfig
from webrl.errors import DataError
from webrl.rollouts.browser import first_line
from webrl.runs.store import write_json
from webrl.suites.web.hooks import run_command
from webrl.suites.webarena.locks import exclusive
from webrl.suites.webarena.login import shows_proof
from webrl.suites.webarena.sites import SiteError

if TYPE_CHECKING:
    import httpx
    from playwright.async_api import Locator, Page

    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

State = dict[str, Any]
_ANSWER_S = 30.0
_FIELDS = "input:not([type=hidden]):not([type=submit]), textarea, select"
_NAME = "e => e.labels?.[0]?.innerText.trim() || e.placeholder || e.name || e.id || e.type"


class Logins:
    """See the module docstring."""

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._checked = -1e9

    async def state(self, browser: Browser | None) -> State | None:
        """A storage state that is logged in.

        Args:
            browser: fills in the form, where that is the way.

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
            if not fresh and not await self._holds(state):
                raise SiteError(f"{login.state_file}: the log-in has expired ({login.proof_url} does not show it)")
            self._checked = time.monotonic()
            return state
        path = login_path(self._config)
        async with exclusive(path.with_suffix(".lock")):  # one worker mints, the others find its state
            kept = _parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None
            if kept is None or not (fresh or await self._holds(kept)):
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
            state = await _fill_form(browser, login.form, self._config)
        if not await self._holds(state):
            raise SiteError(f"the log-in does not work: {login.proof_url} does not show it; check rollout.web.login")
        return state

    async def _holds(self, state: State) -> bool:
        """Whether the proof's page is shown; True where there is no proof."""
        login = self._config.login
        if not login.proof_url:
            return True
        url = self._config.absolute(login.proof_url)
        async with logged_in(state, _ANSWER_S) as client:
            return await shows_proof(client, url, login.proof_text, site=url, page="it")


def login_path(config: WebConfig) -> Path:
    """Where the minted state is kept: one file for each site and way to log in, so that nobody plays as another."""
    settings = json.dumps([config.start_urls, config.login.model_dump(mode="json")], sort_keys=True)
    return config.state_dir / f"{config.name}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.login.json"


def forget(config: WebConfig) -> None:
    """Have the next episode log in anew: a reset may have ended the session."""
    login_path(config).unlink(missing_ok=True)


def logged_in(
    state: State, timeout_s: float, allows: Callable[[str], bool] | None = None, proxy: str | None = None
) -> httpx.AsyncClient:
    """A client that sends the state's cookies where a browser would, after redirects too.

    Args:
        allows: whether an address may be asked; a redirect to another one is a SiteError.
        proxy: what it is asked through.
    """
    import httpx

    async def add_cookies(request: httpx.Request) -> None:
        if allows is not None and not allows(str(request.url)):
            raise SiteError(f"{request.url} is outside the site's hosts")
        for name, value in cookie_header(state, str(request.url)).items():
            request.headers[name] = value  # (update() takes ASCII only)

    hooks = {"request": [add_cookies]}
    return httpx.AsyncClient(follow_redirects=True, timeout=timeout_s, event_hooks=hooks, proxy=proxy)


def cookie_header(state: State, url: str) -> dict[str, str]:
    """The state's cookies for a request to `url`."""
    host, path = urlsplit(url).hostname or "", urlsplit(url).path or "/"
    cookies = [
        f"{cookie['name']}={cookie['value']}"
        for cookie in state["cookies"]
        if f".{host}".endswith("." + cookie["domain"].lstrip(".")) and path.startswith(cookie.get("path", "/"))
    ]
    return {"Cookie": "; ".join(cookies)} if cookies else {}


async def _fill_form(browser: Browser, form: FormLogin, config: WebConfig) -> State:
    from playwright.async_api import Error

    url, timeout_ms = config.absolute(form.url), config.login.timeout_s * 1000
    secrets = {name: value.reveal() for name, value in form.secrets.items()}
    context = await browser.new_context()
    try:
        page = await context.new_page()
        page.set_default_timeout(timeout_ms)
        answer = await page.goto(url)
        if answer is not None and answer.status >= 400:
            raise SiteError(f"it answers {answer.status}")
        for name, value in (form.fields | secrets).items():
            field = await _field(page, name)
            if name not in secrets and await field.get_attribute("type") == "password":
                raise SiteError(f"{name!r} is a password: move it to rollout.web.login.form.secrets")
            await field.fill(value)
        if form.submit:
            await page.get_by_role("button", name=form.submit).first.click()
        else:
            await page.keyboard.press("Enter")
        await page.wait_for_load_state("networkidle")
        if await page.locator("input[type=password]:visible").count():
            raise SiteError("it still asks for a password afterwards; check rollout.web.login.form")
        return dict(await context.storage_state())
    except (Error, SiteError) as error:
        raise SiteError(f"log-in at {url} failed: {first_line(error)}") from None
    finally:
        with contextlib.suppress(Exception):
            await context.close()


async def _field(page: Page, name: str) -> Locator:
    """A field by label, placeholder, name or id. Raises SiteError (the form's fields are listed)."""
    quoted = json.dumps(name)
    for found in (
        page.get_by_label(name, exact=True),
        page.get_by_placeholder(name, exact=True),
        page.locator(f"[name={quoted}], [id={quoted}]"),
        page.get_by_label(name),
    ):
        if await found.count():
            return found.first
    known = [await field.evaluate(_NAME) for field in await page.locator(_FIELDS).all()]
    raise SiteError(f"there is no field {name!r}; the page has: {', '.join(map(repr, known)) or 'none'}")


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
