"""The log-in of your own site as a browser storage state: read, minted by a command or through the site's form.

API: `Logins(config).state(browser)` is the state that an episode starts with, None without a log-in; `forget` after a
reset. A minted state is kept in `rollout.web.state_dir` (mode 600), so that all workers share it.
`await mint(browser, config)` logs in and returns a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import AsyncFileLock

from webrl.errors import DataError
from webrl.rollouts.browser import first_line
from webrl.rollouts.devtools import ChannelClosed, ChannelError, Tab, load_script
from webrl.rollouts.env import HORIZON_MS
from webrl.runs.store import write_json
from webrl_site.hooks import run_command
from webrl_site.settings import FormLogin, WebConfig
from webrl_site.sites import SiteError, page_of

if TYPE_CHECKING:
    from playwright.async_api import Frame, Locator

    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

State = dict[str, Any]
WHERE = "rollout.web.login"
_ANSWER_S = 30.0
_QUIET_S = 5.0
"""Longest wait for a page, which may never finish loading (a long poll)."""
_LOOK_EVERY_S = 0.2
_PASSWORD = "input[type=password]:visible"
_FIELDS = ":is(input:not([type=hidden]):not([type=submit]), textarea, select):visible"
_BUTTONS = ":is(button, input[type=submit], [role=button]):visible"
_NAME = """e => e.labels?.[0]?.innerText.trim() || e.placeholder || e.innerText || e.name || e.id ||
  (e.type === 'submit' ? e.value : e.type)"""
_ACT_S = 10.0
"""A field or button that is shown and still cannot be used is named after this."""


class Logins:
    """See the module docstring."""

    def __init__(self, config: WebConfig, where: str = WHERE) -> None:
        self._config = config
        self._where = where
        self._checked = -1e9

    async def state(self, browser: Browser) -> State | None:
        """A storage state that is logged in.

        Args:
            browser: fills in the form, if that is the way, and opens the proof's page.

        Raises:
            SiteError: the site is down, or refuses the log-in; a state file that has expired.
            DataError: the file or output is not a storage state.
            UsageError: a secret of the form is not there.
        """
        login = self._config.login
        if not login.is_set:
            return None
        fresh = time.monotonic() - self._checked < login.check_s
        if login.state_file:
            try:
                text = login.state_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or error
                raise DataError(f"{login.state_file}: {reason}; rollout.web.login.state_file") from None
            state = _parse(text, str(login.state_file))
            if not fresh and not await _holds(browser, self._config, state):
                raise SiteError(f"{login.state_file}: the log-in has expired ({login.proof_url} does not show it)")
            self._checked = time.monotonic()
            return state
        path = login_path(self._config)
        # One worker mints, the others find its state. (Threads that wait would fill the pool in which the event loop
        # looks up the names that the one needs.)
        async with AsyncFileLock(path.with_suffix(".lock"), run_in_executor=False):
            kept = _parse(path.read_text(encoding="utf-8"), str(path)) if path.is_file() else None
            if kept is None or not (fresh or await _holds(browser, self._config, kept)):
                logger.info("logging in to %s", self._config.name)
                kept = await mint(browser, self._config, self._where)
                write_json(path, kept)
                path.chmod(0o600)
            self._checked = time.monotonic()
            return kept


async def mint(browser: Browser, config: WebConfig, where: str = WHERE) -> State:
    """Log in by the command or the form, and see that it works.

    Args:
        where: what an error says is to be checked.

    Raises:
        SiteError, DataError, UsageError: as `Logins.state`.
    """
    login = config.login
    if login.command:
        out = await run_command(login.command, login.timeout_s, "rollout.web.login.command")
        state = _parse(out, "what rollout.web.login.command printed")
    else:
        assert login.form is not None
        state = await fill_form(browser, login.form, config, where)
    if not await _holds(browser, config, state):
        raise SiteError(f"the log-in does not work: {login.proof_url} does not show it; check {where}")
    return state


def login_path(config: WebConfig) -> Path:
    """Return the file of the saved state: one for each site and way to log in, so that no episode uses another user."""
    settings = json.dumps([config.start_urls, config.login.model_dump(mode="json")], sort_keys=True)
    return config.state_dir / f"{config.name}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.login.json"


def forget(config: WebConfig) -> None:
    """Have the next episode log in again: a reset may have ended the session."""
    login_path(config).unlink(missing_ok=True)


def _parse(text: str, where: str) -> State:
    """A Playwright storage state. Raises DataError; the text, which may hold a session, is not quoted."""
    try:
        state = json.loads(text)
    except ValueError:
        raise DataError(f"{where} is not JSON; expected a storage state with 'cookies' and 'origins'") from None
    cookies = state.get("cookies") if isinstance(state, dict) else None
    if not isinstance(cookies, list) or not isinstance(state.get("origins", []), list):
        raise DataError(f"{where} is not a storage state: it has no lists 'cookies' and 'origins'")
    for number, cookie in enumerate(cookies):
        if not isinstance(cookie, dict) or not all(isinstance(cookie.get(k), str) for k in ("name", "value", "domain")):
            raise DataError(f"{where}: cookie {number} lacks a 'name', 'value' or 'domain' of text")
    return {"cookies": cookies, "origins": state.get("origins", [])}


async def fill_form(browser: Browser, form: FormLogin, config: WebConfig, where: str = WHERE) -> State:
    """Fill in the form and wait for what the site makes of it.

    Raises:
        SiteError: no such form, or it refuses the log-in; a log-in that no storage state holds.
    """
    from playwright.async_api import Error

    url, timeout_s = config.absolute(form.url), config.login.timeout_s
    secrets = {name: value.reveal() for name, value in form.secrets.items()}
    async with _tab(browser, f"log-in at {url} failed", timeout_s, **config.http_credentials) as tab:
        page = tab.page
        answer = await page.goto(url)
        if answer is not None and answer.status >= 400:
            raise SiteError(f"it answers {answer.status}")
        await _is_quiet(tab)
        frames = [frame for frame in await _shown_frames(page.main_frame) if await frame.locator(_PASSWORD).count()]
        place, wait_ms = next(iter(frames), page.main_frame), min(timeout_s, _ACT_S) * 1000
        for name, value in (form.fields | secrets).items():
            field = await _field(place, name)
            if name not in secrets and await field.get_attribute("type") == "password":
                raise SiteError(f"{name!r} is a password: move it to rollout.web.login.form.secrets")
            try:
                await field.fill(value, timeout=wait_ms)
            except Error as error:
                raise SiteError(f"the field {name!r} cannot be filled in: {first_line(error)}") from None
        before = await page.context.storage_state()
        if form.submit:
            try:
                await place.get_by_role("button", name=form.submit).first.click(timeout=wait_ms)
            except Error as error:
                known = await _names(place, _BUTTONS)
                raise SiteError(
                    f"the button {form.submit!r} cannot be pressed ({first_line(error)}); the page has: {known}"
                ) from None
        else:
            await page.keyboard.press("Enter")
        hint = f"check {where}"
        sent = await answer.header_value("set-cookie") if answer is not None else None
        if re.search("(?i); *secure", sent or "") and not before["cookies"]:
            hint = "its cookies are Secure, which browsers keep on HTTPS and 127.0.0.1 alone: serve it there"
        # Wait until the site is quiet or, if it never is, asks for no password and has changed what it keeps.
        end = time.monotonic() + timeout_s
        quiet = await _is_quiet(tab)
        while True:
            asks = await page.locator(_PASSWORD).count()
            state: State = dict(await page.context.storage_state())
            if quiet or time.monotonic() > end or (not asks and state != dict(before)):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        if asks:
            raise SiteError(f"it still asks for a password afterwards; {hint}")
    if not state["cookies"] and not state["origins"]:
        raise SiteError(
            f"log-in at {url} left neither a cookie nor anything in localStorage (it is in the page's memory or in "
            "IndexedDB), so it cannot be kept; without rollout.web.login, instructions can say user and password"
        )
    return state


async def _holds(browser: Browser, config: WebConfig, state: State) -> bool:
    """Whether the proof's page shows its text or, without one, is no other page; True if there is no proof.

    It is opened in the browser: with more than cookies to the log-in (a token in localStorage) only the site's own
    program can tell, and what that shows to others may be a form at the same address.

    Raises:
        SiteError: the site does not answer, or answers with a server error.
    """
    login = config.login
    if not login.proof_url:
        return True
    url, options = config.absolute(login.proof_url), {"storage_state": state} | config.http_credentials
    async with _tab(browser, f"{url} does not open", _ANSWER_S, **options) as tab:
        answer = await tab.page.goto(url)
        if answer is not None and answer.status >= 400:
            if answer.status >= 500:
                raise SiteError(f"it answers {answer.status}")
            return False
        await _is_quiet(tab)
        if login.proof_text:
            return login.proof_text in await tab.page.content()
        there, route = tab.page.url, url.partition("#")[2]
        stays = page_of(there) == page_of(url) and route in ("", there.partition("#")[2])
        return stays and not (state["origins"] and await tab.page.locator(_PASSWORD).count())


@contextlib.asynccontextmanager
async def _tab(browser: Browser, what: str, timeout_s: float, **options: Any) -> AsyncIterator[Tab]:
    """A tab in its own profile, whose pages say when they are quiet; its errors are SiteErrors that begin so."""
    from playwright.async_api import Error

    context, tab = await browser.new_context(**options), None
    try:
        context.set_default_timeout(timeout_s * 1000)
        await context.add_init_script(load_script("settle"))
        tab = await Tab.open(await context.new_page(), browser.port)
        await tab.watch_imports()
        yield tab
    except (Error, ChannelError, ChannelClosed, SiteError) as error:
        raise SiteError(f"{what}: {first_line(error)}") from None
    finally:
        with contextlib.suppress(Exception):
            if tab:
                await tab.close()
            await context.close()


async def _is_quiet(tab: Tab) -> bool:
    """Wait until the page has nothing more to do, as before an observation; False if it always has."""
    end = time.monotonic() + _QUIET_S
    try:
        async with asyncio.timeout(_QUIET_S):
            while time.monotonic() < end:
                await tab.arrive(end)
                cap_ms = max(0.0, end - time.monotonic()) * 1000
                try:
                    await tab.evaluate_in_page(f"__webrl.settle({HORIZON_MS}, {cap_ms:.0f})")
                except ChannelError:  # the page has been replaced
                    await asyncio.sleep(_LOOK_EVERY_S)
                    continue
                imported = await tab.has_imported(end)
                if time.monotonic() < end and not tab.leaving and not imported:
                    return True
    except TimeoutError:
        pass
    tab.forget_imports()
    return False


async def _shown_frames(frame: Frame) -> list[Frame]:
    """The frame and all below it that are shown, outermost first."""
    found = [frame]
    for child in frame.child_frames:
        # Without an address nothing has come yet, or the browser refused it: a script would wait for ever.
        if not child.url or child.is_detached():
            continue
        element = await child.frame_element()
        if await element.content_frame() == child and await element.is_visible():
            found += await _shown_frames(child)
    return found


async def _field(place: Frame, name: str) -> Locator:
    """A field by label, placeholder, name or id. Raises SiteError (the fields that are shown are listed)."""
    quoted = json.dumps(name)
    for found in (
        place.get_by_label(name, exact=True),
        place.get_by_placeholder(name, exact=True),
        place.locator(f"[name={quoted}], [id={quoted}]"),
        place.get_by_label(name),
    ):
        shown = found.and_(place.locator(_FIELDS))
        if await shown.count():
            return shown.first
    raise SiteError(f"there is no field {name!r}; the page has: {await _names(place, _FIELDS)}")


async def _names(place: Frame, selector: str) -> str:
    known = [await element.evaluate(_NAME) for element in await place.locator(selector).all()]
    return ", ".join(map(repr, known)) or "none"
