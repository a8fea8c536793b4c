"""Duplicates: labelled pairs, exactness of the search, and what one instruction at several pages means."""

import json
from pathlib import Path

import numpy as np
import pytest
from curriculum_builders import build_task

from webrl.config import FilterConfig
from webrl.tasks.dedupe import find_duplicates, neighbours, normalise, same_goal, values_of, vectorise

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "data/instruction_pairs.jsonl").open()]


def found(pair):
    """Whether the second of a pair is a duplicate of the first, among all other first ones."""
    known = [build_task(p["first"], p["site"]) for p in PAIRS if p is not pair and p["first"] != pair["first"]]
    threshold = FilterConfig().duplicate_threshold
    (match,) = find_duplicates(
        [build_task(pair["second"], pair["site"])], [*known, build_task(pair["first"], pair["site"])], threshold
    )
    return match is not None and match.instruction == pair["first"]


@pytest.mark.parametrize("use", ["choose", "check"])
def test_no_different_tasks_are_merged_and_most_paraphrases_are_found(use):
    pairs = [pair for pair in PAIRS if pair["use"] == use]
    merged = [pair["second"] for pair in pairs if not pair["duplicate"] and found(pair)]
    assert merged == []
    same = [found(pair) for pair in pairs if pair["duplicate"]]
    assert len(same) >= 14
    assert np.mean(same) >= 0.75


def test_the_pruned_search_finds_exactly_what_the_full_product_finds():
    rng = np.random.default_rng(0)
    words = ["open", "close", "find", "order", "cart", "mouse", "shoe", "price", "rating", "blue", "of", "the", "in"]
    texts = list(dict.fromkeys(" ".join(rng.choice(words, 6)) for _ in range(600)))
    matrix = vectorise(texts)
    scores = (matrix @ matrix.T).toarray()
    for threshold in (0.5, 0.7, 0.9):
        expected = {
            (i, j) for i, j in zip(*np.nonzero(scores >= threshold), strict=True) if i != j and i >= len(texts) - 200
        }
        queries = range(len(texts) - 200, len(texts))
        got = {(i, j) for i, rows in neighbours(texts, queries, threshold).items() for j, _ in rows}
        assert got == expected
        assert len(expected) > 0


def test_case_spacing_and_final_punctuation_do_not_make_another_instruction():
    assert normalise("  Click  ON the \u00a0link. ") == normalise("click on the link")
    (match,) = find_duplicates([build_task("click OK now!")], [build_task("Click ok now")])
    assert match is not None
    assert (match.exact, match.similarity) == (True, 1.0)


def test_quoted_words_numbers_and_deciding_words_are_values():
    assert values_of('Type "Ann Lee" in box 3, not in the 2nd one.') == {"ann lee", "3", "2nd", "not"}
    assert same_goal('Click the "ok" button', "Press the OK button.")
    assert not same_goal('Click the "ok" button', 'Click the "no" button')
    assert not same_goal("Sort by price", "Sort by price and by date")


def test_a_batch_s_own_tasks_count_as_attempted_but_not_those_of_another_site_or_without_an_instruction():
    tasks = [build_task("Open the cart", "shopping"), build_task("open the cart.", "shopping"), build_task(None)]
    known = [build_task("Open the cart", "gitlab"), build_task(None)]
    assert [match is None for match in find_duplicates(tasks, known)] == [True, False, True]


def test_one_instruction_may_be_attempted_at_so_many_pages_and_never_twice_at_one():
    known = [build_task("Close the dialog", seed=1)]
    tasks = [build_task("Close the dialog", seed=seed) for seed in (1, 2, 3, 2)]
    kept = [match is None for match in find_duplicates(tasks, known, max_states=1)]
    assert kept == [False, False, False, False]
    kept = [match is None for match in find_duplicates(tasks, known, max_states=2)]
    assert kept == [False, True, False, False]


def test_an_attempted_page_stays_closed_although_a_nearer_instruction_was_attempted_elsewhere():
    base = "Show the newest review of the red kettle"
    longer = f"{base} in a list for me and then tell me now please"
    known = [build_task(base, seed=1), build_task(longer, seed=2)]
    task = build_task(f"{base} in a list for me and then tell me", seed=1)
    (match,) = find_duplicates([task], known, 0.6, max_states=3)
    assert match is not None
    assert match.instruction == base
    (match,) = find_duplicates([build_task(task.instruction, seed=3)], known, 0.6, max_states=3)
    assert match is None
