"""The released outcome model's system text: looked for before work starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from llm_builders import build_tokenizer

from webrl import cli
from webrl.config import LabelConfig, load_config
from webrl.errors import UsageError
from webrl.reward.data import JudgedExample
from webrl.reward.orm import configured_text
from webrl.reward.train import prompt_ids

ROOT = Path(__file__).parent.parent
TEXT = "You judge a user’s agent. Say YES or NO."


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
    with pytest.raises(UsageError, match=r"label: system_prompt 'x.txt' is an ORM's: it needs judge=orm"):
        load_config(None, ["label.judge=llm", "label.system_prompt=x.txt"])


@pytest.mark.companion("webarena")
@pytest.mark.parametrize("name", ["webrl_llama31_8b", "webrl_glm4_9b"])
def test_the_papers_configs_speak_the_released_outcome_models_format(name):
    label = load_config(ROOT / "configs" / f"{name}.yaml").label
    assert (label.prompt_format, label.system_prompt) == ("webrl", Path("data/released_orm_prompt.txt"))


def test_an_absent_text_ends_labelling_before_it_starts_and_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    runs = tmp_path / "runs"
    for command in ("label", "run", "train-orm"):
        arguments = [command, "demo", f"runs_dir={runs}", f"label.system_prompt={tmp_path / 'none.txt'}"]
        assert cli.main(arguments) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert said.startswith(f"webrl: label.system_prompt: {tmp_path / 'none.txt'}: No such file or directory; ")
        assert "`system` in build_rm_data" in said
    assert cli.main(["run", *arguments[1:], "--dry-run"]) == 0
    assert f"# missing on this machine: label.system_prompt={tmp_path / 'none.txt'}\n" in capsys.readouterr().out
    assert not runs.exists()


def test_an_empty_text_is_none(tmp_path):
    (tmp_path / "text").write_text(" \n", encoding="utf-8")
    with pytest.raises(UsageError, match="is empty; the released"):
        configured_text(LabelConfig(system_prompt=tmp_path / "text"))


def test_an_absent_model_folder_is_noticed_before_torch_is_imported(tmp_path):
    given = ["--data", "data/samples", "--init", "./absent"]
    commands = [["run", "models.generator=data/absent"], ["rollout", "models.actor=./absent"], ["sft", *given]]
    commands += [["eval", "models.actor=/absent"], ["label", "models.orm=data/absent"], ["train-orm", *given]]
    code = (
        "import json, sys; from webrl import cli\n"
        "for name, *more in json.loads(sys.argv[1]):\n"
        "    print('torch' in sys.modules or cli.main([name, 'demo', sys.argv[2], *more]), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, json.dumps(commands), f"runs_dir={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.endswith(("True", "False"))] == ["1 False"] * 6, (
        done.stderr
    )
    assert done.stderr.count("absent' does not exist (looked in ") == 6
    assert list(tmp_path.iterdir()) == []
