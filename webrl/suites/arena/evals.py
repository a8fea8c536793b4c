"""How success is written down: the `eval` of a task, as in a task file.

API: `answers`, `is_answered`, `leads_to`, `shows`, `is_titled`, `shows_last`, `finds`, `rows`, `finds_all`; `quoted`
for texts in queries.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

Eval = dict[str, Any]
"""The value of a task's `eval`."""


def answers(*must_include: str) -> Eval:
    """Success by what the agent's answer holds."""
    return _eval("string_match", reference_answers={"must_include": list(must_include)})


def is_answered(text: str) -> Eval:
    """Success by the whole answer, for what could be a part of another one ("15" of "150")."""
    return _eval("string_match", reference_answers={"exact_match": text})


def leads_to(path: str, site: str = "shop") -> Eval:
    """Success by where the agent ends; `path` below the site's."""
    return _eval("url_match", reference_url=f"__{site.upper()}__{path}", url_note="GOLD in PRED")


def shows(path: str, *must_include: str) -> Eval:
    """Success by what a page of the shop then shows to the agent's user."""
    target = {
        "url": f"__SHOP__{path}",
        "locator": "document.body.innerText",
        "required_contents": {"must_include": list(must_include)},
    }
    return _eval("program_html", program_html=[target])


def is_titled(*must_include: str) -> Eval:
    """Success by the title of the page where the agent ends; for pages whose address is a part of another one's."""
    return shows_last("document.title", *must_include)


def shows_last(locator: str, *must_include: str) -> Eval:
    """Success by what JavaScript finds on the page where the agent ends."""
    target = {"url": "last", "locator": locator, "required_contents": {"must_include": list(must_include)}}
    return _eval("program_html", program_html=[target])


def finds(query: str, equals: Any, site: str = "shop") -> Eval:
    """Success by the first value that a query finds in the session's database of a site."""
    return _eval("database", database=[{"query": " ".join(query.split()), "equals": equals, "site": site}])


def rows(columns: str, tables: str, wanted: Collection[str]) -> Eval:
    """Success by exactly these rows, in any order, each as one text (`columns`)."""
    query = f"SELECT group_concat(row, ' | ') FROM (SELECT {columns} AS row FROM {tables} ORDER BY row)"
    return finds(query, " | ".join(sorted(wanted)) or None)


def finds_all(*evals: Eval) -> Eval:
    """Success by what several queries find."""
    return _eval("database", database=[check for each in evals for check in each["database"]])


def _eval(kind: str, **given: Any) -> Eval:
    empty: Eval = {"reference_answers": None, "reference_url": "", "program_html": []}
    return {"eval_types": [kind], **empty, **given}


def quoted(text: str) -> str:
    """A text in a query."""
    return "'" + text.replace("'", "''") + "'"
