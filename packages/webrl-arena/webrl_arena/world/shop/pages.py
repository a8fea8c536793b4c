"""What shop, forum and mail need besides Oscar's, machina's and Postman's views: addresses, pictures, a form.

Each session's uploads are in its own folder, and are shown as they are: Oscar's thumbnails would be files and
cache entries that sessions share.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from django.apps import apps
from django.core.files.storage import FileSystemStorage, default_storage
from django.http import FileResponse, Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.templatetags.static import static
from django.urls import include, path
from haystack.query import SearchQuerySet
from haystack.views import search_view_factory
from machina.apps.forum_moderation.forms import TopicMoveForm
from machina.apps.forum_moderation.views import TopicMoveView
from machina.apps.forum_permission.middleware import ForumPermissionMiddleware
from machina.apps.forum_search.forms import SearchForm
from machina.apps.forum_search.views import FacetedSearchView
from oscar.core.thumbnails import AbstractThumbnailer

from webrl_arena.world.shop.database.base import current_database
from webrl_arena.world.sites import SITES

_MISSING = "image_not_found.jpg"
"""The name that Oscar uses where a product has no picture."""


class SessionStorage(FileSystemStorage):
    """Files next to the session's database."""

    @property
    def base_location(self) -> str:
        """`media` in the session's folder."""
        return str(current_database().parent / "media")

    @property
    def location(self) -> str:
        """The same: it is absolute."""
        return self.base_location


class Originals(AbstractThumbnailer):
    """Makes no thumbnails: the page shows the picture itself, at the size that the style sheet wants."""

    def generate_thumbnail(self, source: Any, **opts: Any) -> SimpleNamespace:  # noqa: ARG002 - Oscar's signature
        """The picture itself."""
        name = str(getattr(source, "name", source))
        url = static(f"oscar/img/{_MISSING}") if name == _MISSING else default_storage.url(name)
        return SimpleNamespace(url=url)

    def delete_thumbnails(self, source: Any) -> None:
        """Nothing was made."""


def show(request: HttpRequest, name: str) -> HttpResponseBase:  # noqa: ARG001 - a view takes a request
    """A picture that the staff have uploaded in this session."""
    if not default_storage.exists(name):
        raise Http404(name)
    return FileResponse(default_storage.open(name))


class ForumPermissions(ForumPermissionMiddleware):
    """Machina's, for its own pages: it opens a log-in session for every visitor."""

    def process_request(self, request: HttpRequest) -> None:
        """Note who may do what."""
        if request.path.startswith(f"{SITES['forum']}/"):
            super().process_request(request)


class MoveForm(TopicMoveForm):
    """Machina's, without the options that cannot be chosen: with Django 5 it shows them as groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        boards = (board for board in self.allowed_forums if board.is_forum and board != self.topic.forum)
        self.fields["forum"].choices = [(board.pk, board.name) for board in boards]


_search = search_view_factory(
    view_class=FacetedSearchView, form_class=SearchForm, searchqueryset=SearchQuerySet(using="forum")
)
"""Machina's search page, which asks the forum's engine."""
urlpatterns = [
    path("i18n/", include("django.conf.urls.i18n")),  # Oscar's pages name it
    path("media/<path:name>", show),
    path("forum/search/", _search),  # instead of machina's, which queries the shop's engine
    path("forum/moderation/topic/<str:slug>-<int:pk>/move/", TopicMoveView.as_view(form_class=MoveForm)),
    path("forum/", include("machina.urls")),
    path("mail/", include("postman.urls")),
    path("", include(apps.get_app_config("oscar").urls[0])),
]
