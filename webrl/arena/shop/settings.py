"""Django set up for the arena, with shop, forum and mail: no caches, nothing outside of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
STATUSES = {
    "Pending": ("Being processed", "Cancelled"),
    "Being processed": ("Complete", "Cancelled"),
    "Complete": (),
    "Cancelled": (),
}
"""Which status of an order may follow which."""
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


def configure(secret: str) -> None:
    """Set Django up in this process, once; `secret` signs its cookies and forms."""
    import django
    from django.conf import settings
    from oscar import defaults

    oscar = {name: value for name, value in vars(defaults).items() if name.isupper()}
    settings.configure(**{**oscar, **_django(secret), **_shop()})
    django.setup()


def _django(secret: str) -> dict[str, Any]:
    from oscar import INSTALLED_APPS

    from webrl.arena.shop.forum import settings as forum

    return {
        **forum.machina(),
        **_POSTMAN,
        "SECRET_KEY": secret,
        "ALLOWED_HOSTS": ["127.0.0.1", "localhost"],
        "INSTALLED_APPS": [*INSTALLED_APPS, *forum.APPS, "postman"],
        "SITE_ID": 1,
        "ROOT_URLCONF": "webrl.arena.shop.urls",
        "MIDDLEWARE": [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
            "oscar.apps.basket.middleware.BasketMiddleware",
            *forum.MIDDLEWARE,
        ],
        "TEMPLATES": [_templates()],
        "DATABASES": {
            "default": {
                "ENGINE": "webrl.arena.shop.database",
                "NAME": "the session's",
                "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
            }
        },
        # Whatever is kept between two requests would be seen by another session.
        "CACHES": {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}, **forum.CACHES},
        "HAYSTACK_CONNECTIONS": {"default": {"ENGINE": "webrl.arena.shop.search.DatabaseEngine"}, **forum.SEARCH},
        "HAYSTACK_SIGNAL_PROCESSOR": "haystack.signals.BaseSignalProcessor",
        "AUTHENTICATION_BACKENDS": ["oscar.apps.customer.auth_backends.EmailBackend"],
        # The customers' one password is in the documentation; a slow hash would only slow down the log-in.
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
        # The tables are made as they are today, not by way of ten years of migrations.
        "MIGRATION_MODULES": _NoMigrations(),
        "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField",
        "STORAGES": {
            "default": {"BACKEND": "webrl.arena.shop.media.SessionStorage"},
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


class _NoMigrations(dict[str, None]):
    """Every app's migrations: none."""

    def __contains__(self, app: object) -> bool:
        return True

    def __getitem__(self, app: str) -> None:
        return None

    def get(self, app: str, default: object = None) -> None:  # noqa: ARG002
        return None


def _templates() -> dict[str, Any]:
    from webrl.arena.shop.forum import settings as forum

    django, oscar = "django.template.context_processors", "oscar"
    return {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [str(_HERE / "templates"), *forum.TEMPLATES],
        "OPTIONS": {
            # Compiled once and kept: templates are files, not state.
            "loaders": [
                (
                    "django.template.loaders.cached.Loader",
                    ["django.template.loaders.filesystem.Loader", "django.template.loaders.app_directories.Loader"],
                )
            ],
            "context_processors": [
                f"{django}.request",
                f"{django}.i18n",
                f"{django}.media",
                f"{django}.static",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                f"{oscar}.apps.search.context_processors.search_form",
                f"{oscar}.apps.checkout.context_processors.checkout",
                f"{oscar}.apps.communication.notifications.context_processors.notifications",
                f"{oscar}.core.context_processors.metadata",
                *forum.CONTEXT,
            ],
        },
    }


def _shop() -> dict[str, Any]:
    ranges = ("0", "25"), ("25", "50"), ("50", "100"), ("100", "*")
    return {
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
        "OSCAR_THUMBNAILER": "webrl.arena.shop.media.Originals",
        "OSCAR_SEARCH_FACETS": {
            "fields": {},
            "queries": {
                "price_range": {
                    "name": "Price range",
                    "field": "price",
                    "queries": [
                        (f"{low} to {high}" if high != "*" else f"{low} and more", f"[{low} TO {high}]")
                        for low, high in ranges
                    ],
                }
            },
        },
    }
