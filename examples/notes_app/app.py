"""A small notes application: what stands for a site of one's own in docs/own_site.md.

    python examples/notes_app/app.py --port 5000 --database /tmp/notes.db

Notes have a title, a text, a tag and a done flag, in SQLite. One logs in as ann / over-the-hill. `POST /reset`
with the header `X-Reset-Token` (variable NOTES_RESET_TOKEN) puts the published notes back; without the variable it
is not there.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flask import Flask, Response, abort, g, jsonify, redirect, render_template_string, request, session, url_for

SCHEMA = "CREATE TABLE notes (id INTEGER PRIMARY KEY, title TEXT UNIQUE, text TEXT, tag TEXT, done INTEGER DEFAULT 0)"
NOTES = (
    ("Buy milk", "Two litres, whole.", "home", 0),
    ("Call Ann", "About the boat, before Friday.", "people", 0),
    ("Write report", "Chapter three is missing.", "work", 0),
    ("Fix bicycle", "The front brake squeaks.", "home", 1),
    ("Book flight", "To Lisbon, on the fourth of May.", "travel", 0),
    ("Water plants", "The fern needs less.", "home", 0),
    ("Send invoice", "Number 1042, to Miller.", "work", 1),
    ("Renew passport", "The photograph is in the drawer.", "travel", 0),
)
LAYOUT = """<!doctype html><html lang=en><title>{{ title }} - Notes</title>
<nav aria-label="Main"><a href="{{ url_for('notes') }}">Notes</a> <a href="{{ url_for('new') }}">New note</a>
<a href="{{ url_for('tags') }}">Tags</a> <a href="{{ url_for('about') }}">About</a>
{% if session.user %}<a href="{{ url_for('logout') }}">Log out</a>{% endif %}</nav>
<h1>{{ title }}</h1>
{% if message %}<p role=alert>{{ message }}</p>{% endif %}
"""
LIST = """<ul>{% for note in notes %}<li><a href="{{ url_for('show', number=note.id) }}">{{ note.title }}</a>
{{ note.tag }}{% if note.done %} done{% endif %}</li>{% else %}<li>No notes.</li>{% endfor %}</ul>"""
SEARCH = """<form action="{{ url_for('notes') }}"><label>Search <input name=q value="{{ query }}"></label>
<button>Find</button></form>"""
SHOW = """<p>{{ note.text }}</p><p>Tag: {{ note.tag }}</p><p>{{ 'Done' if note.done else 'Open' }}</p>
<form method=post action="{{ url_for('toggle', number=note.id) }}">
<button>{{ 'Reopen' if note.done else 'Mark as done' }}</button></form>
<form method=post action="{{ url_for('delete', number=note.id) }}"><button>Delete</button></form>"""
NEW = """<form method=post><label>Title <input name=title></label> <label>Text <input name=text></label>
<label>Tag <select name=tag>{% for tag in tags %}<option>{{ tag }}</option>{% endfor %}</select></label>
<button>Save</button></form>"""
TAG_LIST = """<ul>{% for tag in tags %}<li><a href="{{ url_for('notes', q=tag) }}">{{ tag }}</a></li>{% endfor %}
</ul>"""
LOGIN = """<form method=post><label>User <input name=user></label>
<label>Password <input name=password type=password></label> <button>Log in</button></form>"""
USER, PASSWORD = "ann", "over-the-hill"
TAGS = ("home", "people", "work", "travel")


def create_app(database: Path, reset_token: str | None = None) -> Flask:
    """The application on a database, which is made if it is not there."""
    app = Flask(__name__)
    app.secret_key = "only an example"
    if not database.exists():
        fill(database)

    def ask(query: str, *values: Any) -> list[sqlite3.Row]:
        if "db" not in g:
            g.db = sqlite3.connect(database, timeout=5)
            g.db.row_factory = sqlite3.Row
        with g.db:
            return g.db.execute(query, values).fetchall()

    @app.teardown_appcontext
    def _close(_: BaseException | None) -> None:
        if "db" in g:
            g.db.close()

    def page(title: str, body: str, message: str = "", **values: Any) -> str:
        return render_template_string(LAYOUT + body, title=title, message=message, **values)

    def logged_in(view: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(view)
        def checked(**values: Any) -> Any:
            return view(**values) if session.get("user") else redirect(url_for("login"))

        return checked

    def note_of(number: int) -> sqlite3.Row:
        return next(iter(ask("SELECT * FROM notes WHERE id = ?", number)), None) or abort(404)

    @app.get("/")
    @logged_in
    def notes() -> str:
        query = request.args.get("q", "")
        found = ask("SELECT * FROM notes WHERE title LIKE ? OR tag = ? ORDER BY id", f"%{query}%", query)
        return page("Notes", SEARCH + LIST, notes=found, query=query)

    @app.get("/notes/<int:number>")
    @logged_in
    def show(number: int) -> str:
        note = note_of(number)
        return page(note["title"], SHOW, note=note)

    @app.post("/notes/<int:number>/toggle")
    @logged_in
    def toggle(number: int) -> Any:
        ask("UPDATE notes SET done = 1 - done WHERE id = ?", number)
        return redirect(url_for("show", number=number))

    @app.post("/notes/<int:number>/delete")
    @logged_in
    def delete(number: int) -> Any:
        ask("DELETE FROM notes WHERE id = ?", number)
        return redirect(url_for("notes"))

    @app.route("/new", methods=["GET", "POST"])
    @logged_in
    def new() -> Any:
        if request.method == "GET":
            return page("New note", NEW, tags=TAGS)
        try:
            form = request.form
            ask("INSERT INTO notes (title, text, tag) VALUES (?, ?, ?)", form["title"], form["text"], form["tag"])
        except sqlite3.IntegrityError:
            return page("New note", NEW, "There is a note with that title.", tags=TAGS)
        return redirect(url_for("notes"))

    @app.get("/tags")
    @logged_in
    def tags() -> str:
        return page("Tags", TAG_LIST, tags=TAGS)

    @app.get("/about")
    @logged_in
    def about() -> str:
        return page("About", "<p>Notes, version 1.4.</p>")

    @app.get("/api/notes")
    @logged_in
    def api() -> Response:
        return jsonify(notes=[dict(note) for note in ask("SELECT * FROM notes ORDER BY id")])

    @app.route("/login", methods=["GET", "POST"])
    def login() -> Any:
        if request.method == "POST" and request.form["user"] == USER and request.form["password"] == PASSWORD:
            session["user"] = USER
            return redirect(url_for("notes"))
        return page("Log in", LOGIN, "Wrong user or password." if request.method == "POST" else "")

    @app.get("/logout")
    def logout() -> Any:
        session.clear()
        return redirect(url_for("login"))

    @app.post("/reset")
    def reset() -> Any:
        if not reset_token or request.headers.get("X-Reset-Token") != reset_token:
            abort(404)
        fill(database)
        return "", 204

    return app


def fill(database: Path) -> None:
    """Put the published notes into the database, in place: connections that are open see them too."""
    with sqlite3.connect(database, timeout=5) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("DROP TABLE IF EXISTS notes")
        connection.execute(SCHEMA)
        connection.executemany("INSERT INTO notes (title, text, tag, done) VALUES (?, ?, ?, ?)", NOTES)
    connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A small notes application.")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--database", type=Path, required=True)
    args = parser.parse_args()
    create_app(args.database, os.environ.get("NOTES_RESET_TOKEN")).run(port=args.port)
