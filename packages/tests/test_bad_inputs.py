"""The rows of `benchmarks/chaos_inputs.py`: commands with something wrong in them end in one clear error."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from chaos_inputs import ALL, CONFIGS, ENDPOINTS, FOLDERS, MODELS, attempt, hostile_endpoints, judge


@pytest.fixture(scope="module")
def address():
    with hostile_endpoints() as found:
        yield found


def parameter(case):
    """The row. WebArena's and the arena's need their packages; arguments and files are left to the companions' tests.

    A shell script is a process of its own, and who waits for an OpenEnv server's first word waits for long.
    """
    extras = {"=webarena": pytest.mark.webarena, "webrl arena": pytest.mark.arena}
    marks = [mark for part, mark in extras.items() if part in case.command]
    if case.command.startswith("bash ") or "rollout.urls=[{address}/hang" in case.command:
        marks.append(pytest.mark.slow)
    of_the_core = [pytest.mark.quick] if case in (*CONFIGS, *FOLDERS, *MODELS, *ENDPOINTS) and not marks else []
    return pytest.param(case, id=case.command[:80], marks=marks + of_the_core)


@pytest.mark.parametrize("case", [parameter(case) for case in ALL])
def test_bad_input_ends_in_one_clear_error(case, tmp_path, address):
    case = case.filled_in(address=address, port=address.rpartition(":")[2])
    outcome = attempt(case, tmp_path / "run", address, own_process=case.command.startswith("bash "))
    assert judge(case.filled_in(here=str(tmp_path / "run")), outcome) == [], outcome.stderr
    lines = [line for line in outcome.error if not line.startswith("another version of webrl may have written it: ")]
    assert len(lines) == (2 if "=[2,3]" in case.command else 1), "a line for each mistake"
    gone = [name for name in case.files if not os.path.lexists(tmp_path / "run" / name)]
    assert not gone, "what was there is kept"
    made = [name for name in ("out", "o.jsonl") if (tmp_path / "run" / name).exists()]
    assert not made, "no model and no tasks of nothing"
    if case.code == 2:
        logs = {"logs"} if case.command == "bash run_multinode.sh" else set()  # the launcher's
        there = {"data", "hostile", *logs, *(name.partition("/")[0] for name in case.files)}
        assert {path.name for path in (tmp_path / "run").iterdir()} == there, "it has written something"


def test_the_table_says_value_place_and_fix_of_every_usage_error():
    assert len(ALL) >= 150
    assert [case.command for case in ALL if not case.value or (case.code == 2 and not (case.place and case.fix))] == []
