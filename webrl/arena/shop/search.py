"""Haystack's search engine for the shop: it asks the session's own database, so that an edit is found at once.

An index on the disk would have to be copied for each session; Haystack's own engine without one (`simple`) knows no
filters, sorting or pages.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from django.db.models import Case, Count, IntegerField, Min, Q, Value, When
from haystack.backends import BaseEngine, BaseSearchBackend, BaseSearchQuery, SearchNode
from haystack.models import SearchResult
from oscar.core.loading import get_model

_TEXT = ("title", "description", "upc", "stockrecords__partner_sku")
_FIELDS = {"category": "categories", "is_public": "is_public", "structure": "structure"}
_SORT = {"price": "lowest", "rating": "rating", "date_created": "date_created", "title_exact": "title"}
_RANGE = re.compile(r"\[(?P<low>\S+) TO (?P<high>\S+)\]")


class Unindexed(BaseSearchBackend):
    """A backend without an index of its own."""

    def update(self, index: Any, iterable: Any, commit: bool = True) -> None:
        """There is no index to update."""

    def remove(self, obj_or_string: Any, commit: bool = True) -> None:
        """There is no index to remove anything from."""

    def clear(self, models: Any = None, commit: bool = True) -> None:
        """There is no index to clear."""


class DatabaseBackend(Unindexed):
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
        """Products as Haystack's results, best first, with how many are in each price range."""
        condition, words = query
        found = _found(condition)
        narrow = _narrowed(narrow_queries)
        page = _sorted(found.filter(narrow), sort_by or [], words).base_queryset()[start_offset:end_offset]
        # Haystack asks by its own name of a facet's field, Oscar looks for the field.
        facets = {f"{field.removesuffix('_exact')}:{text}": _ranges(text) for field, text in query_facets or ()}
        hits, *counts = _counts(found, [narrow, *facets.values()])
        return {
            "results": [result_of(product, result_class or SearchResult) for product in page],
            "hits": hits,
            "facets": {"fields": {}, "dates": {}, "queries": dict(zip(facets, counts, strict=True))},
        }

    def count(self, query: tuple[Q, list[str]], narrow_queries: set[str] | None) -> int:
        """How many products a search finds."""
        return int(_found(query[0]).filter(_narrowed(narrow_queries)).values("pk").count())


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
            self._hit_count = int(self.backend.count(self.build_query(), self.narrow_queries))
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
            return text_condition(str(getattr(value, "query_string", value)), words, _TEXT)
        if field not in _FIELDS:
            raise ValueError(f"the shop's search has no field {field!r}")
        if field == "is_public":
            value = str(value) == "true"
        return Q(**{f"{_FIELDS[field]}__in" if kind == "in" else _FIELDS[field]: value})


class DatabaseEngine(BaseEngine):
    """What the settings name."""

    backend = DatabaseBackend
    query = DatabaseQuery


def text_condition(typed: str, words: list[str], fields: Sequence[str]) -> Q:
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


def _found(condition: Q) -> Any:
    """The products that meet a condition, with their lowest price."""
    products = get_model("catalogue", "Product").objects.browsable().filter(condition).distinct()
    return products.annotate(lowest=Min("stockrecords__price"))


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


def _counts(found: Any, conditions: Sequence[Q]) -> list[int]:
    """How many meet each condition, all in one query: pages that list products spend much of their time here."""
    counts = {f"count{number}": Count("pk", filter=condition) for number, condition in enumerate(conditions)}
    return list(found.aggregate(**counts).values())


def _sorted(found: Any, sort_by: list[str], words: list[str]) -> Any:
    """As asked for; otherwise those with most of the words in their title first. Then by their number."""
    order = [("-" if key.startswith("-") else "") + _SORT[key.removeprefix("-")] for key in sort_by]
    if not order and words:
        in_title = [Case(When(title__icontains=word, then=1), default=0, output_field=IntegerField()) for word in words]
        found = found.annotate(relevance=sum(in_title, Value(0)))
        order = ["-relevance"]
    return found.order_by(*order, "pk")


def result_of(found: Any, result_class: type[SearchResult], **shown: Any) -> SearchResult:
    """A row as Haystack's result, with what the page shows of it."""
    result = result_class(found._meta.app_label, found._meta.model_name, found.pk, 0, **shown)
    result._model, result._object = type(found), found
    return result
