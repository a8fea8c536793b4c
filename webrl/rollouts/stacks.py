"""Playwright's look at its caller's stack, which it takes at each call of a page, for what it needs of it.

Playwright 1.44, which BrowserGym pins, lets `inspect.stack()` find the module and the source line of every frame. That
goes through all modules of the process for a frame without a file, as `python -m` and a spawned worker have: up to 25
ms a call. It uses file, line and function.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from types import FrameType, SimpleNamespace


def lighten_stacks() -> None:
    """Let Playwright's client in this process look at frames alone; a second time it changes nothing."""
    try:
        from playwright._impl import _connection, _network, _sync_base
    except ImportError:
        return  # a later Playwright, which looks at frames alone by itself

    light = SimpleNamespace(**vars(inspect) | {"stack": _stack})
    for module in (_connection, _network, _sync_base):
        vars(module)["inspect"] = light
    for module in (_connection, _sync_base):
        vars(module)["traceback"] = SimpleNamespace(**vars(traceback) | {"extract_stack": _summary})


def _stack(_context: int = 0) -> list[inspect.FrameInfo]:
    """As `inspect.stack(0)`, from the caller on; no lines, whatever the context."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


def _summary(*, limit: int | None = None) -> traceback.StackSummary:
    """As `traceback.extract_stack(limit=limit)`; lines are read when they are printed."""
    frames = (traceback.FrameSummary(f.filename, f.lineno, f.function, lookup_line=False) for f in _stack()[1:][:limit])
    return traceback.StackSummary(reversed(list(frames)))
