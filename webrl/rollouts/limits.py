"""What requests may be beside where they go: read-only sites, addresses that are never asked.

`changes(url, words)` is the one judgement of whether a link only shows something. A GET request may change a site, and
only its address and what the page calls it tell: read-only sites, `webrl init-site` and the config that it writes ask
here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

_READING = ("GET", "HEAD")
LEAVES = r"log-?_?\s?(?:out|off)|sign-?_?\s?(?:out|off)"
"""Expression of what ends a session."""
_STRONG = (
    rf"{LEAVES}|delete(?!d\b)|remove(?!d\b)|destroy|purge|erase|wipe|clear|flush|empty|reset|drop|clone|duplicate|unlink|"
    r"detach|regenerate|revoke|unsubscribe|deactivate"
)
# These are names of pages too (`/create-an-account`), and mean an action only where nothing else is said.
_PLAIN = (
    r"create|(?:up|down)?vote|(?:un)?(?:like|follow|ban|mute|pause|publish|approve|subscribe)|reject|cancel|activate|"
    r"enable|disable|restart|reboot|shutdown|kill|trigger|execute|rebuild|reindex|restore|revert|undo|rollback|sync|"
    r"toggle|send|resend"
)
# `/clear-summary-cache`, `/notes/delete`, `/user-delete`, `/deletenote`; five words are a title (`/clear-your-…`).
_ACTION = re.compile(
    rf"(?i)(?:{_STRONG})(?:-[^-]+){{0,3}}|[^-]+-(?:{_STRONG})|(?:delete|remove)(?!d|r)[a-z]+|(?:{_PLAIN})|"
    r"mark-(?:all|as)(?:-[^-]+){0,3}|add-to(?:-[^-]+){0,2}"
)
_SAID = re.compile(rf"(?i)\W*(?:\w+\W+){{0,2}}?({_STRONG})\b")
_FILE = re.compile(r"(?i)\.(css|m?js|map|json|wasm|png|jpe?g|gif|svg|ico|webp|avif|woff2?|ttf|otf|eot|mp[34]|webm)$")
_COMMANDS = ("action", "do", "op", "cmd", "command", "task", "method", "_method", "act", "event", "function")
"""Parameters whose value says what is done."""


def changes(url: str, words: str = "") -> str:
    """The part of an address, or of what a page calls it, by which it looks as if opening it changed something.

    Args:
        words: the link's text, or the button's of a form that goes there.

    Returns:
        "" if it looks like a page: `/notes/3`, `/search?q=delete`, `/reset.css`; else what says otherwise.
    """
    parts = urlsplit(url)
    found = _SAID.match(words)
    if _FILE.search(parts.path):
        return ""
    route, _, inner = parts.fragment.partition("?")
    steps = [*parts.path.split("/"), *(route.split("/") if route.startswith(("/", "!/")) else ())]
    for query in (parts.query, inner):
        for key, value in parse_qsl(query, keep_blank_values=True):
            steps += [key, *([value] if key.lower() in _COMMANDS else ())]
    return next(filter(_is_action, steps), found.group(1) if found else "")


def _is_action(step: str) -> bool:
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|[-_.\s]+", "-", unquote(step)).strip("-")
    return bool(_ACTION.fullmatch(parted))


@dataclass(frozen=True)
class Limits:
    """Held by the navigation guard in the browser, and by its proxy where it sees the request (plain HTTP).

    Example: `Limits(read_only=True, forbidden=(re.compile("/logout"),))`
    """

    read_only: bool = False
    """GET and HEAD alone leave the browser, to addresses that look like pages (`changes`), and no WebSockets."""
    forbidden: tuple[re.Pattern[str], ...] = ()
    """No request to an address that contains a match."""

    def __bool__(self) -> bool:
        return self.read_only or bool(self.forbidden)

    def refusal(self, method: str, url: str) -> str | None:
        """Why a request is refused, for the agent; None if it is not."""
        if self.read_only and method not in _READING:
            return f"this site may only be read, and this would send a {method} request"
        if self.read_only and (word := changes(url)):
            return f"this site may only be read, and {word!r:.60} in an address looks as if it changed something"
        spellings = (url, unquote(url))  # %6Cogout is /logout to the site
        found = (pattern.search(spelling) for pattern in self.forbidden for spelling in spellings)
        match = next(filter(None, found), None)
        return f"addresses with {match.group(0)!r:.100} are not to be opened here" if match else None


NO_LIMITS = Limits()
"""Any request may leave."""
