"""What requests may be beside where they go: read-only sites, addresses that are never asked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_READING = ("GET", "HEAD")


@dataclass(frozen=True)
class Limits:
    """Held by the navigation guard in the browser, and by its proxy where it sees the request (plain HTTP).

    Example: `Limits(read_only=True, forbidden=(re.compile("/logout"),))`
    """

    read_only: bool = False
    """GET and HEAD alone leave the browser, no WebSockets."""
    forbidden: tuple[re.Pattern[str], ...] = ()
    """No request to an address that contains a match."""

    def __bool__(self) -> bool:
        return self.read_only or bool(self.forbidden)

    def refusal(self, method: str, url: str) -> str | None:
        """Why a request is refused, for the agent; None if it is not."""
        if self.read_only and method not in _READING:
            return f"this site may only be read, and this would send a {method} request"
        spellings = (url, unquote(url))  # %6Cogout is /logout to the site
        found = (pattern.search(spelling) for pattern in self.forbidden for spelling in spellings)
        match = next(filter(None, found), None)
        return f"addresses with {match.group(0)!r:.100} are not to be opened here" if match else None


NO_LIMITS = Limits()
"""Any request may leave."""
