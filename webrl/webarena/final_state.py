"""What an agent leaves behind: everything that validation looks at, as plain data.

API: `await capture(context, page, answer=…, infeasible=…) -> FinalState`. The agent's page is only read; validation
works on a copy in another browser (`evaluator.py`), with the same cookies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page


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
    return FinalState(
        url=page.url,
        html=await page.evaluate(_script()),
        tabs=tuple(tab.url for tab in context.pages),
        storage=dict(await context.storage_state()),
        answer=answer,
        infeasible=infeasible,
    )


@cache
def _script() -> str:
    return resources.files("webrl.webarena").joinpath("final_page.js").read_text(encoding="utf-8")
