"""Released experience files: read exactly, and never run."""

import collections
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from webrl.errors import DataError
from webrl.interop.problems import ProblemLog
from webrl.interop.released import load_restricted, page_of_prompt, read_released
from webrl.llm.prompts import released_parts
from webrl.types import Step

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
