"""Released experience files: read exactly, and never run."""

import collections
import pickle
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from webrl.errors import DataError
from webrl.llm.prompts import released_parts
from webrl.runs.problems import ProblemLog
from webrl.types import Step
from webrl_webarena.released import load_restricted, page_of_prompt, read_released

REPO = Path(__file__).parent.parent


def make_items(num_steps=3, reward=1, task="Find it"):
    """Items of one trajectory, as the released `build_policy_data` writes them."""
    steps = [
        Step(i, f"<html>{i}\n\nRound {i}\n\n</html>", f"do(action='Click', element='{i}')", "")
        for i in range(num_steps)
    ]
    prompts = [
        "".join(text for text, _ in released_parts(task, steps[:i], steps[min(i, num_steps - 1)].observation))
        for i in range(num_steps + 1)
    ]
    outcome = {"task": task, "reward": reward, "trajectory_reward": reward}
    return [
        {"observation": prompts[i], "next_observation": prompts[i + 1], "action": steps[i].response,
         "done": i == num_steps - 1, **outcome}
        for i in range(num_steps)
    ]  # fmt: skip


class Evil:
    """Asks for a call when unpickled."""

    def __init__(self, function, *args):
        self._call = (function, args)

    def __reduce__(self):
        return self._call


def test_containers_strings_numbers_and_tensors_are_read(tmp_path):
    data = {
        "list": [1, 2.5, None, True, "ü", b"bytes", (1, 2), {3}],
        "ordered": collections.OrderedDict(a=1),
        "numpy": [np.float64(0.5), np.float32(0.25), np.int64(7), np.bool_(True)],
    }
    tensors = [
        torch.arange(6).reshape(2, 3).t(),
        torch.tensor(0.5, dtype=torch.bfloat16),
        torch.zeros(0),
        torch.ones(2) > 0,
    ]
    torch.save({**data, "tensors": tensors}, tmp_path / "x.pt")
    loaded = load_restricted(tmp_path / "x.pt")
    read = loaded.pop("tensors")
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(tensors, read, strict=True))
    assert loaded == data


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (Evil(exec, "open('ran', 'w')"), "exec"),
        (Evil(subprocess.check_output, ["touch", "ran"]), "check_output"),
        (Evil(getattr, "x", "upper"), "getattr"),
        (Evil(torch.load, "x.pt"), "torch.serialization.load"),
        (np.arange(3), "_reconstruct"),
        (Evil(collections.namedtuple, "x", "y"), "collections.namedtuple"),
        (Path("x"), "pathlib"),
    ],
)
def test_a_pickle_with_code_is_refused_and_the_code_is_named(tmp_path, monkeypatch, payload, name):
    monkeypatch.chdir(tmp_path)
    torch.save([make_items(), payload], tmp_path / "evil.pt")
    with pytest.raises(DataError, match=f"evil.pt: refused: the pickle refers to .*{name}"):
        load_restricted(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_the_page_of_the_last_round_comes_out_of_the_prompt_exactly():
    steps = [Step(i, f"page {i}", f"do({i})", "") for i in range(2)]
    page = "<p>\n\nRound 1\n\nfake\n\n</p>"
    prompt = "".join(text for text, _ in released_parts("Task", steps, page))
    assert page_of_prompt(prompt, 2) == page
    with pytest.raises(ValueError, match="last round is 5"):
        page_of_prompt(prompt, 5)


def test_trajectories_come_back_so_that_their_prompts_are_the_same(tmp_path):
    items = make_items(3)
    torch.save([items, make_items(2, reward=0)], tmp_path / "sft.pt")
    (first, label), (_, failed) = read_released(tmp_path / "sft.pt", ProblemLog())
    assert (label.reward, failed.reward) == (1, 0)
    for i, item in enumerate(items):
        parts = released_parts(first.instruction, first.steps[:i], first.steps[i].observation)
        assert "".join(text for text, _ in parts) == item["observation"]
        assert first.steps[i].response == item["action"]


def test_the_end_token_of_a_released_action_is_no_text(tmp_path):
    prompt = (
        "Task Instruction: t\n\nRound 0\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\npage"
        "\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n"
    )
    step = {"task": "t", "observation": prompt, "action": "exit(message='5')<|eot_id|>", "reward": 1.0}
    torch.save([[step]], tmp_path / "experience.pt")
    ((trajectory, _),) = read_released(tmp_path / "experience.pt", ProblemLog(num_shown=0))
    assert trajectory.steps[0].response == "exit(message='5')"


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
