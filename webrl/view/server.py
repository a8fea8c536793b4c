"""`webrl view`'s server: an index that keeps itself up, and uvicorn on a socket of its own."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from webrl.net import address_of, listen, run_app, stop_on_signals
from webrl.view.files import check_run
from webrl.view.index import Index

_MAX_REQUESTS = 64


def serve(runs: Sequence[Path], host: str, port: int, on_ready: Callable[[str], None]) -> None:
    """Show runs until interrupted; the first page is there while the index is still being made.

    Args:
        on_ready: called with the address to open, which holds the token.

    Raises:
        UsageError: no such run folder, not a run folder, or an address that cannot be used.
    """
    for run in runs:
        check_run(run)
    with listen(host, port) as listener:
        from webrl.view.app import make_app
        from webrl.view.guard import Guard

        token, root = secrets.token_urlsafe(24), f"/{secrets.token_hex(8)}"
        index = Index(runs)
        guarded = Guard(make_app(index, root), token, root, host)
        reader = threading.Thread(target=index.refresh, name="index", daemon=True)
        reader.start()

        async def serve_index() -> None:
            stop = stop_on_signals()
            on_ready(f"{address_of(listener)}{root}/?token={token}")
            await run_app(guarded, listener, _MAX_REQUESTS, stop)

        try:
            asyncio.run(serve_index())
        finally:
            index.close()
            reader.join()
