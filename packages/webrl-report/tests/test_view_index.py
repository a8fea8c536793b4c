"""The viewer's index: selections, growth and replacement of files, bad lines, details of a step."""

import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from view_builders import PAGE, make_run, trajectory, write

from webrl.errors import UsageError
from webrl.reward.train import read_judged
from webrl.runs.problems import ProblemLog
from webrl.types import Label
from webrl_report.view.app import set_label
from webrl_report.view.details import Run, acted_elements, describe, pieces
from webrl_report.view.index import HAND_LABELS, FileChanged, Index
from webrl_report.view.query import Selection, options, same_task, select, totals


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def indexed(*runs):
    index = Index(runs)
    index.refresh()
    return index


def ids(index, **selection):
    return [row.trajectory.trajectory_id for row in select(index, Selection(**selection))]


def read(index, place):
    return index.read(index.find(place))[0]


def described(index, run, line=1):
    return describe(index, Run(run, "run"), index.find(f"0/phase_00/trajectories.jsonl/{line}"))


def test_disagreements_come_first_and_the_last_label_of_a_trajectory_counts(run):
    index = indexed(run)
    rows = select(index, Selection())
    assert [(row.trajectory.trajectory_id, row.reward, row.truth, row.agrees) for row in rows] == [
        ("p00-a", 1, 0, False),
        ("e01-a", None, 1, None),
        ("p00-b", 1, 1, True),
        ("p00-c", None, None, None),
    ]
    counted = totals(rows)
    assert (counted["num"], counted["agree"], counted["disagree"], counted["labelled"]) == (4, 1, 1, 2)
    assert options(index)["phase"] == [("0", 3), ("1", 1)]
    write(run / "phase_01" / "eval_labels.jsonl", [Label("e01-a", 0.2, 0)])
    index.refresh()
    assert ids(index, match="disagree") == ["e01-a", "p00-a"]


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        ({"match": "disagree"}, ["p00-a"]),
        ({"match": "unknown"}, ["e01-a", "p00-c"]),
        ({"label": "none"}, ["e01-a", "p00-c"]),
        ({"truth": "failure"}, ["p00-a"]),
        ({"status": "env_error"}, ["p00-c"]),
        ({"kind": "eval"}, ["e01-a"]),
        ({"phase": "0", "sort": "oldest"}, ["p00-a", "p00-b", "p00-c"]),
        ({"q": "PAGE gone"}, ["p00-c"]),
        ({"q": "choose"}, ["p00-b"]),
        ({"q": "click('17')"}, ["p00-a"]),
        ({"sort": "longest", "phase": "0"}, ["p00-a", "p00-b", "p00-c"]),
        ({"sort": "unsure", "label": "success"}, ["p00-b", "p00-a"]),
        ({"q": "%"}, []),
    ],
)
def test_a_selection_is_what_its_address_says(run, selection, found):
    read = Selection.from_query(selection)
    assert Selection.from_query(dict(p.split("=") for p in read.address().split("&") if p)).sort == read.sort
    assert ids(indexed(run), **selection) == found


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"label": "yes"}, "label='yes': expected one of success"),
        ({"lable": "success"}, "unknown filter 'lable'"),
        ({"page": "two"}, "page='two': expected a number"),
        ({"phase": "1; DROP TABLE file"}, "expected a number"),
        ({"sort": "words"}, "sort='words'"),
    ],
)
def test_what_a_selection_does_not_know_is_refused_by_name(query, said):
    with pytest.raises(UsageError, match=said):
        Selection.from_query(query)


def test_what_is_appended_appears_and_nothing_is_read_twice(run):
    index = indexed(run)
    version = index.version
    index.refresh()
    assert index.version == version
    write(run / "phase_00" / "trajectories.jsonl", [trajectory("p00-d", phase=0)], "ab")
    write(run / "phase_00" / "labels.jsonl", [Label("p00-d", 0.1, 0)], "ab")
    index.refresh()
    assert ids(index, match="disagree", sort="oldest") == ["p00-a", "p00-d"]
    assert read(index, "0/phase_00/trajectories.jsonl/4").trajectory_id == "p00-d"


def test_a_line_that_is_being_written_is_not_read_before_its_end(run):
    path = run / "phase_00" / "trajectories.jsonl"
    whole = path.read_bytes()
    half = len(whole.splitlines()[0]) // 2
    with path.open("ab") as file:
        file.write(whole[:half])
    index = indexed(run)
    assert len(ids(index)) == 4
    assert [text.partition(": ")[0] for text in index.problems()[0]] == [str(path)]
    with path.open("ab") as file:
        file.write(whole.splitlines()[0][half:] + b"\n")
    index.refresh()
    assert len(ids(index)) == 5
    assert index.problems() == ([], 0)


def test_a_file_that_is_written_anew_is_read_anew(run):
    index = indexed(run)
    path = run / "phase_00" / "trajectories.jsonl"
    place = "0/phase_00/trajectories.jsonl/1"
    new = path.with_suffix(".new")
    write(new, [trajectory("p00-x", phase=0), trajectory("p00-a", phase=0), trajectory("p00-z", phase=0)])
    new.replace(path)
    with pytest.raises(FileChanged):
        read(index, place)
    index.refresh()
    assert read(index, place).trajectory_id == "p00-x"
    assert ids(index, phase="0", sort="oldest") == ["p00-x", "p00-a", "p00-z"]
    path.unlink()
    index.refresh()
    assert ids(index) == ["e01-a"]


def test_a_broken_line_is_named_and_the_others_are_there(run):
    path = run / "phase_00" / "trajectories.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    foreign = b'{"trajectory_id": "x", "extra": 1}\n'
    path.write_bytes(lines[0] + b"{nope}\n" + lines[1] + foreign + b"\xff\xfe\n" + lines[2])
    index = indexed(run)
    assert ids(index, phase="0", sort="oldest") == ["p00-a", "p00-b", "p00-c"]
    assert [text.split(": ")[0] for text in index.problems()[0]] == [f"{path}:{n}" for n in (2, 4, 5)]
    assert index.problems()[1] == 3
    assert "malformed JSON" in index.problems()[0][0]
    assert "unknown field 'extra'" in index.problems()[0][1]
    assert read(index, "0/phase_00/trajectories.jsonl/6").trajectory_id == "p00-c"


@pytest.mark.skipif(sys.platform != "linux", reason="a file that opens and cannot be read")
def test_a_file_that_cannot_be_opened_is_named_once(run, monkeypatch):
    path = run / "phase_00" / "trajectories.jsonl"
    for line in range(150):
        write(path, [Label(str(line), None, None)], "ab")
    index = indexed(run)
    assert (len(index.problems()[0]), index.problems()[1]) == (100, 150)
    path.unlink()
    path.symlink_to("/proc/self/mem")  # a file that opens, and cannot be read
    index.refresh()
    version = index.version
    index.refresh()
    assert (index.version, index.problems()[1], ids(index)) == (version, 1, ["e01-a"])


def test_attempts_at_a_task_are_found_over_phases_and_runs(run, tmp_path):
    other = make_run(tmp_path / "other")
    index = indexed(run, other)
    found = same_task(index, index.find("0/phase_00/trajectories.jsonl/1"))
    assert [(row.file.run, row.trajectory.trajectory_id) for row in found] == [
        (0, "e01-a"),
        (1, "p00-a"),
        (1, "e01-a"),
        (0, "p00-c"),
        (1, "p00-c"),
    ]


def test_a_step_shows_its_values_log_probability_and_the_element_that_was_used(run):
    (run / "config.yaml").write_text("\0")  # what cannot be read keeps no page from being shown
    first, last = described(indexed(run), run).steps
    assert (first.log_probability, first.trained[0][0], first.trained[0][1].value) == (-0.75, 0, 0.25)
    assert last.elements == ("17",)
    assert [p.text for p in last.page if p.kind == "acted"] == ["[17] button 'Cancel'"]


def test_an_answers_tokens_are_its_text_piece_by_piece(tmp_path):
    actor = Path(__file__).resolve().parents[3] / "data" / "tiny" / "actor"
    (tmp_path / "config.yaml").write_text(f"models: {{actor: {actor}}}\n")
    tokenizer = Run(tmp_path, "run").tokenizer()
    for text in ("a" * 5000, "click('12')", "fill('a', 'Grüße, 漢字 💩')  \n# note"):
        answer = tuple(tokenizer.backend.encode(text).ids)
        made = tokenizer.pieces(answer)
        assert "".join(made) == tokenizer.text(answer)
        assert len(made) == len(answer)
        assert tokenizer.made(answer, text)
        assert not tokenizer.made(answer[:-3], text)
    assert made[:2] == tokenizer.pieces(answer[:2])


def test_labels_set_by_hand_are_training_data_of_the_outcome_model(run):
    path = run / HAND_LABELS
    path.write_bytes(b'{"instruction": "mine", "responses": [], "final_page": "p", "success": 1}\n{broken')
    index = indexed(run)
    a, b = (read(index, f"0/phase_00/trajectories.jsonl/{n}") for n in (1, 2))
    set_label(run, a, 0)
    set_label(run, b, 1)
    set_label(run, a, 1)

    def judged():
        with ProblemLog() as problems:
            return {e.trajectory_id: e for e in read_judged(path, problems)}

    assert {name: example.success for name, example in judged().items()} == {"": 1, "p00-b": 1, "p00-a": 1}
    example = judged()["p00-a"]
    assert (example.responses, example.final_page) == (("click('12')", "click('17')"), "the end")
    set_label(run, a, None)
    assert set(judged()) == {"", "p00-b"}
    assert path.read_bytes().splitlines()[1] == b"{broken", "what is not ours stays as it is"
    index.refresh()
    assert ids(index, hand="success") == ["p00-b"]
    set_label(run, b, None)
    index.refresh()
    assert ids(index, hand="any") == []
    many = [dataclasses.replace(a, trajectory_id=f"p00-{number}") for number in range(40)]
    with ThreadPoolExecutor(4) as viewers:
        list(viewers.map(lambda each: set_label(run, each, 1), many))
    assert len(judged()) == 41, "several viewers lose none of each other's labels"


def test_long_pages_are_cut_around_what_was_acted_on():
    text = "a" * 50_000 + "\n[7] button 'x'\n" + "b" * 50_000
    shown = pieces(text, ("7",), limit=20_000)
    assert [p.kind for p in shown] == ["cut", "", "acted", "", "cut"]
    assert sum(len(p.text) for p in shown if p.kind != "cut") == 20_000
    assert [p.kind for p in pieces(text, (), limit=20_000)] == ["", "cut"]
    assert "".join(p.text for p in pieces(PAGE, ("12",))) == PAGE
    shown = pieces('<div><a id="12" title="x"> go </a><a id="120"> no </a></div>', ("12",))
    assert [p.text for p in shown if p.kind == "acted"] == ['<a id="12" title="x">']


@pytest.mark.parametrize(
    ("action", "elements"),
    [
        ("fill('a12', 'x')", ("a12",)),
        ("drag_and_drop('1', '2')", ("1", "2")),
        ("do(action='Search', argument='x', element='9')", ("9",)),
        ("scroll(0, 100)", ()),
        ("__import__('os').system('id')", ()),
        ("", ()),
    ],
)
def test_the_elements_of_an_action_are_found_in_both_dialects(action, elements):
    assert acted_elements(action) == elements


def test_screenshots_are_pngs_of_the_run_folder(run, tmp_path):
    for path in (tmp_path / "outside.png", run / "inside.png", run / "text.html"):
        path.write_bytes(b"...")
    (run / "link.png").symlink_to(tmp_path / "outside.png")
    shown = Run(run, "run")
    assert shown.screenshot("inside.png") == (run / "inside.png").resolve()
    names = ("../outside.png", str(tmp_path / "outside.png"), "link.png", "text.html", "absent.png", "a\0b", ".")
    assert [shown.screenshot(name) for name in names] == [None] * len(names)
