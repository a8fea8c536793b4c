"""Model folders of strangers: their code never runs, and pickled weights are refused."""

import io
import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from webrl.errors import ModelError
from webrl.llm.loading import load_causal_lm, load_tokenizer
from webrl.rollouts.html import simplify
from webrl.training.critic import load_critic
from webrl.training.models import load_actor


@pytest.fixture
def folder(tmp_path):
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=16, num_attention_heads=1, num_key_value_heads=1, **size)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load_lm(folder):
    load_causal_lm(str(folder), dtype="float32")


def test_weights_that_are_pickles_are_refused_and_the_fix_is_named(folder):
    for name in ("pytorch_model.bin", "adapter_model.bin", "model.pt"):
        (folder / "model.safetensors").unlink(missing_ok=True)
        torch.save({}, folder / name)
        for load in (load_lm, load_actor, load_critic):
            with pytest.raises(ModelError, match=rf"in {name}, a pickle, .*save_pretrained\(NEW\)"):
                load(folder)
        (folder / name).unlink()


def test_code_that_comes_with_a_model_never_runs_whatever_is_typed(folder, monkeypatch):
    ran = folder.parent / "ran"
    config = json.loads((folder / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": ["evil.T", None]}}))
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n")
    folders = {kind: shutil.copytree(folder, folder.parent / kind) for kind in ("evil", "vit")}
    for kind, copy in folders.items():
        (copy / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    # Who sits here says yes whenever transformers asks whether that code may run.
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 18))
    said = {kind: [] for kind in folders}
    for kind, copy in folders.items():
        for load in (load_lm, load_tokenizer, load_actor, load_critic):
            try:
                load(str(copy))
            except ModelError as error:
                said[kind].append(str(error))
        assert all(f"{copy}'" in words for words in said[kind])
    assert len(said["evil"]) == 4
    assert all(words.endswith("which is never run") for words in said["evil"])
    assert len(said["vit"]) >= 3
    assert not ran.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"r": 1}', '{"base_model_name_or_path": null}', "\0", "[" * 5000])
def test_an_adapter_that_names_no_base_is_one_clear_error(folder, text):
    (folder / "adapter_config.json").write_text(text)
    for load in (load_lm, load_actor):
        with pytest.raises(ModelError, match=r"adapter_config.json: .*base_model_name_or_path"):
            load(folder)


def test_a_chat_template_cannot_reach_the_system(tmp_path):
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    reach = "{{ cycler.__init__.__globals__.os.system('touch %s') }}" % (tmp_path / "ran")
    tokenizer.chat_template = reach
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    loaded = load_tokenizer(str(tmp_path / "tokenizer"))
    assert loaded.chat_template == reach
    with pytest.raises(Exception, match=r"unsafe|undefined"):
        loaded.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert not (tmp_path / "ran").exists()


def test_html_reads_no_file_expands_no_entity_and_survives_any_depth(tmp_path):
    (tmp_path / "secret").write_text("SECRET")
    declared = (
        f'<!DOCTYPE html [<!ENTITY x SYSTEM "file://{tmp_path}/secret"><!ENTITY a "{"A" * 100}">'
        '<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    )
    text = simplify(f'{declared}<html><body data-bbox="0,0,9,9">&x; &b; text</body></html>', 100, 100)
    assert "SECRET" not in text
    assert len(text) < 500
    simplify('<div data-bbox="0,0,9,9">' * 50_000 + "deep", 100, 100)
