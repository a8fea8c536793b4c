"""Haystack's search engines for shop and forum: they ask the session's own database, so that an edit is found at once.

An index on the disk would have to be copied for each session; Haystack's own engine without one (`simple`) knows no
filters, sorting or pages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from django.db.models import Case, Count, F, IntegerField, Min, Q, Value, When
from haystack.backends import BaseEngine, BaseSearchBackend, BaseSearchQuery, SearchNode
from haystack.models import SearchResult
from oscar.core.loading import get_model

_TEXT = ("title", "description", "upc", "stockrecords__partner_sku")
_POST_TEXT = {"content": ("subject", "content"), "topic_subject": ("topic__subject",)}
_FIELDS = {"category": "categories", "is_public": "is_public", "structure": "structure"}
_SORT = {"price": "lowest", "rating": "rating", "date_created": "date_created", "title_exact": "title"}
_RANGE = re.compile(r"\[(?P<low>\S+) TO (?P<high>\S+)\]")


class DatabaseBackend(BaseSearchBackend):
    """Answers a search from Oscar's tables."""

    def search(
        self,
        query: tuple[Q, list[str]],
        sort_by: list[str] | None = None,
        start_offset: int = 0,
        end_offset: int | None = None,
        narrow_queries: set[str] | None = None,
        query_facets: list[tuple[str, str]] | None = None,
        result_class: type[SearchResult] | None = None,
        **ignored: Any,  # noqa: ARG002 - highlighting, spelling and places, which the shop does not use
    ) -> dict[str, Any]:
        """Return products as Haystack's results, best first, with how many are in each price range.

        The order is the requested one; otherwise those with most of the words in their title come first.
        """
        condition, words = query
        found, narrow = self.found(condition), _narrowed(narrow_queries)
        order = [("-" if key.startswith("-") else "") + _SORT[key.removeprefix("-")] for key in sort_by or []]
        shown = found.filter(narrow)
        if not order and words:
            in_title = [
                Case(When(title__icontains=word, then=1), default=0, output_field=IntegerField()) for word in words
            ]
            shown, order = shown.annotate(relevance=sum(in_title, Value(0))), ["-relevance"]
        page = shown.order_by(*order, "pk").base_queryset()[start_offset:end_offset]
        # Haystack asks by its own name of a facet's field, Oscar looks for the field.
        facets = {f"{field.removesuffix('_exact')}:{text}": _ranges(text) for field, text in query_facets or ()}
        # All counts in one query: pages that list products spend much of their time here.
        counts = {f"count{i}": Count("pk", filter=part) for i, part in enumerate([narrow, *facets.values()])}
        hits, *in_ranges = found.aggregate(**counts).values()
        return {
            "results": [_result(product, result_class or SearchResult) for product in page],
            "hits": hits,
            "facets": {"fields": {}, "dates": {}, "queries": dict(zip(facets, in_ranges, strict=True))},
        }

    def found(self, condition: Q) -> Any:
        """Return the products that meet a condition, with their lowest price."""
        products = get_model("catalogue", "Product").objects.browsable().filter(condition).distinct()
        return products.annotate(lowest=Min("stockrecords__price"))


class DatabaseQuery(BaseSearchQuery):
    """Turns Haystack's filters into one condition for the database."""

    _hit_count: int | None

    def build_query(self) -> tuple[Q, list[str]]:
        """The condition, and the words that were searched for."""
        words: list[str] = []
        return self._condition(self.query_filter, words), words

    def get_count(self) -> int:
        """The number of hits; Haystack would search for it, with the first product and all counts of price ranges."""
        if self._hit_count is None:
            narrow = _narrowed(self.narrow_queries)
            self._hit_count = int(self.backend.found(self.build_query()[0]).filter(narrow).values("pk").count())
        return self._hit_count

    def _condition(self, node: SearchNode, words: list[str]) -> Q:
        result = Q()
        for child in node.children:
            nested = isinstance(child, SearchNode)
            part = self._condition(child, words) if nested else self.condition_of(child[0], child[1], words)
            result = result | part if node.connector == SearchNode.OR else result & part
        return ~result if node.negated else result

    def condition_of(self, expression: str, value: Any, words: list[str]) -> Q:
        """Of one filter; what it searches for is added to `words`."""
        field, _, kind = expression.partition("__")
        if field == "content":
            return _text_condition(str(getattr(value, "query_string", value)), words, _TEXT)
        if field == "is_public":
            value = str(value) == "true"
        return Q(**{f"{_FIELDS[field]}__in" if kind == "in" else _FIELDS[field]: value})


class DatabaseEngine(BaseEngine):
    """What the settings name."""

    backend = DatabaseBackend
    query = DatabaseQuery


class PostBackend(BaseSearchBackend):
    """Answers a search from machina's tables."""

    def search(
        self,
        query: tuple[Q, list[str]],
        start_offset: int = 0,
        end_offset: int | None = None,
        result_class: type[SearchResult] | None = None,
        **ignored: Any,  # noqa: ARG002 - facets, highlighting and places, which the forum does not use
    ) -> dict[str, Any]:
        """Return posts as Haystack's results, the newest first."""
        found = self.found(query[0]).select_related("topic__forum", "poster").order_by(F("created").desc(), "pk")
        results = [
            _result(
                post,
                result_class or SearchResult,
                text=post.content.raw,
                poster=post.poster_id,
                poster_name=post.poster.get_full_name(),
                created=post.created,
                forum=post.topic.forum_id,
                forum_slug=post.topic.forum.slug,
                topic=post.topic_id,
                topic_slug=post.topic.slug,
                topic_subject=post.topic.subject,
            )
            for post in found[start_offset:end_offset]
        ]
        return {"results": results, "hits": found.count(), "facets": {}}

    def found(self, condition: Q) -> Any:
        """Return the posts that meet a condition."""
        return get_model("forum_conversation", "Post").objects.filter(condition, approved=True)


class PostQuery(DatabaseQuery):
    """Turns the filters of machina's form into one condition."""

    def condition_of(self, expression: str, value: Any, words: list[str]) -> Q:
        """Of one filter."""
        field, _, _ = expression.partition("__")
        if field in _POST_TEXT:
            return _text_condition(str(getattr(value, "query_string", value)), words, _POST_TEXT[field])
        if field == "forum":
            return Q(topic__forum__in=value)
        condition = Q()
        for word in str(value).split():  # of the poster's name
            condition &= Q(poster__first_name__icontains=word) | Q(poster__last_name__icontains=word)
        return condition


class PostEngine(BaseEngine):
    """What the settings name."""

    backend = PostBackend
    query = PostQuery


def _text_condition(typed: str, words: list[str], fields: Sequence[str]) -> Q:
    """Every word or "quoted phrase" must occur, and no word after a minus."""
    try:
        terms = shlex.split(typed.replace("'", "\\'"))
    except ValueError:  # a quote that is not closed
        terms = typed.replace('"', " ").split()
    result = Q()
    for term in terms:
        word = term.removeprefix("-") or term
        occurs = Q()
        for field in fields:
            occurs |= Q(**{f"{field}__icontains": word})
        if term.startswith("-") and len(term) > 1:
            result &= ~occurs
        else:
            result &= occurs
            words.append(word)
    return result


def _narrowed(narrow_queries: set[str] | None) -> Q:
    result = Q()
    for text in narrow_queries or ():
        result &= _ranges(text)
    return result


def _ranges(narrow: str) -> Q:
    """`[25 TO 50]`s as the price facets name them, any of them; a bound of `*` is none."""
    result = Q()
    for found in _RANGE.finditer(narrow):
        part = Q()
        if found["low"] != "*":
            part &= Q(lowest__gte=found["low"])
        if found["high"] != "*":
            part &= Q(lowest__lt=found["high"])
        result |= part
    return result


def _result(found: Any, result_class: type[SearchResult], **shown: Any) -> SearchResult:
    """A row as Haystack's result, with what the page shows of it."""
    result = result_class(found._meta.app_label, found._meta.model_name, found.pk, 0, **shown)
    result._model, result._object = type(found), found
    return result
