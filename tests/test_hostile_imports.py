"""Files of strangers: nothing in them runs, none reaches outside of its folder, none takes what the machine has."""

import io
import json
import os
import pickle
import zipfile

import pytest
import torch

import webrl.runs.store
from webrl.config import RunConfig
from webrl.errors import DataError
from webrl.interop.problems import ProblemLog
from webrl.interop.released import load_restricted, read_released
from webrl.interop.vab import read_vab
from webrl.rollouts.collect import screenshot_saver
from webrl.runs.disk import file_name
from webrl.runs.store import numbered_lines, read_json, read_lines

STEP = {"index": 0, "prompt": "Do it", "html": "<html> </html>", "response": "exit()", "target": "Do it"}


def archive(path, data_pkl, *, members=(), compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("x/data.pkl", data_pkl)
        for name, data in members:
            file.writestr(name, data)
    return path


def test_an_archive_that_unpacks_to_more_than_it_has_is_refused(tmp_path):
    bomb = archive(tmp_path / "bomb.pt", pickle.dumps("0" * 50_000_000, 2), compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match=r"bomb.pt: refused: 'x/data.pkl' is compressed \(\d+ bytes for 50\d+\)"):
        load_restricted(bomb)


def test_members_that_share_their_bytes_are_refused(tmp_path):
    path = archive(tmp_path / "a.pt", pickle.dumps([], 2), members=[("x/data/0", b"0" * 10_000), ("x/data/1", b"")])
    with zipfile.ZipFile(path) as file:
        shared, other = file.getinfo("x/data/0"), file.getinfo("x/data/1")
        entry = other.filename.encode()
    data = bytearray(path.read_bytes())
    start = data.rindex(entry) - 46  # its line in the directory, which is at the end
    sizes = (shared.CRC, shared.compress_size, shared.file_size)
    data[start + 16 : start + 28] = b"".join(number.to_bytes(4, "little") for number in sizes)
    data[start + 42 : start + 46] = shared.header_offset.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a.pt: refused: its members claim 20\d+ bytes, but the file has 10\d+"):
        load_restricted(path)


@pytest.mark.parametrize("name", ["builtins\nbytearray", "torch.storage\nUntypedStorage", "torch\nFloatTensor"])
def test_a_few_bytes_that_ask_for_a_terabyte_are_refused(tmp_path, name):
    asks = b"\x80\x02c" + name.encode() + b"\n\x8a\x06" + (2**40).to_bytes(6, "little") + b"\x85R."
    path = archive(tmp_path / "a.pt", asks, members=[("x/version", "3"), ("x/byteorder", "little")])
    with pytest.raises(DataError, match=f"a.pt: refused: the pickle refers to {name.replace(chr(10), '.')}"):
        load_restricted(path)


def test_what_is_wrong_in_a_trajectory_is_named_without_printing_it_all(tmp_path):
    page = "Round 0\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\npage"
    prompt = page + "\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
    good = {"task": "t", "action": "exit()", "observation": prompt, "reward": 1}
    doubled: tuple = ()
    for _ in range(60):
        doubled = (doubled, doubled)
    changes = [*({"reward": each} for each in (doubled, 10**400, float("nan"), 87)), {"task": "\ud800"}]
    changes += [{"observation": "no prompt"}]
    bad = [doubled, [doubled], [{"task": doubled}], *([good | change] for change in changes), 3, [[]], []]
    torch.save([*bad, [good]], tmp_path / "x.pt")
    with ProblemLog(tmp_path / "problems.txt") as problems:
        (read,) = list(read_released(tmp_path / "x.pt", problems))
    assert (read[0].trajectory_id, read[0].steps[0].observation) == (f"x-{len(bad)}", "page")
    assert problems.counts == {"bad_trajectory": len(bad)}
    listed = (tmp_path / "problems.txt").read_text()
    assert max(map(len, listed.splitlines())) < 400
    assert "trajectory 6: the reward must be a number of at most 1, found 87; left out" in listed


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


def test_a_trace_folder_brings_in_nothing_from_outside_and_no_pipe_holds_it_up(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text(json.dumps(STEP))
    folder = tmp_path / "result"
    for name in ("traces", "actions"):
        (folder / name).mkdir(parents=True)
    for name in ("0", "1", "2"):
        (folder / "traces" / f"{name}.jsonl").write_text(json.dumps(STEP))
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
