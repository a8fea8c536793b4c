"""The settings of the benchmark of an actor that sees; the runs themselves take minutes (docs/eyes.md)."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from eyes import OBJECTIVES, SIGHT, TRAINING

from webrl.config import RunConfig, load_config
from webrl.config.resources import find_config
from webrl.preflight import check_settings


def settings_of(objective: str) -> RunConfig:
    return load_config(find_config("demo_grpo"), [*SIGHT, *TRAINING, *OBJECTIVES[objective]])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_runs_of_either_update_are_taken_and_show_the_actor_no_text(objective: str) -> None:
    config = settings_of(objective)
    check_settings(config, "demo_grpo.yaml")
    assert not config.rollout.show_text
    assert config.tasks.num_seed_tasks * config.rollout.num_generations == 384


def test_the_update_of_webrl_has_its_critic_and_its_replay() -> None:
    config = settings_of("webrl")
    assert (config.actor.objective, config.replay.strategy) == ("webrl_scaled", "perplexity")
    assert config.trains_critic
    assert not settings_of("grpo").trains_critic
