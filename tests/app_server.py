"""A WSGI application on loopback, for tests without an event loop of their own."""

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

from werkzeug.serving import make_server


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve it until the block ends; yields its address, `http://HOST:PORT`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with make_server("127.0.0.1", 0, app, threaded=True) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.shutdown()
            thread.join()
