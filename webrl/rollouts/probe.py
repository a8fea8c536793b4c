"""Learns for which elements our own extractor prints what the browser at hand does, by trying it on a page of examples.

API: `await foreign_elements(browser)` gives the CSS selector of all other elements. Roles, names and properties in the
accessibility tree change from one Chromium to the next, for a few elements each; pages that have such elements are
read from the tree (`observe_dom`).
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from webrl.rollouts.observe import JS_FOLDER, load_script, observe_axtree, own_lines
from webrl.rollouts.tab import Tab

if TYPE_CHECKING:
    from webrl.rollouts.browser import Browser

logger = logging.getLogger(__name__)

ALL = "*"
_GROUP = re.compile(r"\t\[\d+\] group '([^']+)'")


async def foreign_elements(browser: Browser) -> str:
    """CSS selector of the elements that a page's text has to be read from the tree for; learnt once per browser.

    Raises BrowserError, ChannelError, ChannelClosed, Playwright's Error.
    """
    async with browser.lock:
        if browser.foreign_elements is None:
            browser.foreign_elements = await _learn(browser)
            logger.debug("read from the tree: %s", browser.foreign_elements or "nothing")
        return browser.foreign_elements


async def _learn(browser: Browser) -> str:
    context = await browser.new_context()
    try:
        await context.add_init_script(load_script("settle", "mark", "extract"))
        page = await context.new_page()
        await page.set_content((JS_FOLDER / "probe.html").read_text(encoding="utf-8"))
        tab = await Tab.open(page, browser.port)
        try:
            num_frames = (await tab.evaluate("__webrl.mark('', [], true)"))["frames"]
            tree = await observe_axtree(tab, num_frames, ())
            own = await own_lines(tab, await tab.evaluate("__webrl.extract([])"), num_frames)
        finally:
            await tab.close()
    finally:
        await context.close()
    return differing(tree.splitlines(), own or [])


def differing(tree: list[str], own: list[str]) -> str:
    """Selectors, joined, of the groups (lines one deep and what is below them) that are not the same in both.

    Everything, if the tree has no groups: a browser whose tree looks quite different.
    """
    theirs, ours = _groups(tree), _groups(own)
    return ", ".join(name for name in theirs if theirs[name] != ours.get(name)) if theirs else ALL


def _groups(lines: list[str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    group: list[str] = []
    for line in lines:
        if found := _GROUP.match(line):
            group = groups[found.group(1)] = []
        group.append(line)
    return groups
