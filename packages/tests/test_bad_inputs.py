"""The quick rows of `benchmarks/chaos_inputs.py`: commands with something wrong in them end in one clear error."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from chaos_inputs import ALL, ARGUMENTS, CONFIGS, FILES, FOLDERS, attempt, judge

# What needs neither a model nor an endpoint.
QUICK = [
    case
    for case in (*ARGUMENTS, *CONFIGS, *FILES, *FOLDERS)
    if not case.command.startswith("bash ") and not any(word in case.command for word in ("{address}", "{port}"))
]


def parameter(case):
    """The row; WebArena's and the arena's need their packages. Settings and run folders are `make test`'s too."""
    extras = {"=webarena": pytest.mark.webarena, "webrl arena": pytest.mark.arena}
    marks = [mark for part, mark in extras.items() if part in case.command]
    of_the_core = [pytest.mark.quick] if case in (*CONFIGS, *FOLDERS) and not marks else []
    return pytest.param(case, id=case.command[:80], marks=marks + of_the_core)


@pytest.mark.parametrize("case", [parameter(case) for case in QUICK])
def test_bad_input_ends_in_one_clear_error(case, tmp_path):
    outcome = attempt(case, tmp_path / "run", "http://127.0.0.1:9", own_process=False)
    filled = case.filled_in(here=str(tmp_path / "run"), address="http://127.0.0.1:9", port="9")
    assert judge(filled, outcome) == [], outcome.stderr
    lines = [line for line in outcome.error if not line.startswith("another version of webrl may have written it: ")]
    assert len(lines) == (2 if "=[2,3]" in case.command else 1), "a line for each mistake"
    gone = [name for name in case.files if not os.path.lexists(tmp_path / "run" / name)]
    assert not gone, "what was there is kept"
    assert not (tmp_path / "run" / "out").exists(), "no model of nothing"
    if case.code == 2:
        there = {"data", "hostile", *(name.partition("/")[0] for name in case.files)}
        assert {path.name for path in (tmp_path / "run").iterdir()} == there, "it has written something"


def test_the_table_says_value_place_and_fix_of_every_usage_error():
    assert len(ALL) >= 150
    assert [case.command for case in ALL if not case.value or (case.code == 2 and not (case.place and case.fix))] == []
