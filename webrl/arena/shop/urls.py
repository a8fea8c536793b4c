"""The shop's addresses: Oscar's own, and what the staff have uploaded."""

from __future__ import annotations

from django.apps import apps
from django.urls import include, path

from webrl.arena.shop.media import show

urlpatterns = [
    path("i18n/", include("django.conf.urls.i18n")),  # Oscar's pages name it
    path("media/<path:name>", show),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
