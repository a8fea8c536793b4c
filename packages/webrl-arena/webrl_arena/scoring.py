"""The score of an episode in the arena: its task's `eval`, as WebArena's evaluators judge it, and its database.

API: `await score(evaluation, end) -> Score`. The rules of `string_match`, `url_match` and `program_html` are those of
WebArena's evaluation_harness/evaluators.py, written again because that needs packages that conflict with ours
(`make webarena`) and the sites of WebArena in the environment; tests hold them against it. One thing differs: it cuts
answers into words with NLTK's tokenizer, whose data are downloaded, where here words end at spaces and lose the
punctuation around them. That matters for reference answers of one character alone.
"""

from __future__ import annotations

import asyncio
import html
import sqlite3
import string
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from webrl.rollouts.browser import first_line
from webrl.rollouts.interface import Score
from webrl_arena.world.sites import database_of
from webrl_site.checks import Undecided, combine, first_value, open_tab

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page


CHECK_TIMEOUT_S = 30.0
"""Deadline of one evaluator."""
_SCRIPT_ERRORS = ("TypeError", "ReferenceError", "RangeError")
"""What a locator meets on another page than its own; a SyntaxError is the locator's."""


@dataclass(frozen=True)
class End:
    """What the evaluators look at."""

    context: BrowserContext
    """The agent's profile."""
    page: Page
    """The active tab."""
    answer: str | None
    """The agent's message; None if it was stopped."""
    database: Path
    """The session's, of the shop; those of other sites are next to it."""
    timeout_s: float
    """Deadline of one page or query."""


async def score(evaluation: Mapping[str, Any], end: End) -> Score:
    """Return 1 if all evaluators agree, 0 if one does not (named in the note), None if that could not be found out.

    Args:
        evaluation: a task's `eval`, with addresses instead of `__SITE__`.
    """
    kinds = evaluation["eval_types"]
    return await combine(((kind, partial(_check, kind, evaluation, end)) for kind in kinds), end.timeout_s)


def string_match(references: Mapping[str, Any], answer: str | None) -> bool:
    """Check whether an answer equals or contains the references, whichever there are, ignoring case."""
    if answer is None:
        return False
    said = _clean(answer)
    if "exact_match" in references:
        return said == _clean(references["exact_match"])
    included = [_clean(wanted) for wanted in references["must_include"]]
    if len(included) == 1 and len(included[0]) == 1:  # "3" is not in "13"
        return included[0] in {word.strip(string.punctuation + "$£€") for word in said.split()}
    return all(wanted in said for wanted in included)


def url_match(reference: str, url: str) -> bool:
    """Whether an address holds the reference's, and one of the values of each part of its query."""
    gold, found = urlsplit(reference.rstrip("/")), urlsplit(url.rstrip("/"))
    given = parse_qs(found.query)
    return gold.netloc + gold.path in found.netloc + found.path and all(
        set(values) & set(given.get(key, ())) for key, values in parse_qs(gold.query).items()
    )


def _clean(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


async def _check(kind: str, evaluation: Mapping[str, Any], end: End) -> str:
    """Return why an evaluator does not agree; "" if it does."""
    match kind:
        case "string_match":
            agrees = string_match(evaluation["reference_answers"], end.answer)
            return "" if agrees else f"the answer is {end.answer!r:.200}"
        case "url_match":
            agrees = url_match(evaluation["reference_url"], end.page.url)
            return "" if agrees else f"the address is {end.page.url!r:.200}"
        case "program_html":
            for target in evaluation["program_html"]:
                if target["url"] == "last":
                    shown = await _select(end.page, target["locator"])
                else:
                    async with open_tab(end.context, target["url"], end.timeout_s) as page:
                        shown = await _select(page, target["locator"])
                for wanted in target["required_contents"]["must_include"]:
                    if _clean(wanted) not in _clean(shown):
                        return f"{target['url']} does not show {wanted!r:.200}"
            return ""
    for check in evaluation["database"]:
        database = end.database.with_name(database_of(check.get("site", "shop")))
        try:
            value = await asyncio.to_thread(first_value, database, check["query"], end.timeout_s)
        except sqlite3.Error as error:
            raise Undecided(f"{database}: {error}") from None
        if value != check["equals"]:
            return f"{check['query']!r:.200} finds {value!r:.200}"
    return ""


async def _select(page: Page, locator: str) -> str:
    from playwright.async_api import Error

    try:
        return html.unescape(str(await page.evaluate(f"() => {locator}") or ""))
    except Error as error:
        if any(name in str(error) for name in _SCRIPT_ERRORS):
            return ""  # the page is not the one that the locator is for
        raise Undecided(first_line(error)) from None
