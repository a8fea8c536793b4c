"""Scores a finished episode with BrowserGym's own evaluators: once, when the agent has stopped, on a copy.

API: `state = await capture(context, page, answer=…)`, `score = await Evaluator(config).validate(task, urls, state)`.

BrowserGym validates on every step, in the agent's page: each look calls the judge, sleeps 3 s a target and, in the
Lite version, navigates the page away under the agent. Here `validate` runs after the last step, in a browser of
its own: its page shows the agent's last document at the same address with the same cookies, and may then go where
the evaluator likes. The evaluators want Playwright's sync API, hence the thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib import resources
from typing import TYPE_CHECKING, Any

from webrl.rollouts.browser import find_chromium
from webrl.rollouts.interface import Score
from webrl.types import Task
from webrl_webarena.judge import AnswerJudge
from webrl_webarena.scoring import FinalState, score
from webrl_webarena.settings import WebArenaConfig
from webrl_webarena.sites import Sites

if TYPE_CHECKING:
    from playwright import sync_api
    from playwright.async_api import BrowserContext, Page

logger = logging.getLogger(__name__)

NAVIGATION_TIMEOUT_MS = 30_000
# The copy shows what was there; it must not run, send or fetch anything but style sheets (texts depend on them).
_COPY_POLICY = "default-src 'none'; style-src * 'unsafe-inline'; font-src *; script-src 'unsafe-eval'"
_TRIES = 3
_PAUSE_S = 0.2
_LOAD_TIMEOUT_MS = 5000


async def capture(
    context: BrowserContext, page: Page, *, answer: str | None = None, infeasible: bool = False
) -> FinalState:
    """Read the final state of an episode, once the page has stopped loading: the last action may have led to another.

    The agent's page is only read. Raises Playwright's Error if it is gone.
    """
    from playwright.async_api import Error

    script = resources.files("webrl_webarena").joinpath("final_page.js").read_text(encoding="utf-8")
    for tries_left in reversed(range(_TRIES)):
        with contextlib.suppress(Error):
            await page.wait_for_load_state("load", timeout=_LOAD_TIMEOUT_MS)
        try:
            html: str = await page.evaluate(script)
            break
        except Error:
            if not tries_left or page.is_closed():
                raise
            await asyncio.sleep(_PAUSE_S)
    return FinalState(
        url=page.url,
        html=html,
        tabs=tuple(tab.url for tab in context.pages),
        storage=dict(await context.storage_state()),
        answer=answer,
        infeasible=infeasible,
    )


_Work = tuple["Future[Score]", FinalState, Callable[..., Score]]
"""A validation: where its score goes, the state whose copy it is given as `page`, and what scores that."""


class Evaluator:
    """A thread with its own browser; both start at the first validation."""

    def __init__(self, config: WebArenaConfig, sites: Sites) -> None:
        self._config = config
        self._sites = sites
        self.judge = AnswerJudge(config.judge, config.state_dir)
        self._thread: threading.Thread | None = None
        self._work: queue.SimpleQueue[_Work | None]
        self._turn = asyncio.Lock()

    async def validate(self, task: Task, urls: Mapping[str, str], state: FinalState) -> Score:
        """Score a finished episode; never raises for what sites, judge or evaluator do.

        Args:
            urls: base URL by site, as the episode had them.
        """
        async with self._turn:  # waiting for the thread does not count towards an episode's deadline
            if self._thread is None or not self._thread.is_alive():
                self._work = queue.SimpleQueue()
                self._thread = threading.Thread(
                    target=_serve, args=(self._work,), name="webarena-evaluator", daemon=True
                )
                self._thread.start()
            replicas = {name: known[0] for name, known in self._sites.urls.items()}
            accounts = {
                name: {"username": account.username, "password": account.password.reveal()}
                for name, account in self._sites.accounts.items()
            }
            future: Future[Score] = Future()
            work = partial(score, task, {**replicas, **urls}, accounts, state, judge=self.judge)
            self._work.put((future, state, work))
            try:
                async with asyncio.timeout(self._config.validate_timeout_s):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                # A thread that hangs in a socket cannot be stopped: leave it running and start a new one.
                self._work.put(None)
                self._thread = None
                return Score(None, f"validation passed its deadline of {self._config.validate_timeout_s:g} s")

    async def close(self) -> None:
        """End thread and browser."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            await asyncio.to_thread(thread.join, 10)


def _serve(queued: queue.SimpleQueue[_Work | None]) -> None:
    """Run validations one after another until None comes: BrowserGym keeps site addresses in module globals."""
    browser: sync_api.Browser | None = None
    with contextlib.ExitStack() as stack:
        while (item := queued.get()) is not None:
            future, state, work = item
            try:
                if browser is None or not browser.is_connected():
                    from playwright.sync_api import sync_playwright

                    executable = find_chromium()
                    stack.close()
                    playwright = stack.enter_context(sync_playwright())
                    browser = playwright.chromium.launch(
                        executable_path=executable, handle_sigint=False, handle_sigterm=False, handle_sighup=False
                    )
                    stack.callback(_quietly, browser.close)
                with _copy_page(browser, state) as page:
                    verdict = work(page=page)
            except Exception as error:  # the thread's boundary: any error leaves the episode unjudged
                logger.exception("validation failed")
                verdict = Score(None, f"{type(error).__name__}: {error}"[:500])
            with contextlib.suppress(Exception):  # the waiter may have given up
                future.set_result(verdict)


def _quietly(close: Callable[[], None]) -> None:
    with contextlib.suppress(Exception):
        close()


@contextlib.contextmanager
def _copy_page(browser: sync_api.Browser, state: FinalState) -> Any:
    """A page that shows the agent's last document, in a profile with the agent's cookies."""
    from playwright.sync_api import Error

    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": _COPY_POLICY}
    context = browser.new_context(
        storage_state=state.storage,  # type: ignore[arg-type]
        viewport={"width": 1280, "height": 720},
        accept_downloads=False,
    )
    context.set_default_timeout(NAVIGATION_TIMEOUT_MS)
    try:
        page = context.new_page()
        if state.url.startswith(("http://", "https://")):
            document = state.url.partition("#")[0]
            page.route(
                lambda url: url.partition("#")[0] == document,
                lambda route: route.fulfill(body=state.html, headers=headers),
                times=1,
            )
            page.goto(state.url, wait_until="load")
            page.unroute_all()
        else:
            with contextlib.suppress(Error):
                page.goto(state.url)
        yield page
    finally:
        _quietly(context.close)
