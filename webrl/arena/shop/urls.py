"""The addresses: what has been uploaded, machina's and Postman's below their paths, and Oscar's."""

from __future__ import annotations

from django.apps import apps
from django.urls import include, path

from webrl.arena.shop.forum import views as forum
from webrl.arena.shop.media import show

urlpatterns = [
    path("i18n/", include("django.conf.urls.i18n")),  # Oscar's pages name it
    path("media/<path:name>", show),
    path("forum/search/", forum.search),  # in place of machina's, which asks the shop's engine
    path("forum/moderation/topic/<str:slug>-<int:pk>/move/", forum.move),
    path("forum/", include("machina.urls")),
    path("mail/", include("postman.urls")),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
