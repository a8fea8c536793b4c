"""The released outcome model's system text: copied out of a clone, told from others, looked for before work starts."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from llm_builders import build_tokenizer

from webrl import cli
from webrl.config import LabelConfig, load_config
from webrl.errors import DataError, UsageError
from webrl.reward import system_text
from webrl.reward.data import JudgedExample
from webrl.reward.system_text import DEFAULT_PATH, extract
from webrl.reward.train import prompt_ids

ROOT = Path(__file__).parent.parent
TEXT = "You judge a user’s agent. Say YES or NO."
SOURCE = f'''import os
raise SystemExit("run")
system = "not this one"
def build_rm_data(path):
    system = """{TEXT}"""
    def inner():
        instruction = "The User Intent"
    return system
'''


def write_clone(folder: Path, source: str = SOURCE) -> Path:
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "process_data.py").write_text(source, encoding="utf-8")
    return folder


def test_the_text_is_taken_from_a_clone_without_running_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["orm-prompt", str(write_clone(tmp_path / "clone"))]) == 0
    assert DEFAULT_PATH.read_text(encoding="utf-8") == f"{TEXT}\n"
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{DEFAULT_PATH}: another text than the released outcome model's"
    monkeypatch.setattr(system_text, "RELEASED_SHA256", sha256(TEXT.encode()).hexdigest())
    assert extract(tmp_path / "clone" / "scripts" / "process_data.py") == TEXT
    assert system_text.describe(DEFAULT_PATH) == f"{DEFAULT_PATH}: the released outcome model's"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def build_rm_data():\n    system = f'{1}'\n", "found 0"),
        ("def build_rm_data():\n    system = 'a'\n    system = 'b'\n", "found 2"),
        ("def another():\n    system = 'a'\n", "found 0"),
        ("def build_rm_data(:\n", r"not Python that can be parsed \(SyntaxError\)"),
        ("x = 1\0", "not Python that can be parsed"),
    ],
)
def test_what_is_no_clone_of_the_released_code_is_refused(tmp_path, source, said):
    with pytest.raises(DataError, match=said):
        extract(write_clone(tmp_path / "clone", source))


def test_an_absent_clone_is_one_line(tmp_path, capsys):
    out = tmp_path / "out.txt"
    assert cli.main(["orm-prompt", str(tmp_path / "none"), "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"webrl: {tmp_path / 'none'}: No such file or directory\n"
    assert not out.exists()


def test_the_judge_is_asked_in_the_released_format_with_this_text(tmp_path):
    """One string there, parts here; the tokenizer's own prefix (`<|begin_of_text|>` of Llama 3.1) goes before both."""
    (tmp_path / "text").write_text(f"{TEXT}\n", encoding="utf-8")
    config = LabelConfig(prompt_format="webrl", system_prompt=tmp_path / "text")
    tokenizer = build_tokenizer()
    example = JudgedExample("Buy a hat", ('# Note: x\ndo(action="Wait")',), " <html>\n", 1)
    released = (
        f"<|start_header_id|>system<|end_header_id|>\n\n{TEXT}<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nThe User Intent:\nBuy a hat\n\nAction History:\n"
        '# Note: x; do(action="Wait")\n\nThe Current Screenshot:\n<html>'
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert tokenizer.decode(prompt_ids(example, tokenizer, config)) == released
    ours = prompt_ids(example, tokenizer, LabelConfig(prompt_format="webrl"))
    assert TEXT not in tokenizer.decode(ours)
    chat = prompt_ids(example, tokenizer, LabelConfig(system_prompt=tmp_path / "text"))
    assert TEXT in tokenizer.decode(chat)


def test_a_judge_that_follows_instructions_takes_no_such_text():
    with pytest.raises(UsageError, match=r"label: system_prompt 'x.txt' is an ORM's: it goes with judge=orm"):
        load_config(None, ["label.judge=llm", "label.system_prompt=x.txt"])


@pytest.mark.companion("webarena")
@pytest.mark.parametrize("name", ["webrl_llama31_8b", "webrl_glm4_9b"])
def test_the_papers_configs_speak_the_released_outcome_models_format(name):
    label = load_config(ROOT / "configs" / f"{name}.yaml").label
    assert (label.prompt_format, label.system_prompt) == ("webrl", DEFAULT_PATH)


def test_an_absent_text_ends_labelling_before_it_starts_and_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    runs = tmp_path / "runs"
    for command in ("label", "run", "train-orm"):
        arguments = [command, "demo", f"runs_dir={runs}", f"label.system_prompt={tmp_path / 'none.txt'}"]
        assert cli.main(arguments) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"webrl: label.system_prompt: {tmp_path / 'none.txt'}: No such file or directory; ")
        assert "`webrl orm-prompt CLONE` makes it" in said
    assert not runs.exists()


def test_an_empty_text_is_none(tmp_path):
    (tmp_path / "text").write_text(" \n", encoding="utf-8")
    with pytest.raises(UsageError, match="is empty; `webrl orm-prompt"):
        system_text.system_text(tmp_path / "text")


@pytest.mark.companion("webarena")
def test_the_dry_run_says_whether_it_is_the_right_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.main(["orm-prompt", str(write_clone(tmp_path / "clone"))])
    capsys.readouterr()
    assert cli.main(["run", "webrl_llama31_8b", "--dry-run"]) == 0
    assert f"label.system_prompt: {DEFAULT_PATH}: another text than" in capsys.readouterr().out
    DEFAULT_PATH.unlink()
    assert cli.main(["run", "webrl_llama31_8b", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert f"label.system_prompt: {DEFAULT_PATH}: No such file" in shown


@pytest.mark.parametrize(
    ("command", "setting"),
    [
        (["run"], "models.generator=data/absent"),
        (["rollout"], "models.actor=./absent"),
        (["eval"], "models.actor=/absent"),
        (["label"], "models.orm=data/absent"),
        (["sft", "--data", "data/samples", "--init", "./absent"], "seed=0"),
        (["train-orm", "--data", "data/samples", "--init", "./absent"], "seed=0"),
    ],
)
def test_an_absent_model_folder_is_noticed_before_torch_is_imported(tmp_path, command, setting):
    arguments = [command[0], "demo", f"runs_dir={tmp_path}", setting, *command[1:]]
    code = f"import sys; from webrl import cli; code = cli.main({arguments}); print('torch' in sys.modules, code)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["False 1"], done.stderr
    assert "absent' does not exist (looked in " in done.stderr
    assert list(tmp_path.iterdir()) == []
