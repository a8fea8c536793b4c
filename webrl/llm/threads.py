"""Prompts are built beside the event loop: a long page takes 20 ms and more, in which no answer would be read.

API: `await with_tokenizer(tokenizer, work)`.
"""

from __future__ import annotations

import asyncio
import copy
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_THREADS = 2
"""A thread builds hundreds of short prompts a second, and each has a copy of the tokenizer."""
_own = threading.local()
"""`tokenizer`: the thread's copy."""


async def with_tokenizer(tokenizer: Any, work: Callable[[Any], T]) -> T:
    """`work(tokenizer)` in a thread, with the thread's own copy: tokenizers are not safe to share between threads."""
    return await asyncio.get_running_loop().run_in_executor(_threads(tokenizer), lambda: work(_own.tokenizer))


@lru_cache(maxsize=4)
def _threads(tokenizer: Any) -> ThreadPoolExecutor:
    """Kept, because copying a tokenizer of 262,144 tokens takes seconds."""

    def take_copy() -> None:
        _own.tokenizer = copy.deepcopy(tokenizer)

    return ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "prompts", take_copy)
