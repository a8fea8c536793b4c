"""What an agent leaves behind: everything that validation looks at, as plain data.

API: `await capture(context, page, answer=…, infeasible=…) -> FinalState`. The agent's page is only read; validation
works on a copy in another browser (`evaluator.py`), with the same cookies.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page

_TRIES = 3
_PAUSE_S = 0.2
_LOAD_TIMEOUT_MS = 5000


@dataclass(frozen=True)
class FinalState:
    """The end of an episode.

    Example: `FinalState("http://host:3000/search", "<!DOCTYPE html>…", ("http://host:3000/search",), {…}, "42 min")`
    """

    url: str
    """Address of the active tab."""
    html: str
    """Its document, form contents included, scripts left out."""
    tabs: tuple[str, ...]
    """Addresses of all tabs."""
    storage: dict[str, Any]
    """Cookies and local storage (Playwright's storage state)."""
    answer: str | None = None
    """The agent's message; None if it was stopped (step limit, repeated action, parse failures)."""
    infeasible: bool = False
    """The agent said that the task cannot be done."""


async def capture(
    context: BrowserContext, page: Page, *, answer: str | None = None, infeasible: bool = False
) -> FinalState:
    """Read the final state of an episode. Raises Playwright's Error if the page is gone."""
    html = await _read(page)
    return FinalState(
        url=page.url,
        html=html,
        tabs=tuple(tab.url for tab in context.pages),
        storage=dict(await context.storage_state()),
        answer=answer,
        infeasible=infeasible,
    )


async def _read(page: Page) -> str:
    """The document, once it has stopped loading: the last action may have led to another page."""
    from playwright.async_api import Error

    for tries_left in reversed(range(_TRIES)):
        with contextlib.suppress(Error):
            await page.wait_for_load_state("load", timeout=_LOAD_TIMEOUT_MS)
        try:
            html: str = await page.evaluate(_script())
            return html
        except Error:
            if not tries_left or page.is_closed():
                raise
            await asyncio.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


@cache
def _script() -> str:
    return resources.files("webrl.suites.webarena").joinpath("final_page.js").read_text(encoding="utf-8")
