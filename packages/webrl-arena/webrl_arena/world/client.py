"""Sessions of the running arena: `async with Arena.running().new(user="staff") as session: …`.

Any process of the user who started the arena may open sessions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from webrl.errors import BrowserError, UsageError
from webrl_arena.world import running
from webrl_arena.world.sites import database_of

if TYPE_CHECKING:
    import httpx

_TIMEOUT_S = 60.0


class ArenaError(BrowserError):
    """The arena is not running, or does not respond."""


@dataclass(frozen=True)
class Session:
    """Sites with their own state: changes in them are not visible in other sessions."""

    id: str
    start_url: str
    """The shop's front page; for the staff, their dashboard."""
    enter_url: str
    """Sets the cookies by itself and leads to `start_url`."""
    cookies: list[dict[str, Any]]
    """As Playwright takes them, in `context.add_cookies` and in a storage state: the session's, and the log-in's."""
    database: Path
    """The shop's, SQLite; there until the session is dropped. Open it read-only (`mode=ro`)."""

    def database_of(self, site: str) -> Path:
        """Return the database file of another site."""
        return self.database.with_name(database_of(site))


@dataclass(frozen=True)
class Arena:
    """The arena that runs in a folder."""

    folder: Path
    state: running.State = field(repr=False)

    @classmethod
    def running(cls, folder: Path | None = None) -> Arena:
        """Find the one that runs now, in the folder of `webrl arena up --folder`.

        Raises:
            ArenaError: none runs.
            UsageError: another version of webrl started it, whose content may differ.
        """
        place = (folder or running.default_folder()).absolute()
        state = running.find(place)
        if state is None:
            raise ArenaError(f"no arena runs in {str(place)!r}; start it: webrl arena up")
        if state.content != running.content_digest():
            raise UsageError(
                f"the arena in {str(place)!r} was started by another version of webrl, with other content: "
                "webrl arena down, then webrl arena up"
            )
        return cls(place, state)

    def open(self, user: str | None = None) -> Session:
        """Open a new session, in the initial state.

        Args:
            user: who is logged in: `customer:E-MAIL`, `staff`, or None for no one.

        Raises:
            UsageError: the shop has no such user.
            ArenaError: the arena has stopped, or failed.
        """
        if user is not None and user != "staff" and not user.startswith("customer:"):
            raise UsageError(f"user {user!r} of the arena: it takes 'customer:E-MAIL', 'staff' or None")
        answer = self._request("POST", "/arena/sessions", {"user": user or ""})
        if answer.status_code == HTTPStatus.NOT_FOUND:
            raise UsageError(answer.json()["error"])
        if answer.status_code != HTTPStatus.CREATED:
            raise ArenaError(f"the arena made no session: {answer.status_code} {answer.text[:300]}")
        made, url = answer.json(), self.state.url
        of_host = {"domain": running.HOST, "path": "/", "expires": -1}
        common = {**of_host, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        return Session(
            id=made["id"],
            start_url=url + made["start"],
            enter_url=url + made["enter"],
            cookies=[{"name": name, "value": value, **common} for name, value in made["cookies"].items()],
            database=self.folder / running.SESSIONS / made["id"] / database_of("shop"),
        )

    def drop(self, session: Session) -> None:
        """Remove all that the session has; one that has gone already is not an error. Raises ArenaError."""
        self.reset(session.id)

    def reset(self, name: str = "") -> int:
        """Drop all sessions of all users, or the one of that id, and return how many there were. Raises ArenaError."""
        answer = self._request("DELETE", f"/arena/sessions/{name}", {})
        if answer.status_code != HTTPStatus.OK:
            raise ArenaError(f"the arena dropped nothing: {answer.status_code} {answer.text[:300]}")
        return int(answer.json()["dropped"])

    @contextlib.asynccontextmanager
    async def new(self, user: str | None = None) -> AsyncIterator[Session]:
        """`open` for the length of a block; a caller who is cancelled meanwhile leaves no session behind."""
        making = asyncio.create_task(asyncio.to_thread(self.open, user))
        try:
            yield await asyncio.shield(making)
        finally:
            with contextlib.suppress(ArenaError, UsageError):  # it was not made, or has gone with the arena
                await asyncio.to_thread(self.drop, await making)

    def _request(self, method: str, path: str, query: dict[str, str]) -> httpx.Response:
        import httpx  # half of what a browser worker imports, which other suites do not need

        try:
            # Of its own connection, which ends with it; without certificates, which take long to load.
            answer = httpx.request(
                *(method, self.state.url + path),
                params=query,
                headers={"Authorization": f"Bearer {self.state.key}"},
                timeout=_TIMEOUT_S,
                trust_env=False,
                verify=False,
            )
        except httpx.TransportError as error:
            raise ArenaError(f"the arena at {self.state.url} does not answer: {error!r}") from error
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise ArenaError(f"the arena at {self.state.url} is not the one in {str(self.folder)!r}")
        return answer
