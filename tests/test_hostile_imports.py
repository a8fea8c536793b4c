"""Files of strangers: nothing in them runs, none reaches outside of its folder, none takes what the machine has."""

import io

import pytest

import webrl.runs.store
from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.rollouts.collect import screenshot_saver
from webrl.runs.disk import file_name
from webrl.runs.store import numbered_lines, read_json, read_lines


def test_a_line_without_end_is_named_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(webrl.runs.store, "MAX_JSON_BYTES", 1000)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b'{"a": 1}\n"' + b"x" * 5000 + b'"\n{"a": 2}\n' + b"y" * 2_000_000)
    problems: list[str] = []
    assert list(read_lines(path, problems.append)) == [(1, {"a": 1}), (3, {"a": 2})]
    assert problems == [
        f"{path}:2: a line of 5003 bytes, more than 1000; is it JSONL?",
        f"{path}:4: a line of 2000000 bytes, more than 1000; is it JSONL?",
    ]
    with pytest.raises(DataError, match=r"long.jsonl:2: a line of 5003 bytes"):
        list(read_lines(path))
    with pytest.raises(DataError, match=r"long.jsonl: \d+ bytes; a JSON file has at most 1000"):
        read_json(path)
    assert [n for n, _ in numbered_lines(io.BytesIO(b"a\n\nb"), path)] == [1, 2, 3]


IDS = ["../../x", "/etc/passwd", "..", ".", "", "a\0b", "x" * 5000, "ü" * 300, "\ud800", "a/b", "a%2Fb", "con\n"]


def test_no_id_makes_a_file_name_that_leads_out_of_a_folder():
    names = [file_name(text) for text in IDS]
    assert len(set(names)) == len(IDS)
    for name in names:
        assert name not in ("", ".", "..")
        assert not {"/", "\0"} & set(name)
        assert len(name.encode()) <= 140


def test_no_trajectory_id_leads_out_of_the_folder_of_screenshots(tmp_path):
    config = RunConfig.model_validate({"name": "x", "rollout": {"screenshots": True}}).rollout
    out = tmp_path / "run" / "phase_00" / "trajectories.jsonl"
    for text in IDS:
        screenshot_saver(config, out, f"p00-{text}")(b"png", 0)
        screenshot_saver(config, out, text)(b"png", 0)
    assert {p.relative_to(tmp_path).parts[:3] for p in tmp_path.rglob("*.png")} == {("run", "phase_00", "screenshots")}
    assert len(list(tmp_path.rglob("*.png"))) == 2 * len(IDS)
