"""Pairs of similar short texts: TF-IDF (scikit-learn), and the cosines of a block of queries with all texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

_BLOCK_ROWS = 128
"""Query rows of one product: bounds the memory of its scores."""
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
    """For each query row the other rows whose cosine is at least `threshold`, most similar first.

    Args:
        texts: everything to compare, queries included (the TF-IDF weights come from all of them).
        queries: rows to find neighbours for; rows without any are absent from the result.
    """
    if not queries or len(texts) < 2:
        return {}
    matrix = vectorise(texts)
    postings = matrix.T.tocsr()
    found: dict[int, list[tuple[int, float]]] = {}
    for start in range(0, len(queries), _BLOCK_ROWS):
        block = list(queries[start : start + _BLOCK_ROWS])
        cosines = (matrix[block] @ postings).tocoo()
        near = cosines.data >= threshold - 1e-6
        rows, columns, scores = cosines.row[near], cosines.col[near], cosines.data[near]
        for position in np.lexsort((columns, -scores, rows)):
            row, column = block[rows[position]], int(columns[position])
            if row != column:
                found.setdefault(row, []).append((column, float(scores[position])))
    return found
