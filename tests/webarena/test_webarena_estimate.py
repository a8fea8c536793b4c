"""The dry run's arithmetic, by hand, and what it says is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from webrl.cli.estimate import Assumptions, commands, describe, estimate_phase, find_missing
from webrl.config import RunConfig, load_config, validate_config
from webrl.phase import STAGES

CONFIGS = Path(__file__).parents[2] / "configs"
EVERY = ("webarena", "webarena_lite", "webrl_llama31_8b", "webrl_glm4_9b")


def config(**rollout: object) -> RunConfig:
    data = {"generate": {"num_tasks": 100}, "tasks": {"suite": "webarena_lite"}, "rollout": rollout}
    return validate_config(data, "test")


def test_training_hours_follow_the_measured_seconds_a_sample():
    hours = estimate_phase(config(), 1, Assumptions(steps=10, tokens=4096))
    samples = 100 * 10 * 3  # twice as many replayed as current
    assert hours["train"] == pytest.approx(samples * (2 * 0.462 + 0.120) / 3600)
    assert hours["replay"] == pytest.approx(samples * 0.120 / 3600)
    assert hours["label"] == pytest.approx(100 * 0.120 / 3600)
    assert hours["reset"] == pytest.approx(700 / 3600)


def test_lengths_between_measurements_are_interpolated_and_sizes_scale():
    plain = estimate_phase(config(), 1, Assumptions(tokens=6144))["label"]
    assert plain == pytest.approx(100 * (0.120 + 0.256) / 2 / 3600)
    twice = estimate_phase(config(), 1, Assumptions(tokens=6144, parameters=2 * 8.03e9))["label"]
    assert twice == pytest.approx(2 * plain)


def test_rollouts_take_as_long_as_the_slowest_of_model_browsers_and_queue():
    slow_pages = estimate_phase(config(num_workers=1, envs_per_worker=1), 1, Assumptions(steps=10, page_s=3.0))
    step_s = 3.0 + 0.11 + 1 / 8.9
    assert slow_pages["rollout"] == pytest.approx(100 * 10 * step_s / 3600)
    fast_pages = estimate_phase(config(num_workers=100, envs_per_worker=100), 1, Assumptions(steps=10, page_s=0.0))
    assert fast_pages["rollout"] >= 100 * 10 / (8.9 * 4096 / 6000) / 3600


@pytest.mark.parametrize("name", EVERY)
def test_the_shipped_configs_load(name: str):
    loaded = load_config(CONFIGS / f"{name}.yaml")
    assert loaded.name == name
    assert loaded.rollout.max_steps == 30
    assert (loaded.rollout.max_parse_failures, loaded.rollout.max_repeats) == (5, 5)
    assert (loaded.rollout.observation, loaded.rollout.dialect) == ("html", "webrl")
    assert loaded.models.prompt_format == "webrl"


@pytest.mark.parametrize("name", EVERY[2:])
def test_the_paper_s_run_has_the_paper_s_settings(name: str):
    run = load_config(CONFIGS / f"{name}.yaml")
    assert (run.num_phases, run.generate.num_tasks, run.generate.num_seeds) == (8, 500, 10)
    assert (run.generate.temperature, run.rollout.temperature, run.evaluate.temperature) == (1.0, 1.0, (0.0,))
    assert (run.filter.value_low, run.filter.value_high) == (0.05, 0.75)
    assert (run.replay.perplexity_low, run.replay.perplexity_high, run.replay.max_ratio) == (1 / 0.95, 2.0, 2.0)
    for part in (run.critic, run.actor):
        assert (part.lr, part.schedule, part.batch_size, part.epochs, part.max_tokens) == (
            1e-6,
            "constant",
            128,
            1,
            16384,
        )
    assert run.actor.gae_lambda == 0.5


def test_a_dry_run_lists_every_command_of_every_phase():
    run = load_config(CONFIGS / "webrl_llama31_8b.yaml")
    listed = commands(run)
    stages = [line.split()[1] for line in listed if "--phase" in line]
    assert stages == [stage.name for stage in STAGES] * 9  # phase 0 has them all: its tasks are drawn by filter-tasks
    assert "vllm serve JUDGE_MODEL --port 8001" in "\n".join(listed)
    text = "\n".join(describe(run))
    assert "training all parameters needs 2 GPUs of 139 GiB" in text


def test_a_config_without_phases_is_evaluated():
    assert commands(load_config(CONFIGS / "webarena_lite.yaml"))[-1] == "webrl eval configs/webarena_lite.yaml"


def test_what_is_missing_is_named_with_the_fix(monkeypatch):
    for name in ("WA_MAP", "MAP", "WA_FULL_RESET", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    missing = "\n".join(find_missing(load_config(CONFIGS / "webrl_llama31_8b.yaml"), Assumptions()))
    assert "map" in missing
    assert "set WA_FULL_RESET" in missing
    assert "data/WebArena-Lite_info.json: from github.com/THUDM/WebRL" in missing
    assert "models.actor 'checkpoints/llama31-8b-sft': no such folder" in missing
    assert "models.orm" not in missing  # a name on the hub
    assert "environment variable OPENAI_API_KEY" in missing
