"""Options of `webrl grpo` under the public scripts' names, and what is refused before anything starts."""

import argparse
import runpy
import sys
from pathlib import Path

import pytest
from grpo_builders import refused
from llm_builders import save_tiny_model

from webrl.config.extras import EXTRAS
from webrl_grpo.cli.grpo import add_arguments, how_to_continue, resolve
from webrl_grpo.settings import GrpoSettings, load_settings

ROOT = Path(__file__).resolve().parents[3]
COOKBOOK = Path(__file__).parent / "data" / "cookbook_lfm2.yaml"


def parsed(*arguments: str) -> GrpoSettings:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return resolve(parser.parse_args(arguments))


def test_the_public_scripts_options_go_by_their_names():
    # the command line of TRL's example for language models
    command = (
        "--model-id some/model --space-url http://127.0.0.1:8000 --benchmark miniwob --task-name click-test "
        "--dataset-prompt Go --dataset-size 12 --max-steps 5 --max-completion-length 64 --temperature 0.7 --top-k 50 "
        "--top-p 0.9 --learning-rate 1e-6 --weight-decay 0.1 --gradient-accumulation-steps 1 --warmup-steps 3 "
        "--per-device-batch-size 2 --num-generations 6 --num-epochs 2 --save-interval 7 --save-total-limit 2 "
        "--output-dir out --run-name run --project mine --vllm-mode server --vllm-server-url http://localhost:8001 "
        "--use-vllm --logging-steps 4 --report-to trackio"
    )
    s = parsed(*command.split())
    assert (s.model_name, [str(u) for u in s.browsergym_url]) == ("some/model", ["http://127.0.0.1:8000"])
    assert (s.task_name, s.default_goal, s.dataset_size, s.max_steps) == (("click-test",), "Go", 12, 5)
    assert (s.max_completion_length, s.temperature, s.top_k, s.top_p) == (64, 0.7, 50, 0.9)
    assert (s.learning_rate, s.weight_decay, s.warmup_steps, s.num_epochs) == (1e-6, 0.1, 3, 2)
    assert (s.per_device_train_batch_size, s.gradient_accumulation_steps, s.num_generations) == (2, 1, 6)
    assert (s.save_interval, s.save_total_limit, s.logging_steps) == (7, 2, 4)
    assert (s.output_dir, s.run_name, s.project) == (Path("out"), "run", "mine")
    assert s.use_vllm
    assert s.has_collector, "servers of our own, whichever the scripts name"
    assert (s.sees, s.trackers) == (False, ["trackio"])
    assert s.episodes_per_generation == 6, "whole groups, although an optimizer step takes two episodes"


def test_the_public_vision_scripts_options_go_by_their_names():
    # the command line of TRL's example for vision-language models
    command = (
        "--model-id some/vlm --space-url http://127.0.0.1:8000 --task-name click-test --dataset-prompt Go "
        "--dataset-size 12 --max-steps 5 --max-completion-length 64 --image-size 256 --num-generations 6 "
        "--gradient-accumulation-steps 3 --learning-rate 1e-6 --num-epochs 2 --logging-steps 4 --output-dir out "
        "--vllm-mode colocate "
        "--vllm-server-url http://localhost:8001"
    )
    s = parsed(*command.split())
    assert (s.sees, s.image_size) == (True, 256)
    assert s.run_config.rollout.screenshots
    assert not parsed("--model-id", "m").run_config.rollout.screenshots
    assert parsed("--model-id", "m", "--viewport", "160x210").run_config.rollout.viewport == (160, 210)
    assert parsed("--model-id", "m", "--image-size", "0").sees, "0 is no resizing, as in the script"


def test_episodes_are_played_as_the_settings_say():
    rollout = parsed("--model-id", "m", "--space-url", "http://127.0.0.1:8000", "--max-steps", "5").run_config.rollout
    assert (rollout.env, rollout.max_steps, rollout.max_new_tokens) == ("openenv", 5, 128)
    assert parsed().run_config.models.max_prompt_tokens == 1232 - 32, "the demo's"
    free = parsed("--model-id", "m", "--max-kl", "null", "--no-every-element")
    assert (free.max_kl, free.every_element) == (None, False)


def test_the_cookbooks_keys_load():
    s = load_settings(COOKBOOK, {})
    assert s.prompt_format == "browsergym"
    assert s.system_prompt == "Answer with one BrowserGym action.\n"
    assert (s.trackers, s.wandb_project_name) == (["tensorboard", "wandb"], "browser-control")
    assert (s.episodes_per_generation, s.lora_target_modules) == (4, ("q_proj", "v_proj"))


def test_rewards_lists_and_vllm_s_own_arguments_on_the_command_line():
    given = parsed("--use-vllm", 'vllm_extra_args=--seed 3 --compilation-config={"mode":0,"x":1}')
    assert given.vllm_extra_args == ("--seed", "3", '--compilation-config={"mode":0,"x":1}'), "parted at blanks alone"
    s = parsed("--reward", "outcome=1", "format=0.1", "--task-name", "click-test", "click-tab")
    assert s.rewards == {"outcome": 1.0, "format": 0.1}
    assert s.task_name == ("click-test", "click-tab")
    for words in (
        ["task_name=click-test,click-tab"],
        ["--task-name", "click-test,click-tab"],
        ["task_name=[click-test, click-tab]"],
    ):
        assert parsed(*words).task_name == s.task_name
    assert parsed("rewards={sum: 1}").rewards == {"sum": 1.0}


def small(folder: Path) -> list[str]:
    return ["--model-id", str(folder), "--max-seq-length", "512", "--output-dir", str(folder.parent / "out")]


@pytest.mark.grpo
def test_tasks_and_options_that_a_text_model_cannot_train_on(tmp_path, webrl, monkeypatch):
    folder = save_tiny_model(tmp_path / "model")
    for option, said in {
        "--fallback-action wait": "fallback_action = 'wait': Not an action",
        "--max-seq-length 4096": "max_seq_length 4096: model",
        f"--resume-from-checkpoint {tmp_path}": "not a checkpoint-N folder",
    }.items():
        assert said in refused(webrl, *small(folder), *option.split())
    monkeypatch.setenv("WEBRL_CHROMIUM", "nowhere/chromium")
    assert "WEBRL_CHROMIUM=nowhere/chromium: no executable there" in webrl(1, "grpo", *small(folder)).err
    assert not (tmp_path / "out").exists()


@pytest.mark.grpo
def test_a_model_without_chat_template_or_none_at_all(tmp_path, webrl):
    folder = save_tiny_model(tmp_path / "plain")
    (folder / "chat_template.jinja").unlink()
    assert "has no chat template: use an instruction-tuned model" in refused(webrl, *small(folder))
    assert "model folder" in webrl(1, "grpo", "--model-id", "./nowhere").err


@pytest.mark.parametrize(
    ("extra", "option", "fix"),
    [
        ("grpo", ["seed=1"], "webrl grpo needs grpo, which is not installed: pip install 'webrl[grpo]'"),
        ("vllm", ["--use-vllm"], "use_vllm=true needs vllm, which is not installed: pip install 'webrl[vllm]'"),
        ("trackio", ["--report-to", "trackio"], "report_to=trackio needs trackio, which is not installed"),
        ("wandb", ["--wandb-enabled"], "report_to=wandb needs wandb, which is not installed"),
    ],
)
def test_a_missing_package_is_named_with_its_command(extra, option, fix, monkeypatch, webrl):
    for module in EXTRAS[extra][1]:
        monkeypatch.setitem(sys.modules, module, None)
    assert fix in refused(webrl, *option)


def test_after_ctrl_c_the_newest_whole_checkpoint_is_named(tmp_path):
    assert how_to_continue(tmp_path).startswith("no checkpoint was saved")
    for number in (8, 16):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text("{}")
    (tmp_path / "checkpoint-24").mkdir()  # cut off while it was written
    assert how_to_continue(tmp_path).endswith(f"--resume-from-checkpoint {tmp_path / 'checkpoint-16'}")


def test_the_script_has_the_commands_options(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_grpo.py", "--num-generations", "16", "--dry-run"])
    assert runpy.run_path(str(ROOT / "scripts" / "train_grpo.py"))["main"]() == 0
    shown = capsys.readouterr().out
    assert "num_generations: 16\n" in shown
    assert "model_name: data/tiny/actor\n" in shown
    assert "# missing" not in shown


def test_a_dry_run_names_a_model_of_the_hub_that_is_not_here(webrl):
    shown = webrl(0, "grpo", "--dry-run", "--model-id", "ann/agent").out
    assert shown.endswith("\n# missing on this machine: the model 'ann/agent' (hf download ann/agent)\n")


def test_a_servers_token_is_shown_nowhere(webrl):
    shown = webrl(0, "grpo", "--dry-run", "--space-url", "http://any:PLANTED@127.0.0.1:9")
    assert "***@127.0.0.1:9" in shown.out
    assert "PLANTED" not in shown.out + shown.err
