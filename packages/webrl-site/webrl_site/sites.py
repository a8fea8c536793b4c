"""What suites that play on sites share: their error, placeholders for sites in task files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from webrl.errors import BrowserError, DataError

_PLACEHOLDER = re.compile(r"__([A-Z][A-Z_]*?)__")


class SiteError(BrowserError):
    """A site is down, half-up, refuses the log-in, or is in use by another run; the text says which and what to do."""


def page_of(url: str) -> str:
    """Host and path: what a redirect to the same page's other spelling keeps."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path.rstrip('/')}"


def resolve(data: Any, urls: Mapping[str, str], where: str, known: Sequence[str]) -> Any:
    """Copy of parsed JSON in which `__SITE__` has become the site's base URL.

    Args:
        known: the sites that there are.

    Raises:
        DataError: a placeholder without a URL (it and `where` are quoted).
    """

    def url_of(match: re.Match[str]) -> str:
        name = match.group(1).lower()
        if name not in known:
            names = ", ".join(f"__{site.upper()}__" for site in known)
            raise DataError(f"{where}: unknown site {match.group(0)}; known: {names}")
        if name not in urls:
            raise DataError(f"{where}: {match.group(0)} is unresolved: the task's `sites` do not list {name!r}")
        return json.dumps(urls[name])[1:-1]

    return json.loads(_PLACEHOLDER.sub(url_of, json.dumps(data)))


def placeholders(data: Any) -> set[str]:
    """Names of the sites that `__SITE__` placeholders in parsed JSON refer to, in lower case."""
    return {name.lower() for name in _PLACEHOLDER.findall(json.dumps(data))}
