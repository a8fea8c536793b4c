"""VAB trace folders: both ways, and every kind of damage listed with file and line."""

import gzip
import json
import os
import shutil

import pytest
from vab_builders import HTML, make_rows, write_trace

from webrl.errors import DataError
from webrl.runs.problems import ProblemLog
from webrl.types import Status
from webrl_webarena.vab import read_vab


def read(folder):
    problems = ProblemLog(folder / "problems.txt")
    with problems:
        read = list(read_vab(folder, problems))
    listed = problems.path.read_text() if problems.path.exists() else ""
    assert listed.count("\n") == problems.counts.total()
    rewards = {trajectory.trajectory_id: label.reward for trajectory, label in read}
    return [trajectory for trajectory, _ in read], dict(problems.counts), listed, rewards


@pytest.mark.parametrize(
    ("response", "action"),
    [
        ("# Element: Bob's box\ndo(action='Click', element='7')\n# Note: done", "do(action='Click', element='7')"),
        ("do(action='Type', argument='a\u2028# b\x0c#c')", "do(action='Type', argument='a\u2028# b\x0c#c')"),
        ('# Note: x\nexit(message="""one\n\n# two""")', 'exit(message="""one\n\n# two""")'),
        ("exit(message='it\\'s\n# 2')", "exit(message='it\\'s\n# 2')"),
    ],
)  # fmt: skip
def test_an_action_keeps_the_lines_of_its_text(tmp_path, response, action):
    write_trace(tmp_path, rows=[make_rows(num_steps=1)[0] | {"response": response}])
    (trajectory,), _, _, _ = read(tmp_path)
    assert trajectory.steps[0].action == action


def test_a_trace_becomes_a_trajectory_with_its_score(tmp_path):
    write_trace(tmp_path)
    (trajectory,), problems, _, rewards = read(tmp_path)
    assert problems == {}
    assert trajectory.instruction == "Find the cheapest lamp"
    assert [s.observation for s in trajectory.steps] == [f"{HTML}<!-- 0 -->", f"{HTML}<!-- 1 -->"]
    assert trajectory.steps[0].action == "do(action='Click', element='7')"
    assert trajectory.final_observation == f"{HTML}<!-- 1 -->"
    assert trajectory.status is Status.AGENT_DONE
    assert rewards == {"12": 1}


def test_traces_come_in_the_order_of_their_numbers_and_score_from_one_half_on_is_a_success(tmp_path):
    for task_id, score in (("10", 0.5), ("9", 0.49), ("100", 0.0), ("a2", 1), ("a10", 1)):
        write_trace(tmp_path, task_id, score=score)
    assert list(read(tmp_path)[3].items()) == [("9", 0), ("10", 1), ("100", 0), ("a2", 1), ("a10", 1)]


def test_missing_action_file_and_negative_score_are_reported_and_never_scored(tmp_path):
    write_trace(tmp_path, "1", score=None)
    write_trace(tmp_path, "2", score=-1)
    trajectories, problems, listed, rewards = read(tmp_path)
    assert problems == {"no_action_file": 1, "negative_score": 1}
    assert [t.status for t in trajectories] == [Status.ENV_ERROR] * 2
    assert rewards == {"1": None, "2": None}
    assert f"{tmp_path / 'traces' / '1.jsonl'}: no action file 1.json; not scored" in listed
    assert f"{tmp_path / 'actions' / '2.json'}: score -1" in listed


def test_a_broken_or_packed_line_or_a_name_that_comes_twice_leaves_its_trace_out_and_no_other(tmp_path):
    good = [json.dumps(row).encode() + b"\n" for row in make_rows()]
    twice = good[0].replace(b'"index": 0', b'"index": 0, "index": 0')
    write_trace(tmp_path, "1", lines=[good[0], good[1][:-9]])
    write_trace(tmp_path, "2", lines=[good[0], b"[]\n"])
    write_trace(tmp_path, "3", lines=[good[0].replace(b'"html"', b'"page"')])
    write_trace(tmp_path, "4")
    for name, line in (("5", gzip.compress(good[0])), ("6", twice), ("7", twice.replace(b"lamp", b"\xff"))):
        write_trace(tmp_path, name, lines=[line])
    trajectories, problems, listed, _ = read(tmp_path)
    assert [t.trajectory_id for t in trajectories] == ["4"]
    assert problems == {"broken_line": 5, "unreadable": 1}
    for said in (
        "1.jsonl:2: malformed JSON", "2.jsonl:2: field 'html' must be str, found []",
        "3.jsonl:1: field 'html' must be str, found {", "5.jsonl is gzip; unpack it",
        "6.jsonl:1: malformed JSON (an object has 'index' twice: keep one)",
    ):  # fmt: skip
        assert said in listed


def test_an_empty_trace_and_a_missing_step_are_reported(tmp_path):
    write_trace(tmp_path, "1", lines=[b"\n \n"])
    write_trace(tmp_path, "2", rows=[make_rows()[0], make_rows(num_steps=3)[2]])
    trajectories, problems, listed, _ = read(tmp_path)
    assert trajectories == []
    assert problems == {"empty": 1, "missing_step": 1}
    assert "2.jsonl:2: index 2 after 1 steps" in listed


def test_a_trace_that_starts_again_keeps_the_last_attempt(tmp_path):
    write_trace(tmp_path, rows=make_rows(target="old")[:1] + make_rows(target="new"))
    (trajectory,), problems, listed, _ = read(tmp_path)
    assert trajectory.instruction == "new"
    assert len(trajectory.steps) == 2
    assert problems == {"duplicate_id": 1}
    assert "12.jsonl:2: the trace starts again" in listed


def test_text_that_is_not_utf8_is_replaced_and_listed(tmp_path):
    line = json.dumps(make_rows()[0]).encode()
    write_trace(tmp_path, "1", lines=[line.replace(b"lamp", b"lamp\xff")])
    write_trace(tmp_path, "2", lines=[line.replace(b"lamp", b"lamp\\ud83d")])
    write_trace(tmp_path, "3", lines=[b"\xef\xbb\xbf" + line])  # a BOM
    write_trace(tmp_path, "4", lines=[line.replace(b"lamp", b"lamp\xff")[:-9]])
    write_trace(tmp_path, "5", lines=[line.replace(b"lamp", b"lamp\t\x01")])
    trajectories, problems, listed, _ = read(tmp_path)
    assert problems == {"non_utf8": 2, "broken_line": 1}
    assert "1.jsonl:1: text is not valid UTF-8; bad characters replaced\n" in listed
    assert "4.jsonl:1: malformed JSON (Unterminated string" in listed
    assert trajectories[2].instruction == "Find the cheapest lamp"
    assert trajectories[3].instruction.endswith("lamp\t\x01")
    assert trajectories[0].instruction == "Find the cheapest lamp�"
    assert trajectories[1].instruction == "Find the cheapest lamp\ufffd"


def test_a_folder_without_traces_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match="no traces folder; expected RESULT/traces"):
        list(read_vab(tmp_path, ProblemLog()))


def write_fixed(folder, score, task_id="12"):
    """As the released code does: a copy with score and response in every line, no newline at the end."""
    (folder / "fixed_traces").mkdir(exist_ok=True)
    rows = [row | {"fixed_response": row["response"], "score": score} for row in make_rows(task_id)]
    (folder / "fixed_traces" / f"{task_id}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def test_the_released_codes_own_scores_are_read(tmp_path):
    write_trace(tmp_path, score=1.0)
    write_fixed(tmp_path, 0)  # its outcome model has said NO
    _, problems, listed, rewards = read(tmp_path)
    assert rewards == {"12": 0}
    assert problems == {"other_score": 1}
    assert "fixed_traces/12.jsonl:2: score 0, its action file says 1" in listed
    write_fixed(tmp_path, 1)
    assert read(tmp_path)[1] == {}
    for name in ("traces", "actions"):
        shutil.rmtree(tmp_path / name)
    for folder in (tmp_path, tmp_path / "fixed_traces"):  # alone they are enough
        _, problems, _, rewards = read(folder)
        assert (rewards, problems) == ({"12": 1}, {})


@pytest.mark.parametrize(
    ("score", "kind"), [(-1, "negative_score"), *((score, "bad_fixed_trace") for score in (7, "1", True, []))]
)
def test_a_bad_score_is_listed_and_a_fixed_trace_s_is_not_replaced_by_another(tmp_path, score, kind):
    write_trace(tmp_path, score=score)
    assert read(tmp_path)[1] == {kind.replace("fixed_trace", "action_file"): 1}
    write_trace(tmp_path, score=1.0)
    write_fixed(tmp_path, score)
    (trajectory,), problems, _, _ = read(tmp_path)
    assert trajectory.status is Status.ENV_ERROR
    assert problems == {kind: 1}


def test_a_trace_folder_brings_in_nothing_from_outside_and_no_pipe_holds_it_up(tmp_path):
    step = {"index": 0, "prompt": "Do it", "html": "<html> </html>", "response": "exit()", "target": "Do it"}
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps(step))
    folder = tmp_path / "result"
    for name in ("traces", "actions"):
        (folder / name).mkdir(parents=True)
    for name in ("0", "1", "2"):
        (folder / "traces" / f"{name}.jsonl").write_text(json.dumps(step))
    (folder / "actions" / "0.json").write_text('{"score": 1}')
    (tmp_path / "score.json").write_text('{"score": 1}')
    (folder / "actions" / "1.json").symlink_to(tmp_path / "score.json")
    os.mkfifo(folder / "actions" / "2.json")
    (folder / "traces" / "3.jsonl").symlink_to(secret)
    os.mkfifo(folder / "traces" / "4.jsonl")
    (folder / "traces" / "5.jsonl").symlink_to("/dev/zero")
    (folder / "traces" / "6.jsonl").symlink_to("6.jsonl")
    (folder / "traces" / "7.jsonl").symlink_to("0.jsonl")
    (folder / "traces" / "8.jsonl").mkdir()
    with ProblemLog(tmp_path / "problems.txt") as problems:
        read = {t.trajectory_id: t.env_reward for t, _ in read_vab(folder, problems)}
    assert read == {"0": 1, "1": None, "2": None, "7": None}
    text = (tmp_path / "problems.txt").read_text()
    assert problems.counts == {"unreadable": 5, "bad_action_file": 2, "no_action_file": 1}
    assert f"3.jsonl: a link to {secret}, outside of the folder; copy that file here if you trust it; left out" in text
    assert "4.jsonl: a pipe, socket or device, not a regular file; left out" in text
