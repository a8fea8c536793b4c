"""What `webrl serve-model` is told to serve, and with which settings."""

import pytest
from llm_builders import save_tiny_model

from webrl.config import load_config
from webrl.errors import UsageError
from webrl.runs.folder import open_run
from webrl_serve.model.checkpoint import check_context, find_checkpoint

SMALL = ["models.max_prompt_tokens=300", "rollout.max_new_tokens=32"]


@pytest.fixture
def run(tmp_path):
    """A run of two phases, of which the second has no actor yet."""
    config = load_config("demo", [f"runs_dir={tmp_path}", "name=mine", "rollout.dialect=webrl", *SMALL])
    folder = open_run(config)
    save_tiny_model(folder.phase(0).actor)
    folder.phase(1).path.mkdir()
    return folder


def test_a_run_is_served_with_its_newest_actor_and_its_own_settings(run):
    found = find_checkpoint(str(run.path))
    assert (found.name, found.alias) == (str(run.phase(0).actor), "mine")
    assert found.config.rollout.dialect == "webrl"
    assert check_context(found) == 1024
    save_tiny_model(run.phase(1).actor)
    assert find_checkpoint(str(run.path)).name == str(run.phase(1).actor)
    assert find_checkpoint(str(run.path), phase=0).name == str(run.phase(0).actor)


def test_a_folder_inside_a_run_has_the_runs_settings_unless_others_are_named(run):
    inside = str(run.phase(0).actor)
    found = find_checkpoint(inside)
    assert (found.alias, found.source) == ("actor", str(run.config))
    assert found.config.rollout.dialect == "webrl"
    assert find_checkpoint(inside, "demo").config.rollout.dialect == "browsergym"
    assert find_checkpoint(inside, overrides=["rollout.dialect=browsergym"]).config.rollout.dialect == "browsergym"


def test_an_adapter_is_served_with_its_base(tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = save_tiny_model(tmp_path / "base", positions=512)
    lora = LoraConfig(r=2, target_modules=["q_proj"])
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).save_pretrained(tmp_path / "adapter")
    found = find_checkpoint(str(tmp_path / "adapter"), overrides=SMALL)
    assert found.alias == "adapter"
    assert check_context(found) == 512


def test_prompts_that_the_model_has_no_room_for_are_refused_before_it_is_loaded(tmp_path):
    folder = save_tiny_model(tmp_path / "small")
    with pytest.raises(UsageError, match=r"more than the 1024 positions .* set models\.max_prompt_tokens=512"):
        check_context(find_checkpoint(str(folder)))


@pytest.mark.parametrize("key", ["engine.kind", "rollout.engine.kind"])
def test_an_engine_that_is_named_is_taken(run, key, tmp_path, monkeypatch):
    (tmp_path / "packages" / "vllm").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert find_checkpoint(str(run.path)).config.rollout.engine.kind == "vllm"
    named = find_checkpoint(str(run.path), overrides=[f"{key}=transformers"])
    assert named.config.rollout.engine.kind == "transformers"


def test_a_dry_run_says_what_would_be_served(run, webrl):
    said = webrl(0, "serve-model", run.path, "--name", "agent", "--dry-run").out
    assert said.splitlines()[0] == "model    agent"
    assert "actions webrl, up to 300 tokens of 1024" in said
