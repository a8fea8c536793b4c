"""Haystack's search engine for the forum; as the shop's, it asks the session's own database."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Q
from haystack.backends import BaseEngine
from haystack.models import SearchResult
from machina.core.db.models import get_model

from webrl.arena.shop.search import DatabaseQuery, Unindexed, result_of, text_condition

_TEXT = {"content": ("subject", "content"), "topic_subject": ("topic__subject",)}


class PostBackend(Unindexed):
    """Answers a search from machina's tables."""

    def search(
        self,
        query: tuple[Q, list[str]],
        start_offset: int = 0,
        end_offset: int | None = None,
        result_class: type[SearchResult] | None = None,
        **ignored: Any,  # noqa: ARG002 - facets, highlighting and places, which the forum does not use
    ) -> dict[str, Any]:
        """Posts as Haystack's results, the newest first."""
        found = _found(query[0]).select_related("topic__forum", "poster").order_by(F("created").desc(), "pk")
        return {
            "results": [_result(post, result_class or SearchResult) for post in found[start_offset:end_offset]],
            "hits": found.count(),
            "facets": {},
        }

    def count(self, query: tuple[Q, list[str]], narrow_queries: set[str] | None) -> int:  # noqa: ARG002 - no facets
        """How many posts a search finds."""
        return int(_found(query[0]).count())


class PostQuery(DatabaseQuery):
    """Turns the filters of machina's form into one condition."""

    def condition_of(self, expression: str, value: Any, words: list[str]) -> Q:
        """Of one filter."""
        field, _, _ = expression.partition("__")
        if field in _TEXT:
            return text_condition(str(getattr(value, "query_string", value)), words, _TEXT[field])
        if field == "forum":
            return Q(topic__forum__in=value)
        if field == "poster_name":
            condition = Q()
            for word in str(value).split():
                condition &= Q(poster__first_name__icontains=word) | Q(poster__last_name__icontains=word)
            return condition
        raise ValueError(f"the forum's search has no field {field!r}")


class PostEngine(BaseEngine):
    """What the settings name."""

    backend = PostBackend
    query = PostQuery


def _found(condition: Q) -> Any:
    return get_model("forum_conversation", "Post").objects.filter(condition, approved=True)


def _result(post: Any, result_class: type[SearchResult]) -> SearchResult:
    topic = post.topic
    return result_of(
        post,
        result_class,
        text=post.content.raw,
        poster=post.poster_id,
        poster_name=post.poster.get_full_name(),
        created=post.created,
        forum=topic.forum_id,
        forum_slug=topic.forum.slug,
        topic=topic.pk,
        topic_slug=topic.slug,
        topic_subject=topic.subject,
    )
