"""Exact and near duplicates of instructions: TF-IDF cosine plus a rule about the values an instruction names.

What counts as a duplicate. The key is (site, instruction); case, spacing and final punctuation do not matter.
Two instructions are *near* duplicates if they say the same in other words: cosine of character and word TF-IDF
at or above a threshold, **and** the same goal (`same_goal`). Alike text is not enough: 'Click on the "ok" button.'
and 'Click on the "no" button.', or the same order by "ascending" and by "descending" price, are different tasks.

An initial state is (site, seed, start_url). On sites with one initial state (WebArena) an instruction can be
attempted once. Where seeds make pages (MiniWoB), the same words on another page are another task, and on pages
with a fixed vocabulary ("Close the dialog") the only possible one; there `max_states` says at how many initial
states one instruction may be attempted, and the same instruction at the same state is always a duplicate.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from webrl.types import Task

_QUOTED = re.compile(r"\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)|‘([^’]+)’|`([^`]+)`")
_WITH_DIGIT = re.compile(r"[\w#@$%+./:-]*\d[\w#@$%+./:-]*")
_WORD = re.compile(r"[^\W_]+(?:[-'’_][^\W_]+)*")
_DECIDING = frozenset(
    _WORD.findall(
        "not never no nothing without except all every only first second third fourth fifth last next "
        "previous most least before after"
    )
)
_GENERIC = frozenset(
    _WORD.findall(
        "a an the this that these those it its my me i our we you your their them they and or then so in into "
        "on onto at of to for from with by as about regarding up is are was were be been do does did has have "
        "had will would can could should please what what's which who how when where if there here also just "
        "using use named called titled says exist received far now very click press hit tap push select "
        "choose pick check tick enter type write fill input set put find locate search look show list display "
        "tell give get provide return view see go navigate log make button link text textbox field box area "
        "item"
    )
)
"""Words that carry little meaning of their own in an instruction: a paraphrase may swap one for another."""


@dataclass(frozen=True)
class Match:
    """The attempted instruction that a new one duplicates."""

    instruction: str
    """What was attempted."""
    similarity: float
    """1.0 for the same instruction, else the cosine."""
    exact: bool
    """Same (site, instruction), ignoring case, spacing and final punctuation."""


def normalise(instruction: str) -> str:
    """Return the form in which instructions are compared: NFKC, lower case, single spaces, no final punctuation."""
    return " ".join(unicodedata.normalize("NFKC", instruction).lower().split()).rstrip(" .!?;,")


def values_of(instruction: str) -> frozenset[str]:
    """Return the parts that must match: quoted strings, tokens with a digit, and deciding words, in lower case."""
    text = " ".join(unicodedata.normalize("NFKC", instruction).lower().split())
    quoted = {next(filter(None, groups)).strip(" .,") for groups in _QUOTED.findall(text)}
    rest = _QUOTED.sub(" ", text)
    numbers = {token.strip(".,:/-") for token in _WITH_DIGIT.findall(rest)}
    return frozenset(quoted | numbers | (_DECIDING & set(_WORD.findall(rest))))


def same_goal(first: str, second: str) -> bool:
    """Return True if each mentions every value of the other, and both have the same meaningful words.

    Quotes, capitals, endings and generic words ("click", "press", "please", "in the text") may differ. A replaced
    word ("the driving time to …", "the walking time to …") or an additional one ("… sorted by date")
    makes a different task.
    """
    texts = normalise(first), normalise(second)
    for text, other in zip(texts, (second, first), strict=True):
        if not all(re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) for value in values_of(other)):
            return False
    stems = [
        {re.sub(r"(?<=\w\w\w)(?:ing|ed|es|s)$", "", word) for word in set(_WORD.findall(text)) - _GENERIC}
        for text in texts
    ]
    return stems[0] == stems[1]


def state_of(task: Task) -> tuple[str, int, str]:
    """Return (site, seed, start_url), the state that the episode starts in."""
    return (task.site, task.seed, task.start_url or "")


def find_duplicates(
    tasks: Sequence[Task], known: Sequence[Task], threshold: float = 0.9, max_states: int | None = 1
) -> list[Match | None]:
    """Find the earlier instruction that each task duplicates, if any, among `known` and the tasks before it.

    Tasks without an instruction (the site's own) never match. Needs scikit-learn. 100,000 known and 5,000 new
    take about a minute.

    Args:
        threshold: cosine from which an instruction with the same values is a near duplicate.
        max_states: initial states from which one instruction may be attempted (see the module's text). None: tasks are
            compared with `known` only, regardless of their states, and each matches the most similar known one that it
            repeats, even where another task is closer.
    """
    by_site: dict[str, list[int]] = {}
    for position, task in enumerate(tasks):
        if task.instruction is not None:
            by_site.setdefault(task.site, []).append(position)
    # The distinct instructions of each site, each as first written, with the states at which it was attempted.
    groups_of: dict[str, dict[str, tuple[str, set[tuple[str, int, str]]]]] = {site: {} for site in by_site}
    for task in known:
        if task.instruction is not None and task.site in by_site:
            groups_of[task.site].setdefault(normalise(task.instruction), (task.instruction, set()))[1].add(
                state_of(task)
            )
    found: list[Match | None] = [None] * len(tasks)
    for site, positions in by_site.items():
        groups = groups_of[site]
        texts = list(dict.fromkeys([*groups, *(normalise(tasks[i].instruction or "") for i in positions)]))
        similar = neighbours(texts, range(len(groups), len(texts)), threshold)
        near = {texts[row]: [(texts[other], score) for other, score in rows] for row, rows in similar.items()}
        for position in positions:
            instruction, state = tasks[position].instruction or "", state_of(tasks[position])
            text = normalise(instruction)
            matches = []  # the groups that it belongs to, the same instruction's first, then the most similar
            for other, score in [(text, 1.0), *near.get(text, ())]:
                if other in groups and (other == text or same_goal(instruction, groups[other][0])):
                    written, states = groups[other]
                    matches.append((states, Match(written, score, exact=other == text)))
            if max_states is None:
                found[position] = next((match for _, match in matches), None)
                continue
            # The nearest instruction may have room for another state where one that is less near has none.
            closed = (match for states, match in matches if state in states or len(states) >= max_states)
            found[position] = next(closed, None)
            if found[position] is None:
                states = matches[0][0] if matches else set()
                groups.setdefault(text, (matches[0][1].instruction if matches else instruction, states))
                states.add(state)
    return found


_WORD_SHARE = 0.5
"""Share of word features in the cosine; the rest is character 3-grams, which forgive endings and typing."""


def vectorise(texts: Sequence[str]) -> Any:
    """Unit TF-IDF vectors of the texts, CSR float32 [N, V]."""
    from scipy import sparse
    from sklearn.feature_extraction.text import TfidfVectorizer

    shared = {"sublinear_tf": True, "dtype": np.float32}
    words = TfidfVectorizer(token_pattern=r"\w+", **shared).fit_transform([f"_ {text}" for text in texts])
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 3), **shared).fit_transform(texts)
    return sparse.hstack([words * np.float32(_WORD_SHARE**0.5), grams * np.float32((1 - _WORD_SHARE) ** 0.5)], "csr")


def neighbours(texts: Sequence[str], queries: Sequence[int], threshold: float) -> dict[int, list[tuple[int, float]]]:
    """For each query row the other rows whose cosine is at least `threshold`, most similar first; rows without any are
    left out. The TF-IDF weights come from all texts.
    """
    if not queries or len(texts) < 2:
        return {}
    from sklearn.neighbors import NearestNeighbors

    matrix = vectorise(texts)
    search = NearestNeighbors(radius=1 - threshold + 1e-6, metric="cosine").fit(matrix)
    found: dict[int, list[tuple[int, float]]] = {}
    nearest = search.radius_neighbors(matrix[list(queries)], sort_results=True)
    for row, distances, columns in zip(queries, *nearest, strict=True):
        if near := [(int(c), 1 - float(d)) for d, c in zip(distances, columns, strict=True) if c != row]:
            found[row] = near
    return found
