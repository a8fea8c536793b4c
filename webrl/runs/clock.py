"""Time: where a stage's goes, and how far a loop is.

Spans of named kinds are opened anywhere below a stage, and may overlap. A loop shows a bar on a terminal, a line of the
log now and then where there is none (a file, CI, a pipe).
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

logger = logging.getLogger(__name__)

LINE_S = 30.0
"""Seconds between two lines of the log; what is done sooner is silent."""
_current: ContextVar[Clock | None] = ContextVar("clock", default=None)


class Clock:
    """Divides the wall time of the block that it is entered for among the kinds of `spent_on` under way.

    Example: `with Clock() as clock: …` leaves `clock.seconds == {"": 0.2, "browsers": 1.5, "browsers+sampling": 3.1}`:
    for 3.1 s both were under way, for 0.2 s neither.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: Counter[str] = Counter()
        self._since = time.perf_counter()
        self._lock = threading.Lock()

    def __enter__(self) -> Clock:
        self._token = _current.set(self)
        self._since = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        _current.reset(self._token)
        self.change("", 0)

    def change(self, kind: str, by: int) -> None:
        """Count the time since the last change, then this many more spans of a kind."""
        with self._lock:
            now = time.perf_counter()
            self.seconds["+".join(sorted(+self._open))] += now - self._since
            self._since = now
            self._open[kind] += by


@contextlib.contextmanager
def spent_on(kind: str) -> Iterator[None]:
    """The block's wall time is spent on this kind of work, if a `Clock` runs (threads must inherit the context)."""
    clock = _current.get()
    if clock is None:
        yield
        return
    clock.change(kind, 1)
    try:
        yield
    finally:
        clock.change(kind, -1)


def duration(seconds: float) -> str:
    """Return `8 min 52 s`, `2 h 3 min`, `12.3 s`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def progress(
    total: int | None, what: str, unit: str, *, initial: int = 0, leave: bool = True, silent: bool = False
) -> AbstractContextManager[Any]:
    """Count a loop's way to `total`: a bar of tqdm on a terminal, else `PlainProgress`, which has the methods used.

    Args:
        unit: what is counted, in the plural; "B" is bytes.
        initial: how many were done by an earlier call; they do not count for the rate.
        leave: whether a finished bar stays on the terminal.
        silent: show nothing (all ranks but one).
    """
    if silent or sys.stderr.isatty():
        from tqdm import tqdm

        sizes = {"unit_scale": True} if unit == "B" else {}
        bar: AbstractContextManager[Any] = tqdm(
            total=total, initial=initial, desc=what, unit=unit, leave=leave, disable=silent, mininterval=0.5, **sizes
        )
        return bar
    return nullcontext(PlainProgress(total, what, unit, initial=initial))


class PlainProgress:
    """Lines such as `rollout p01: 120 of 215 episodes, 9.4 a second, about 10 s left, success 50/100`."""

    def __init__(self, total: int | None, what: str, unit: str, *, initial: int = 0) -> None:
        self._total, self._what, self._unit = total, what, unit
        self._initial, self._done, self._postfix = initial, initial, ""
        self._started = self._said = time.monotonic()

    def update(self, n: int = 1) -> None:
        """So many more are done."""
        self._done += n
        now = time.monotonic()
        if now - self._said >= LINE_S:
            self._said = now
            logger.info("%s", self.line(now - self._started))

    def set_postfix_str(self, s: str) -> None:
        """What else there is to say in the next line."""
        self._postfix = s

    def line(self, seconds: float) -> str:
        """Return how far it is after this many seconds of this call."""
        units = "bytes" if self._unit == "B" else self._unit
        of = f" of {self._total}" if self._total else ""
        fresh = self._done - self._initial
        return ", ".join(filter(None, (
            f"{self._what}: {self._done}{of} {units}", pace(fresh, seconds),
            time_left(fresh, seconds, (self._total or 0) - self._done), self._postfix,
        )))  # fmt: skip


def pace(done: int, seconds: float) -> str:
    """Return `9.4 a second`, `3.1 a minute`; "" before anything is done."""
    if done <= 0 or seconds <= 0:
        return ""
    rate = done / seconds
    return f"{rate:.1f} a second" if rate >= 1 else f"{60 * rate:.1f} a minute"


def time_left(done: int, seconds: float, left: int) -> str:
    """Return `about 10.2 s left`, at the rate so far; "" before anything is done, or with nothing left."""
    return f"about {duration(seconds / done * left)} left" if done > 0 and left > 0 else ""
