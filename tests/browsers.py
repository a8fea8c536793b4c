"""One Chromium for the tests of a process: starting one takes longer than most of them. Each has its own profile."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from webrl.config import RolloutConfig
from webrl.errors import BrowserError
from webrl.rollouts.browser import Browser
from webrl.rollouts.env import BrowserEnv

T = TypeVar("T")


class _Shared:
    """The event loop on which the browser lives, the browser, and how many blocks use it now."""

    runner: asyncio.Runner | None = None
    browser: Browser | None = None
    users = 0


def run(body: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on the loop of the shared browser."""
    if _Shared.runner is None:
        _Shared.runner = asyncio.Runner()
    return _Shared.runner.run(body)


@contextlib.asynccontextmanager
async def shared_browser() -> AsyncIterator[Browser]:
    """The shared browser, below `run`; contexts that are still open at the end are closed."""
    if _Shared.browser is None or not await _answers(_Shared.browser):
        _Shared.browser = await Browser().start()
    _Shared.users += 1
    try:
        yield _Shared.browser
    finally:
        _Shared.users -= 1
        if not _Shared.users:
            for context in _Shared.browser._browser.contexts:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(context.close(), 5)


def is_older_than(major: int) -> bool:
    """Whether the browser is an older Chromium, some of which show less (`make test-browsers`)."""

    async def version() -> str:
        async with shared_browser() as browser:
            return browser._browser.version

    return int(run(version()).split(".")[0]) < major


@contextlib.asynccontextmanager
async def open_env(config: RolloutConfig, kind: type = BrowserEnv, *, own_browser: bool = False) -> AsyncIterator[Any]:
    """An environment on the shared browser, or on one of its own; closed after the block."""
    async with Browser() if own_browser else shared_browser() as browser:
        env = kind(browser, config)
        try:
            yield env
        finally:
            await env.close()


def close() -> None:
    """At the end of the session."""
    if _Shared.runner is not None:
        if _Shared.browser is not None:
            _Shared.runner.run(_Shared.browser.close())
        _Shared.runner.close()
        _Shared.runner = _Shared.browser = None


async def _answers(browser: Browser) -> bool:
    """False if a test has killed it; what is left is cleared away."""
    try:
        await (await browser.new_context()).close()
    except BrowserError:
        await browser.close()
        return False
    return True
