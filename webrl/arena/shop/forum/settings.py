"""What the forum adds to the shop's Django: machina's applications beside Oscar's, on the same accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from machina import MACHINA_MAIN_TEMPLATE_DIR

APPS = (
    "mptt",
    "machina",
    *(
        f"machina.apps.{name}"
        for name in (
            *("forum", "forum_conversation", "forum_conversation.forum_attachments", "forum_conversation.forum_polls"),
            *("forum_feeds", "forum_moderation", "forum_search", "forum_tracking", "forum_member", "forum_permission"),
        )
    ),
)
MIDDLEWARE = ("webrl.arena.shop.forum.views.ForumPermissions",)
TEMPLATES = (str(Path(__file__).with_name("templates")), MACHINA_MAIN_TEMPLATE_DIR)
CONTEXT = ("machina.core.context_processors.metadata",)
SEARCH = {"forum": {"ENGINE": "webrl.arena.shop.forum.search.PostEngine"}}
CACHES = {"machina_attachments": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}


def machina() -> dict[str, Any]:
    """Machina's own settings."""
    return {
        "MACHINA_FORUM_NAME": "Larch & Lantern forum",
        "MACHINA_USER_DISPLAY_NAME_METHOD": "get_full_name",
        "MACHINA_MARKUP_WIDGET": None,  # a plain text area, not an editor that is drawn over it
        "MACHINA_PROFILE_AVATARS_ENABLED": False,
    }
