"""The arena's sites, each below a path of one server; nothing here imports what serves them."""

from __future__ import annotations

SITES: dict[str, str] = {
    "shop": "",
    "shop_admin": "/dashboard",
    "forum": "/forum",
}
"""Name and path; `__SHOP_ADMIN__` in a task stands for the second's address."""
CONTENT = ("words.py", "content.py", "forum/words.py", "forum/content.py")
"""The sources of what the sites show, below `webrl/arena/`; they need nothing but Python."""


def addresses(root: str) -> dict[str, str]:
    """Each site's address below the server's (`http://HOST:PORT`), without a slash at its end."""
    return {name: root + path for name, path in SITES.items()}


def starts_at_a_site(url: str) -> bool:
    """Whether a start page is given as `__SITE__…`."""
    return url.startswith(tuple(f"__{name.upper()}__" for name in SITES))
