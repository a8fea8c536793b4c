"""The arena's sites, each below a path of one server; nothing here imports what serves them."""

from __future__ import annotations

SITES: dict[str, str] = {
    "shop": "",
    "shop_admin": "/dashboard",
    "forum": "/forum",
    "tracker": "/tracker",
    "mail": "/mail",
}
"""Name and path; a task writes `__SHOP_ADMIN__` for the address of the second."""
DATABASES = {"shop": "shop.sqlite3", "tracker": "tracker.sqlite3"}
"""Sites with their own database: its file in a session's folder. The others share the shop's."""
CONTENT = (
    *("content.py", "forum.py", "mail.py", "tracker.py"),
    *("data/shop.yaml", "data/forum.yaml", "data/tracker.yaml", "data/mail.yaml"),
)
"""The sources of what the sites show, below `webrl_arena/world/`; they need nothing but Python and its YAML."""


def addresses(root: str) -> dict[str, str]:
    """Return each site's address below the server's (`http://HOST:PORT`), without a slash at its end."""
    return {name: root + path for name, path in SITES.items()}


def database_of(site: str) -> str:
    """Return the file name of a site's database in a session's folder."""
    return DATABASES.get(site, DATABASES["shop"])
