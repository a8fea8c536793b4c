"""What happens beside the page and would go unseen: dialog boxes, which are answered, and downloads, which are refused.

API: `notices = Notices()`; `notices.attach(context)` before its first page; `notices.take()`: lines for the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from webrl.runs.text import valid_text

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Download, Page

MAX_LINES = 5
"""An observation tells no more than these; further ones are counted."""


class Notices:
    """See the module docstring."""

    def __init__(self, *, accept: bool = False) -> None:
        self._accept = accept
        self._lines: list[str] = []
        self._answers: set[asyncio.Future[None]] = set()
        self.downloads = 0
        """Downloads refused since this was set back."""

    def attach(self, context: BrowserContext) -> None:
        """Watch a new profile."""
        self._lines.clear()
        self.downloads = 0
        context.on("dialog", self._answer)
        context.on("page", self._follow)

    def take(self) -> str:
        """What has happened since the last call, a line each."""
        lines, self._lines = self._lines, []
        if len(lines) > MAX_LINES:
            lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
        return "".join(f"{line}\n" for line in lines)

    def tell(self, line: str) -> None:
        """Add a line of an action's own."""
        self._lines.append(line)

    def _follow(self, page: Page) -> None:
        page.on("download", self._note_download)

    def _note_download(self, download: Download) -> None:
        self.downloads += 1
        self._lines.append(f"download {valid_text(download.suggested_filename)!r:.200}, refused")

    def _answer(self, dialog: Dialog) -> None:
        leaves = dialog.type == "beforeunload"  # Playwright's answer too, where nobody listens
        words = "answered Leave: what was not saved is lost" if leaves else self._words(dialog)
        self._lines.append(f"{dialog.type} box {valid_text(dialog.message)!r:.200}, {words}")
        accepts = leaves or self._accept
        answering = asyncio.ensure_future(self._end(dialog, accepts=accepts))
        self._answers.add(answering)
        answering.add_done_callback(self._answers.discard)

    def _words(self, dialog: Dialog) -> str:
        if dialog.type == "alert":
            return "closed"
        if not self._accept:
            return "answered Cancel"
        return (
            f"answered OK with {valid_text(dialog.default_value)!r:.200}" if dialog.type == "prompt" else "answered OK"
        )

    async def _end(self, dialog: Dialog, *, accepts: bool) -> None:
        from playwright.async_api import Error

        with contextlib.suppress(Error):  # its page has gone
            await (dialog.accept(dialog.default_value) if accepts else dialog.dismiss())
