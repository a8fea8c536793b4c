"""Progress of long stages: a bar with the successes so far on a terminal, a log line each tenth elsewhere.

Silent unless the command line switched it on (`enable`), so that the package prints nothing when imported.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

logger = logging.getLogger(__name__)
_console: Console | None = None


def enable(console: Console) -> None:
    """Show progress on this console from now on; its log handler must write to the same one."""
    global _console
    _console = console


class Counter:
    """Counts finished items and, among those judged, successes."""

    def __init__(self, name: str, total: int, bar: Progress | None, done: int = 0) -> None:
        self.name = name
        self.total = total
        self.done = done
        self.judged = 0
        self.successes = 0
        self._bar = bar
        self._task = bar.add_task(name, total=total, completed=done, note="") if bar else None
        self._started = time.monotonic()
        self._tenth = 10 * done // max(total, 1)

    def advance(self, success: bool | None = None, num: int = 1) -> None:
        """`num` more items are done; `success` is None where there is no verdict."""
        self.done += num
        if success is not None:
            self.judged += num
            self.successes += num * success
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, note=self.note)
        elif _console is not None:
            self._log_tenths()

    @property
    def note(self) -> str:
        """Successes so far, or ""."""
        if not self.judged:
            return ""
        return f"{self.successes}/{self.judged} = {100 * self.successes / self.judged:.0f} % success"

    def _log_tenths(self) -> None:
        tenth = 10 * self.done // max(self.total, 1)
        if tenth > self._tenth:
            self._tenth = tenth
            seconds = time.monotonic() - self._started
            logger.info("%s: %d/%d in %.0f s  %s", self.name, self.done, self.total, seconds, self.note)


@contextmanager
def progress(name: str, total: int, done: int = 0) -> Iterator[Counter]:
    """Give a counter; call its `advance` as items finish.

    Args:
        done: items that an earlier, interrupted call had finished.
    """
    if _console is None or not _console.is_terminal:
        yield Counter(name, total, None, done)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("  {task.description:<12}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Progress(*columns, console=_console, transient=False) as bar:
        yield Counter(name, total, bar, done)
