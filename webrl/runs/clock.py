"""Where a stage's wall time goes: spans of named kinds, opened anywhere below the stage, which may overlap."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextvars import ContextVar

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
