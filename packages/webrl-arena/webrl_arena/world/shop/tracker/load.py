"""The tracker's database as every session begins with it: Trac's tables, filled with the content of a seed."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from trac import db_default
from trac.db.sqlite_backend import SQLiteConnector

from webrl_arena.world.content import STAFF_EMAIL, load_words
from webrl_arena.world.tracker import PRIORITIES, RESOLUTIONS, STAFF, Person, Tracker

_OPENED = datetime.datetime(2023, 1, 1, 9, tzinfo=datetime.UTC)
_PERMISSIONS = {
    "anonymous": tuple(f"{w}_VIEW" for w in ("WIKI", "SEARCH", "REPORT", "TICKET", "TIMELINE", "ROADMAP", "MILESTONE")),
    "authenticated": ("TICKET_CREATE", "TICKET_APPEND"),
    "team": ("TICKET_MODIFY", "WIKI_CREATE", "WIKI_MODIFY", "MILESTONE_MODIFY"),
    STAFF: ("TRAC_ADMIN",),
}
_REPORTS = (
    ("Open tickets by milestone", "query:?status=!closed&group=milestone&order=priority"),
    ("Open tickets by owner", "query:?status=!closed&group=owner&order=priority"),
    ("All tickets by component", "query:?group=component&order=id"),
    ("My tickets", "query:?status=!closed&owner=$USER&order=priority"),
)


def build(path: Path, content: Tracker) -> None:
    """Make the database at `path`, which must not exist."""
    path.touch(exist_ok=False)
    with contextlib.closing(sqlite3.connect(path)) as database:
        for table in db_default.schema:
            for statement in SQLiteConnector.to_sql(None, table):
                database.execute(statement)
        for name, columns, rows in _tables(content):
            marks = ", ".join("?" * len(columns.split()))
            database.executemany(f"INSERT INTO {name} ({', '.join(columns.split())}) VALUES ({marks})", rows)
        database.commit()
        database.execute("ANALYZE")
        database.execute("VACUUM")


def _tables(content: Tracker) -> Iterator[tuple[str, str, Iterable[tuple[Any, ...]]]]:
    """Yield each table's name, columns and rows."""
    version = str(db_default.db_version)
    yield "system", "name value", [("database_version", version), ("initial_database_version", version)]
    kinds = {"priority": PRIORITIES, "resolution": RESOLUTIONS, "ticket_type": ("defect", "enhancement", "task")}
    enums = [(kind, name, str(i)) for kind, names in kinds.items() for i, name in enumerate(names, start=1)]
    yield "enum", "type name value", enums
    permissions = [(who, action) for who, actions in _PERMISSIONS.items() for action in actions]
    yield "permission", "username action", [*permissions, *((person.login, "team") for person in content.team)]
    people = (Person(STAFF, content.names[STAFF], STAFF_EMAIL), *content.team, *content.customers)
    visited = int(_OPENED.timestamp())
    yield "session", "sid authenticated last_visit", [(p.login, 1, visited) for p in people]
    shown = [(p.login, 1, name, value) for p in people for name, value in (("name", p.name), ("email", p.email))]
    yield "session_attribute", "sid authenticated name value", shown
    yield "component", "name owner", list(content.owners.items())
    milestones = [(m.name, _time(m.due), _time(m.due) * m.is_completed, m.description) for m in content.milestones]
    yield "milestone", "name due completed description", milestones
    yield "report", "author title query description", [(STAFF, *row, "") for row in _REPORTS]
    tickets, changes = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for ticket in content.tickets:
        changed = ticket.comments[-1].date if ticket.comments else ticket.date
        given = (ticket.number, ticket.type, _time(ticket.date), _time(changed), ticket.component, ticket.priority)
        state = (ticket.owner, ticket.reporter, "", ticket.milestone, ticket.status, ticket.resolution)
        tickets.append((*given, *state, ticket.summary, ticket.description, ticket.keywords))
        for number, comment in enumerate(ticket.comments, start=1):
            common = (ticket.number, _time(comment.date), comment.author)
            changes.append((*common, "comment", str(number), comment.body))
            if ticket.resolution and number == len(ticket.comments):
                changes.append((*common, "status", "new", "closed"))
                changes.append((*common, "resolution", "", ticket.resolution))
    columns = "id type time changetime component priority owner reporter cc milestone status resolution"
    yield "ticket", f"{columns} summary description keywords", tickets
    yield "ticket_change", "ticket time author field oldvalue newvalue", changes
    guides = load_words("tracker").pages
    links = "".join(f" * [wiki:{name}]\n" for name in guides)
    shelves = "".join(f" * [wiki:{shelf.name} {shelf.category[-1]}]\n" for shelf in content.shelves)
    pages = guides | {shelf.name: shelf.text for shelf in content.shelves}
    start = (
        "= Larch & Lantern =\nTickets and notes of the people behind the shop.\n\n"
        "== Open work ==\n * [report:1 Open tickets by milestone]\n * [report:2 Open tickets by owner]\n"
        f"== How we work ==\n{links}== Shelves ==\n{shelves}"
    )
    rows = [(name, 1, _time(_OPENED), STAFF, text, "", 0) for name, text in {"WikiStart": start, **pages}.items()]
    yield "wiki", "name version time author text comment readonly", rows


def _time(moment: datetime.datetime) -> int:
    """Convert to microseconds, as Trac stores it."""
    return int(moment.timestamp()) * 1_000_000
