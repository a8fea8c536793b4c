"""Django's SQLite, but which file it opens is decided for each request: that of the session it belongs to."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from django.db import connections
from django.db.backends.sqlite3.base import DatabaseWrapper as SQLiteWrapper

_current: ContextVar[Path] = ContextVar("arena_database")


class DatabaseWrapper(SQLiteWrapper):
    """Opens the file that `using` names in this context; outside of `using` it opens nothing."""

    def get_connection_params(self) -> dict[str, Any]:
        """Those of Django, with the session's file. Raises RuntimeError where the code runs for no session."""
        # An address, so that SQLite does not make the file where the session has been dropped meanwhile.
        return {**super().get_connection_params(), "database": f"{current_database().as_uri()}?mode=rw"}

    def get_new_connection(self, conn_params: dict[str, Any]) -> sqlite3.Connection:
        """Without waiting for the disk: a killed worker's half-written change is undone all the same, by its journal.

        Only a loss of power could damage a session, and it ends the session too.
        """
        connection: sqlite3.Connection = super().get_new_connection(conn_params)
        connection.execute("PRAGMA synchronous = OFF")
        return connection


def current_database() -> Path:
    """The file that `using` names in this context. Raises RuntimeError where the code runs for no session."""
    path = _current.get(None)
    if path is None:
        raise RuntimeError("the database was requested outside of a session")
    return path


@contextlib.contextmanager
def using(path: Path) -> Iterator[None]:
    """Work on this file in this thread; no connection of before is used, and none stays open."""
    connections.close_all()
    token = _current.set(path)
    try:
        yield
    finally:
        connections.close_all()
        _current.reset(token)
