"""The arena's server process: `python -m webrl_arena.world.shop.serve FOLDER SOCKET WORKERS`; `running.start` starts
it.

It inherits the listening socket, makes the first database where there is none, and forks workers that share the socket.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import psutil
from filelock import FileLock, Timeout

from webrl.runs.disk import atomic_path
from webrl.runs.machine import restore_python_path
from webrl_arena.world.content import catalogue
from webrl_arena.world.forum import forum
from webrl_arena.world.mail import mail
from webrl_arena.world.running import LOCK, STATE, State, content_digest, drop_sessions, template_path
from webrl_arena.world.shop.settings import configure
from webrl_arena.world.shop.tracker.imports import import_trac
from webrl_arena.world.sites import DATABASES, SITES
from webrl_arena.world.tracker import tracker

logger = logging.getLogger(__name__)

_THREADS = 4
"""Of a worker. Answers are computed, not waited for: more would not be faster, but with one a slow page would block."""
_PAUSE_S = 1.0
"""Before a dead worker is replaced, so that one that cannot start does not keep a core busy."""
_STATIC_AGE_S = 86400
_LOCK_S = 3.0
"""`start` has waited for the last arena's end: what holds the lock now has begun since."""


def main() -> None:
    """Serve until SIGTERM."""
    restore_python_path()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    folder, listener = Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
    # Workers hold it too: it is free only when the last of them has ended.
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=_LOCK_S)
    except Timeout:
        sys.exit(f"another arena starts or runs in {str(folder)!r}")
    drop_sessions(folder)
    key = secrets.token_urlsafe(24)
    configure(key)
    import_trac()
    # once Django is configured and Trac is there
    import machina
    import oscar
    import postman
    import trac
    from django.core.wsgi import get_wsgi_application
    from waitress.server import create_server
    from whitenoise import WhiteNoise

    from webrl_arena.world.shop.gateway import Gateway
    from webrl_arena.world.shop.load import build as build_shop
    from webrl_arena.world.shop.tracker.load import build as build_tracker
    from webrl_arena.world.shop.tracker.site import Site

    templates = {site: template_path(folder, site) for site in DATABASES}
    for site, path in templates.items():
        if path.is_file():
            continue
        path.parent.mkdir(exist_ok=True)
        with atomic_path(path) as temporary:
            if site == "tracker":
                build_tracker(temporary, tracker())
            else:
                build_shop(temporary.absolute(), catalogue(), forum(), mail())
        for older in path.parent.glob(f"{site}-*.sqlite3"):
            if older != path:
                older.unlink()
    gateway = Gateway(get_wsgi_application(), Site(), folder.absolute(), templates, key)
    application = WhiteNoise(gateway, prefix="static/", max_age=_STATIC_AGE_S)
    ours = (Path(package.__file__).with_name("static") for package in (oscar, postman))
    for files in (*ours, Path(machina.MACHINA_MAIN_STATIC_DIR)):
        application.add_files(str(files), prefix="static/")
    application.add_files(str(Path(trac.__file__).with_name("htdocs")), prefix=f"{SITES['tracker']}/chrome/common/")

    def work() -> None:
        options = {"threads": _THREADS, "connection_limit": 1000, "asyncore_use_poll": True, "ident": None}
        create_server(application, sockets=[listener], **options).run()

    host, port = listener.getsockname()[:2]
    # What Django and the sites' apps have made by now stays for good: collections need not look at it again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # one page has more new objects than the default
    state = State(f"http://{host}:{port}", key, os.getpid(), psutil.Process().create_time(), content_digest())
    try:
        fork_workers(work, int(sys.argv[3]), lambda: state.write(folder))
    finally:
        (folder / STATE).unlink(missing_ok=True)
        drop_sessions(folder)


def fork_workers(work: Callable[[], None], num_workers: int, on_ready: Callable[[], None]) -> None:
    """Keep `num_workers` children at work until SIGTERM; they end with this process, however it ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    alive, ours = os.pipe()
    workers: set[int] = set()
    try:
        while True:
            while len(workers) < num_workers:
                workers.add(os.fork() or _in_child(work, alive, ours))
            on_ready()
            ended, status = os.wait()
            workers.discard(ended)
            logger.warning("worker %d ended (%s); starting another", ended, os.waitstatus_to_exitcode(status))
            time.sleep(_PAUSE_S)
    finally:
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        for worker in workers:
            os.waitpid(worker, 0)


def _in_child(work: Callable[[], None], alive: int, parents: int) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.close(parents)

    def end_with_parent() -> None:
        os.read(alive, 1)  # returns when the parent's end is closed, which the kernel does if nothing else
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        work()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
