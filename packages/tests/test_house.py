"""The figures of `scripts/house.py`, by hand."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import house

SEVEN = "\n".join(f"value_{i} = make(part={i})" for i in range(7)) + "\n"


def test_names_and_lines_are_counted():
    text = "class A:\n    def f(self):\n        async def g():\n            pass\n\n\nX = 1\n"
    figures = house.measure({Path("a.py"): text})
    assert (figures["lines"], figures["files"], figures["names per 1000 lines"]) == (7, 1, round(3000 / 7, 1))


def test_a_long_run_that_occurs_twice_counts_once():
    twice = {Path("a.py"): SEVEN, Path("b.py"): "other = 1\n" + SEVEN}
    assert len(house.duplicated_runs(twice)) == 1
    assert house.duplicated_runs({Path("a.py"): SEVEN}) == []
    imports = "".join(f"import module_{i}\n" for i in range(9))
    assert house.duplicated_runs({Path("a.py"): imports, Path("b.py"): imports}) == []


def test_an_option_that_nothing_names_is_found_by_any_of_its_words():
    keys = [("actor.lr", "critic.lr"), ("filter.max_tasks",), ("rollout.odd_one",)]
    assert house.unnamed_options(keys, ["actor: {lr: 1}", "run with filter.max_tasks=3"]) == ["rollout.odd_one"]
