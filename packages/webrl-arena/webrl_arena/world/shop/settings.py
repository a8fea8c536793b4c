"""Django set up for the arena, with shop, forum and mail: no caches, nothing outside of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django
import oscar
from django.conf import settings
from machina import MACHINA_MAIN_TEMPLATE_DIR
from oscar import defaults

STATUSES = {
    "Pending": ("Being processed", "Cancelled"),
    "Being processed": ("Complete", "Cancelled"),
    "Complete": (),
    "Cancelled": (),
}
"""Which status of an order may follow which."""
_MACHINA_APPS = (
    *("forum", "forum_conversation", "forum_conversation.forum_attachments", "forum_conversation.forum_polls"),
    *("forum_feeds", "forum_moderation", "forum_search", "forum_tracking", "forum_member", "forum_permission"),
)
_PRICE_RANGES = ("0", "25"), ("25", "50"), ("50", "100"), ("100", "*")
_OSCAR = {
    "OSCAR_SHOP_NAME": "Larch & Lantern",
    "OSCAR_SHOP_TAGLINE": "Goods that last",
    "OSCAR_DEFAULT_CURRENCY": "USD",
    "OSCAR_INITIAL_ORDER_STATUS": "Pending",
    "OSCAR_INITIAL_LINE_STATUS": "Pending",
    "OSCAR_ORDER_STATUS_PIPELINE": STATUSES,
    "OSCAR_LINE_STATUS_PIPELINE": STATUSES,
    "OSCAR_ORDER_STATUS_CASCADE": {name: name for name in STATUSES},
    "OSCAR_ALLOW_ANON_REVIEWS": False,
    "OSCAR_MODERATE_REVIEWS": False,
    "OSCAR_THUMBNAILER": "webrl_arena.world.shop.pages.Originals",
    "OSCAR_SEARCH_FACETS": {
        "fields": {},
        "queries": {
            "price_range": {
                "name": "Price range",
                "field": "price",
                "queries": [
                    (f"{low} to {high}" if high != "*" else f"{low} and more", f"[{low} TO {high}]")
                    for low, high in _PRICE_RANGES
                ],
            }
        },
    },
}
_MACHINA = {
    "MACHINA_FORUM_NAME": "Larch & Lantern forum",
    "MACHINA_USER_DISPLAY_NAME_METHOD": "get_full_name",
    "MACHINA_MARKUP_WIDGET": None,  # a plain text area, not an editor that is drawn over it
    "MACHINA_PROFILE_AVATARS_ENABLED": False,
}
_POSTMAN = {
    "POSTMAN_AUTO_MODERATE_AS": True,
    "POSTMAN_DISABLE_USER_EMAILING": True,
    "POSTMAN_DISALLOW_ANONYMOUS": True,
    "POSTMAN_MAILER_APP": None,
    "POSTMAN_NAME_USER_AS": "email",
    "POSTMAN_NOTIFIER_APP": None,
    "POSTMAN_SHOW_USER_AS": "get_full_name",
}
"""Messages arrive at once, and are written to addresses."""
_TEMPLATES = {
    "BACKEND": "django.template.backends.django.DjangoTemplates",
    "DIRS": [str(Path(__file__).with_name("templates")), MACHINA_MAIN_TEMPLATE_DIR],
    "OPTIONS": {
        # Compiled once and kept: templates are files, not state.
        "loaders": [
            (
                "django.template.loaders.cached.Loader",
                ["django.template.loaders.filesystem.Loader", "django.template.loaders.app_directories.Loader"],
            )
        ],
        "context_processors": [
            "django.template.context_processors.request",
            "django.template.context_processors.i18n",
            "django.template.context_processors.media",
            "django.template.context_processors.static",
            "django.contrib.auth.context_processors.auth",
            "django.contrib.messages.context_processors.messages",
            "oscar.apps.search.context_processors.search_form",
            "oscar.apps.checkout.context_processors.checkout",
            "oscar.apps.communication.notifications.context_processors.notifications",
            "oscar.core.context_processors.metadata",
            "machina.core.context_processors.metadata",
        ],
    },
}
_NO_CACHE = {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}
"""A real cache would leak data from one session into another."""


class _NoMigrations(dict[str, None]):
    """Every app's migrations: none."""

    def __contains__(self, app: object) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None

    def get(self, app: str, default: object = None) -> None:  # noqa: ARG002
        return None


def configure(secret: str) -> None:
    """Set Django up in this process, once; `secret` signs its cookies and forms."""
    machina = [f"machina.apps.{name}" for name in _MACHINA_APPS]
    ours: dict[str, Any] = {
        "SECRET_KEY": secret,
        "ALLOWED_HOSTS": ["127.0.0.1", "localhost"],
        "INSTALLED_APPS": [*oscar.INSTALLED_APPS, "mptt", "machina", *machina, "postman"],
        "SITE_ID": 1,
        "ROOT_URLCONF": "webrl_arena.world.shop.pages",
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "oscar.apps.basket.middleware.BasketMiddleware",
            "webrl_arena.world.shop.pages.ForumPermissions",
        ],
        "TEMPLATES": [_TEMPLATES],
        "DATABASES": {
            "default": {
                "ENGINE": "webrl_arena.world.shop.database",
                "NAME": "the session's",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
            }
        },
        "CACHES": {"default": _NO_CACHE, "machina_attachments": _NO_CACHE},
        "HAYSTACK_CONNECTIONS": {
            "default": {"ENGINE": "webrl_arena.world.shop.search.DatabaseEngine"},
            "forum": {"ENGINE": "webrl_arena.world.shop.search.PostEngine"},
        },
        "HAYSTACK_SIGNAL_PROCESSOR": "haystack.signals.BaseSignalProcessor",
        "AUTHENTICATION_BACKENDS": ["oscar.apps.customer.auth_backends.EmailBackend"],
        # The customers' one password is in the documentation; a slow hash would only slow down the log-in.
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
        # The tables are made as they are today, not by way of ten years of migrations.
        "MIGRATION_MODULES": _NoMigrations(),
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "STORAGES": {
            "default": {"BACKEND": "webrl_arena.world.shop.pages.SessionStorage"},
            "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
        },
        "MEDIA_URL": "/media/",
        "STATIC_URL": "/static/",
        "USE_TZ": True,
        "TIME_ZONE": "UTC",
        "LANGUAGE_CODE": "en-us",
        "LANGUAGES": [("en-us", "English")],
        "USE_I18N": False,
        "LOGGING_CONFIG": None,
    }
    oscar_defaults = {name: value for name, value in vars(defaults).items() if name.isupper()}
    settings.configure(**{**oscar_defaults, **_OSCAR, **_MACHINA, **_POSTMAN, **ours})
    django.setup()
