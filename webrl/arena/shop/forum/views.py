"""What the forum's pages need beside machina's views."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from haystack.query import SearchQuerySet
from haystack.views import search_view_factory
from machina.apps.forum_moderation.forms import TopicMoveForm
from machina.apps.forum_moderation.views import TopicMoveView
from machina.apps.forum_permission.middleware import ForumPermissionMiddleware
from machina.apps.forum_search.forms import SearchForm
from machina.apps.forum_search.views import FacetedSearchView

PATH = "/forum/"


class ForumPermissions(ForumPermissionMiddleware):
    """Machina's, for its own pages: it opens a log-in session for everybody who comes by."""

    def process_request(self, request: HttpRequest) -> None:
        """Note who may do what."""
        if request.path.startswith(PATH):
            super().process_request(request)


search = search_view_factory(
    view_class=FacetedSearchView, form_class=SearchForm, searchqueryset=SearchQuerySet(using="forum")
)
"""Machina's search page, which asks the forum's engine."""


class MoveForm(TopicMoveForm):
    """Machina's, without the options that cannot be chosen: with Django 5 it shows them as groups."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        boards = (board for board in self.allowed_forums if board.is_forum and board != self.topic.forum)
        self.fields["forum"].choices = [(board.pk, board.name) for board in boards]


move = TopicMoveView.as_view(form_class=MoveForm)
