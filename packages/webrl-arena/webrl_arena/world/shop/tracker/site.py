"""The tracker's pages: Trac, opened for every request on the folder of the session that it belongs to.

API: `make(folder)`, `log_in(database, login)`, `Site().answer(folder, environ, start_response)`.

Trac as it comes keeps the environments that it has opened, with what it has read from them, and ten connections to
their databases. Here nothing is kept between requests but compiled templates: opening an environment takes a
millisecond, and no session can see what another one's left behind.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import trac.ticket
import trac.web.main
from trac.config import Configuration
from trac.core import Component, implements
from trac.db.api import DatabaseManager
from trac.db.pool import PooledConnection
from trac.env import Environment
from trac.util.html import tag
from trac.web.api import IAuthenticator, IRequestHandler
from trac.web.auth import LoginModule
from trac.web.chrome import Chrome, INavigationContributor

from webrl_arena.world.sites import SITES, database_of

logger = logging.getLogger(__name__)
logger.setLevel(logging.ERROR)  # Trac warns about every page that is not there

COOKIE = "trac_auth"
DATABASE = database_of("tracker")
"""Next to the environment's folder."""
_PATH = SITES["tracker"]


class Links(Component):
    """The way to the other sites."""

    implements(INavigationContributor)

    def get_active_navigation_item(self, req: Any) -> str:  # noqa: ARG002
        """None of these is a page of the tracker."""
        return ""

    def get_navigation_items(self, req: Any) -> Iterator[tuple[str, str, Any]]:
        """The shop and the forum for everyone, the mail for logged-in users, the dashboard for the staff."""
        yield "mainnav", "shop", tag.a("Shop", href=f"{SITES['shop']}/")
        yield "mainnav", "forum", tag.a("Forum", href=f"{SITES['forum']}/")
        if req.is_authenticated:
            yield "mainnav", "mail", tag.a("Mail", href=f"{SITES['mail']}/")
        if "TRAC_ADMIN" in req.perm:
            yield "mainnav", "dashboard", tag.a("Dashboard", href=f"{SITES['shop_admin']}/")


class LogIn(LoginModule):
    """Trac's, without the link to a page that would need another server's log-in."""

    implements(IAuthenticator, INavigationContributor, IRequestHandler)

    def get_navigation_items(self, req: Any) -> Iterator[tuple[str, str, Any]]:
        """Who is logged in, and the way out."""
        return iter(super().get_navigation_items(req) if req.is_authenticated else ())

    def process_request(self, req: Any) -> None:
        """Log out."""
        if req.path_info.startswith("/login"):
            req.redirect(req.href())
        super().process_request(req)


class _Connections:
    """The pool of one request: the connection that was given back is the next one that is given out."""

    def __init__(self, connector: Any, arguments: dict[str, Any]) -> None:
        self._connector = connector
        self._arguments = arguments
        self._free: list[Any] = []

    def get_cnx(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - Trac's signature
        if not self._free:
            self._free.append(self._connector.get_connection(**self._arguments))
            # The staff's reports are SQL: ATTACH and VACUUM INTO would write files wherever the server may.
            self._free[-1].cnx.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        return PooledConnection(self, self._free.pop(), "", 0)

    def _return_cnx(self, connection: Any, key: str, thread: int) -> None:  # noqa: ARG002 - Trac's signature
        connection.rollback()
        self._free.append(connection)

    def shutdown(self, thread: int | None = None) -> None:  # noqa: ARG002 - Trac's signature
        while self._free:
            self._free.pop().close()


class SessionEnvironment(Environment):
    """An environment that leaves nothing behind in the process: no logger, no plugin, no connection."""

    def setup_config(self) -> None:
        """Read `trac.ini`; all components are loaded already, and one log, the server's, is for all."""
        self.config = Configuration(self.config_file_path, {"envname": self.name})
        self.log = logger


def make(folder: Path) -> None:
    """The files of an environment, but for its database."""
    (folder / "conf").mkdir(parents=True)
    (folder / "VERSION").write_text("Trac Environment Version 1\n", encoding="utf-8")
    workflow = Path(trac.ticket.__file__).with_name("workflows") / "basic-workflow.ini"
    settings = (path.read_text(encoding="utf-8") for path in (Path(__file__).with_name("trac.ini"), workflow))
    (folder / "conf" / "trac.ini").write_text("\n".join(settings), encoding="utf-8")


def log_in(database: Path, login: str) -> str:
    """Log a user in; returns the value of the cookie."""
    cookie = secrets.token_hex(16)
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA synchronous = OFF")
        row = (cookie, login, "127.0.0.1", int(time.time()))
        connection.execute("INSERT INTO auth_cookie (cookie, name, ipnr, time) VALUES (?, ?, ?, ?)", row)
    return cookie


class Site:
    """Answers requests below the tracker's path; all sessions share the compiled templates of its pages."""

    def __init__(self) -> None:
        trac.web.main.open_environment = lambda environment, use_cache: environment  # noqa: ARG005 - Trac's signature
        trac.web.main.get_plugin_info = lambda environment: []  # noqa: ARG005 - of a page about an internal error
        with tempfile.TemporaryDirectory() as name:
            make(Path(name) / "none")
            chrome = Chrome(SessionEnvironment(str(Path(name) / "none")))
            chrome.load_template("index.html")
            self._pages = chrome.jenv, chrome.jenv_text

    def answer(self, folder: Path, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        """The answer, whole, of the environment in a folder."""
        environment = SessionEnvironment(str(folder))
        manager = DatabaseManager(environment)
        manager._cnx_pool = _Connections(*manager.get_connector())
        written: list[bytes] = []

        def start(*arguments: Any) -> Callable[[bytes], None]:
            start_response(*arguments)
            return written.append

        try:
            chrome = Chrome(environment)
            chrome.jenv, chrome.jenv_text = self._pages
            path = environ["PATH_INFO"].removeprefix(_PATH)
            own = {"SCRIPT_NAME": _PATH, "PATH_INFO": path, "wsgi.run_once": True, "trac.locale": "C"}
            pages = trac.web.main.dispatch_request(environ | own | {"trac.env_path": environment}, start)
            return [*written, *pages]
        finally:
            manager.shutdown()
