"""Arenas for tests: each its own sessions and process, all the same first database, which takes longest to make."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import urljoin

import httpx
import pytest
from bs4 import BeautifulSoup, Tag

from webrl.config import RunConfig
from webrl_arena.world import running
from webrl_arena.world.client import Arena, ArenaError, Session


def share_templates(folder: Path, factory: pytest.TempPathFactory) -> None:
    """Let an arena in `folder` take the first database that another test, of any process, has made."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "arena-templates"
    shared.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    (folder / running.LOCK).touch()
    (folder / "templates").symlink_to(shared)


@contextlib.contextmanager
def serving(folder: Path, factory: pytest.TempPathFactory, workers: int = 2) -> Iterator[Arena]:
    """An arena on a free port for the length of a block."""
    share_templates(folder, factory)
    running.start(folder, 0, workers)
    try:
        yield Arena.running(folder)
    finally:
        running.stop(folder)


def patient(folder: Path) -> RunConfig:
    """A config that plays in the arena of `folder`.

    A page that is looked at before its scripts have run, which a busy machine may need long for, is another one.
    """
    waits = {"step_timeout_s": 120, "settle_cap_s": 60}
    return RunConfig(tasks={"suite": "arena"}, rollout={"arena": {"folder": folder}, **waits})


class Visitor:
    """A plain HTTP client with a session's cookies: pages as text, forms sent with their token."""

    def __init__(self, arena: Arena, user: str | None = None, session: Session | None = None) -> None:
        self.session = session or arena.open(user)
        self._arena, self._given = arena, session is not None
        self.http = httpx.Client(base_url=arena.state.url, timeout=120, trust_env=False)
        for cookie in self.session.cookies:
            self.http.cookies.set(cookie["name"], cookie["value"], domain="127.0.0.1")

    def see(self, path: str) -> str:
        """The page's text."""
        return _whole(self.http.get(path, follow_redirects=True))

    def send(
        self, page: str, button: str, files: dict[str, Any] | None = None, *, follow: bool = True, **fields: object
    ) -> str:
        """Look at the page, fill in the form that has this button (by its text), and send it as a browser would.

        The page that it leads to, unless `follow` is off.
        """
        form = _form(BeautifulSoup(self.see(page), "html.parser"), button)
        data = {**_values(form), **fields}
        answer = self.http.post(urljoin(page, str(form.get("action", ""))), data=data, files=files)
        # Refused, it is the form once more.
        assert answer.status_code in (302, 303), f"{button!r} of {page} was refused: {answer.text}"
        return (
            _whole(self.http.send(answer.next_request, follow_redirects=True)) if follow and answer.next_request else ""
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        if not self._given:
            with contextlib.suppress(ArenaError):  # it has gone, and the session with it
                self._arena.drop(self.session)


def _whole(answer: httpx.Response) -> str:
    assert answer.status_code == 200, (answer.request.method, str(answer.url), answer.status_code)
    return answer.text


def _form(page: BeautifulSoup, button: str) -> Tag:
    buttons = page.find_all(lambda each: each.name == "button" or each.get("type") == "submit")
    found = next(each for each in buttons if button in (each.get_text().strip(), each.get("value")))
    form = found.find_parent("form")
    assert isinstance(form, Tag)
    return form


def _values(form: Tag) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field in form.find_all(["input", "textarea", "select"]):
        kind = field.get("type")
        if kind in ("submit", "file") or (kind in ("checkbox", "radio") and not field.has_attr("checked")):
            continue
        if field.name == "select":
            chosen = field.find_all("option", selected=True)
            value: Any = [option.get("value", option.get_text().strip()) for option in chosen]
        elif field.name == "textarea":
            value = field.get_text()
        else:
            value = field.get("value", "on" if kind == "checkbox" else "")
        if field.get("name"):
            values[str(field["name"])] = value
    return values
